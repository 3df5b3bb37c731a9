"""The time of a batch in another checkout and in this one, in turns, in one run.

python benchmarks/compare.py ../before                      # all kinds, three rounds, about a quarter of an hour
python benchmarks/compare.py ../before --only window --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

KINDS = ("process", "aggregate", "window", "join", "timers")
ROWS, KEYS, BATCHES, WARM_UP = 200_000, 80_000, 10, 4
HERE = Path(__file__).resolve()


def main() -> int:
    """Measure each kind in both checkouts, and print the ratios."""
    options = _options()
    if options.measure:
        print(json.dumps(_measured(options.measure)))
        return 0
    trees = {"before": options.other.resolve(), "now": HERE.parents[1]}
    for kind in options.only or KINDS:
        seconds: dict[str, list[float]] = {name: [] for name in trees}
        for number in range(options.rounds):
            turn = list(trees) if number % 2 == 0 else list(reversed(trees))
            for name in turn:
                seconds[name] += _child(trees[name], kind)
        before, now = (statistics.median(seconds[name]) for name in trees)
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
        print(
            f"{kind:10} before {before:.3f} s, now {now:.3f} s, ratio {now / before:.3f}, load {load}",
            flush=True,
        )
    return 0


def _options() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("other", type=Path, help="the other checkout")
    arguments.add_argument("--only", choices=KINDS, action="append", help="this kind of operator")
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each checkout")
    arguments.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    return arguments.parse_args()


def _child(tree: Path, kind: str) -> list[float]:
    """The seconds of the batches, from a process that imports both the package and the benchmarks of a checkout."""
    path = os.pathsep.join(str(tree / part) for part in ("src", "benchmarks"))
    command = [sys.executable, "-P", str(HERE), ".", "--measure", kind]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(kind: str) -> list[float]:
    import jobs
    import timer_jobs
    import two_inputs
    import windows
    from bench import Bench
    from data import Clicks, Visits
    from pyspark import cloudpickle
    from rich.console import Console

    for module in (jobs, timer_jobs):
        cloudpickle.register_pickle_by_value(module)
    bench = Bench(Console(stderr=True), quick=False)
    with bench.scratch() as root:
        if kind == "join":
            import numpy as np

            orders = two_inputs.TimedRows(root / "orders", "at", "item")
            payments = two_inputs.TimedRows(root / "payments", "paid_at", "amount")
            two_inputs._add_orders_and_payments(orders, payments, ROWS // 2, np.random.default_rng(7))  # noqa: SLF001 - earlier checkouts call it so
            job = two_inputs.PenstockTwo(root, orders, payments)
        elif kind == "window":
            visits = Visits(root, seconds_a_batch=60 // windows.BATCHES_A_WINDOW)
            visits.uniform(ROWS, KEYS, batches=BATCHES)
            time = {"event_time": "at", "out_of_order": "10s"}
            job = jobs.PenstockJob(visits, root, windows.by_window, time=time)
        else:
            clicks = Clicks(root)
            clicks.uniform(ROWS, KEYS, batches=BATCHES)
            counts = {
                "process": jobs.by_process,
                "aggregate": jobs.by_aggregate,
                "timers": timer_jobs.by_timer,
            }
            job = jobs.PenstockJob(clicks, root, counts[kind])
        return bench.run(kind, job, batches=BATCHES).seconds[WARM_UP:]


if __name__ == "__main__":
    sys.exit(main())
