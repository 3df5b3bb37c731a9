"""`penstock` as a program of tests whose supervisor gives what a program leaves behind less time; a script."""

from __future__ import annotations

from penstock.cli import main
from penstock.supervise import family

if __name__ == "__main__":
    family.GRACE_S = 0.3
    main()
