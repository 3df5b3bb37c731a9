"""PySpark's daemon with what every worker imports already there: `python -m quick_daemon WORKER_MODULE`, named to Spark by `quick_spark`.

Workers are forks of it. PySpark lets each of them import by itself, a second every time, because imports may start threads, which
do not survive a fork. So here they are kept from it, and a daemon that has another thread all the same becomes PySpark's own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from pathlib import Path

from pyspark import daemon

THREADLESS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What numpy and Arrow's allocator read when they are imported; user code does not see it."""
IMPORTED = ("pandas", "penstock.spark.tasks", "penstock.spark.log_source")


def main() -> None:
    worker = sys.argv[1]
    hidden = {name: value for name, value in THREADLESS.items() if name not in os.environ}
    os.environ.update(hidden)
    for module in (worker, *IMPORTED):
        importlib.import_module(module)
    for name in hidden:
        del os.environ[name]
    if _threads() > 1:
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", worker])
    gc.collect()
    gc.freeze()  # a worker collects garbage after each task: not all of this again
    daemon.manager()


def _threads() -> int:
    """Those of libraries too, where the system tells."""
    with contextlib.suppress(OSError):
        return len(list(Path("/proc/self/task").iterdir()))
    return threading.active_count()


if __name__ == "__main__":
    main()
