"""Run every benchmark beside its peer, in one run; print the ratios and leave them in results/latest.json and in the pages.

make bench                                         # all of it, about an hour and a half
make bench ARGS='--quick'                          # all of it with little data, to see that it works; writes nothing
make bench ARGS='--only small_batch_overhead'      # one figure; writes nothing
make bench ARGS='--only state_scale --write'       # one figure again, in the place of its old numbers; the others stay
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import floors
import jobs
import latency
import map_jobs
import report
import small_batch
import time_to_live
import timer_jobs
from bench import CORES, Bench, SkippedError
from figures import MEASUREMENTS, Measurement
from goals import FIGURES
from pyspark import __version__ as spark_version
from pyspark import cloudpickle
from rich.console import Console

import penstock as ps


def main() -> int:
    """Measure, print, write."""
    options = _options()
    compileall.compile_dir(Path(ps.__file__).parent, quiet=1)  # as an installed package is
    for module in (jobs, map_jobs, latency, small_batch, floors, time_to_live, timer_jobs):
        cloudpickle.register_pickle_by_value(module)
    console = Console()
    bench = Bench(console, quick=options.quick)
    wanted = options.only or list(FIGURES)
    figures: dict[str, Any] = {}
    for measurement in MEASUREMENTS:
        if any(figure.name in wanted for figure in measurement.figures):
            figures |= _measured(bench, measurement)
    bench.fresh_session()
    little = ", little data: the ratios say nothing" if options.quick else ""
    console.print(report.terminal(figures, f"Penstock beside its peers, one run{little}"))
    if not options.quick and (options.write or not options.only):
        report.write(_results(report.replaced(figures) if options.only else figures))
        console.print(f"written to {report.RESULTS.relative_to(report.ROOT)} and the pages")
    return _exit_code(console, figures, goals_count=not options.quick)


def _options() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--only", choices=list(FIGURES), action="append", help="this figure; can be given several times"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="little data: a few minutes, and ratios that say nothing"
    )
    arguments.add_argument(
        "--write", action="store_true", help="with --only: put these figures in the place of their old ones"
    )
    return arguments.parse_args()


def _measured(bench: Bench, measurement: Measurement) -> dict[str, Any]:
    """The figures of one measurement; one that fails says why, and the others go on."""
    names = [figure.name for figure in measurement.figures]
    bench.console.print(f"measuring {', '.join(names)}")
    bench.fresh_session()
    before = os.getloadavg()[0]
    try:
        found = measurement.run(bench)
    except SkippedError as reason:
        found = {name: {"skipped": str(reason)} for name in names}
    except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are still worth having
        traceback.print_exc()
        found = {
            name: {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"} for name in names
        }
    when = {"when": datetime.now(UTC).isoformat(timespec="seconds")}
    loads = {**when, "load_before": round(before, 2), "load_after": round(os.getloadavg()[0], 2)}
    return {
        figure.name: _judged({"what": figure.what, "goal": figure.goal, **found[figure.name], **loads})
        for figure in measurement.figures
    }


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    if "ratio" not in found:
        return {**found, "met": False}
    return {**found, "met": report.met(found["goal"], found["ratio"])}


def _results(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "spark": spark_version,
        "penstock": ps.__version__,
        "cores": CORES,
        "figures": figures,
    }


def _exit_code(console: Console, figures: dict[str, Any], *, goals_count: bool) -> int:
    failed = [name for name, found in figures.items() if "failed" in found]
    missed = [name for name, found in figures.items() if "ratio" in found and not found["met"]]
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    if missed and goals_count:
        console.print(f"goal not met: {', '.join(missed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
