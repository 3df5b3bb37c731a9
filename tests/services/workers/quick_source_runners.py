"""Processes that ask a Python source for its offsets, as forks of one that has imported everything: `python -m quick_source_runners ADDRESS`.

Spark starts such a process with each query, and it imports PySpark, Arrow and Penstock, half a second every time. Here the process that
Spark starts hands its place to a fork (`hand_over`, called by `sitecustomize` before anything is imported) and only waits for its end.
The fork talks with Spark over the same socket, and ends when Spark closes it, as the process itself would.

Only for the session that the tests of a process share: a fork is in nobody's process group, so signals from a terminal do not reach it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys

IMPORTED = ("pyspark.sql.streaming.python_streaming_source_runner", "penstock.spark.log_source")
_STREAMS = (0, 1, 2)
_MOST_BYTES = 1 << 20


def hand_over(address: str) -> None:
    """Let a fork do the work of this process; returns only when there is nobody to make one."""
    with socket.socket(socket.AF_UNIX) as nursery:
        try:
            nursery.connect(address)
        except OSError:
            return
        order = json.dumps([os.getcwd(), dict(os.environ)]) + "\n"  # noqa: PTH109 - pathlib is slow to import
        socket.send_fds(nursery, [order.encode()], _STREAMS)
        nursery.recv(1)  # nothing comes: it ends with the fork
    os._exit(0)


def main() -> None:
    """Make forks until standard input ends, as it does with the test run, however that dies."""
    for module in IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.bind(sys.argv[1])
        nursery.listen()
        while sys.stdin not in select.select([nursery, sys.stdin], [], [])[0]:
            connection, _ = nursery.accept()
            with connection:
                _fork(connection)


def _fork(connection: socket.socket) -> None:
    order, streams, _, _ = socket.recv_fds(connection, _MOST_BYTES, len(_STREAMS))
    while not order.endswith(b"\n"):
        order += connection.recv(_MOST_BYTES)
    if os.fork() == 0:
        _work(streams, *json.loads(order))
    for stream in streams:
        os.close(stream)


def _work(streams: list[int], folder: str, environment: dict[str, str]) -> None:
    """Be the process that Spark has started."""
    from pyspark.sql.streaming import python_streaming_source_runner as runner

    failed = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for own, given in zip(_STREAMS, streams, strict=True):
            os.dup2(given, own)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        path = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [entry for entry in path if entry and entry not in sys.path]
        with runner.get_sock_file_to_executor(timeout=None) as spark:
            runner.main(spark, spark)
        failed = 0
    except Exception:  # noqa: BLE001 - shown as it would be
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(failed)


if __name__ == "__main__":
    main()
