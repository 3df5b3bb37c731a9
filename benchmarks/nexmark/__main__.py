"""Run it from anywhere: the benchmarks are scripts beside each other, and this package is one of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nexmark.harness import main

sys.exit(main())
