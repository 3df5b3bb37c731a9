"""Penstock and plain Spark over the same events in turns: CPU seconds of all processes, wall seconds, and results that must be DuckDB's.

python -m benchmarks.nexmark                                    # every query, batches of 50,000 events
python -m benchmarks.nexmark q5 q8 --size 500000 --rounds 2     # two of them, with large batches
python -m benchmarks.nexmark q8 --only penstock --profile       # what a batch of Penstock consists of
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from bench import Bench, SkippedError
from goals import NEXMARK, NEXMARK_OWN_CODE
from measure import Found
from pyspark import cloudpickle
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nexmark import penstock_jobs, spark_queries
from nexmark.batch_profile import Profile
from nexmark.cost import Cost, steady_cost
from nexmark.duckdb_answers import Judge
from nexmark.events import Events
from nexmark.penstock_jobs import PenstockJob
from nexmark.spark_queries import SparkQuery

WIDTH = 170
"""Of the tables, where no terminal says its own."""
SIDES = {"penstock": PenstockJob, "spark": SparkQuery}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    events: int = 50_000
    """Of a batch."""
    batches: int = 12
    warm_up: int = 4
    """Batches of a run that do not count."""
    rounds: int = 3
    """Runs of each side that count, after one that does not."""
    a_second: int = 10_000
    """Events of a second of event time."""


@dataclass
class Comparison:
    """The costs of a batch in each round, by side."""

    query: str
    costs: dict[str, list[Cost]] = field(default_factory=dict)
    rows: int = 0
    """Of the right result."""

    def median(self, side: str, what: str) -> float:
        """The median seconds of a batch."""
        seconds: list[float] = [getattr(cost, what) for cost in self.costs[side]]
        return statistics.median(seconds)

    def ratio(self, what: str) -> float:
        """Spark over Penstock."""
        return self.median("spark", what) / self.median("penstock", what)

    def found(self, what: str) -> Found:
        """As a figure."""
        seconds = {f"{side}_s": self.median(side, what) for side in self.costs}
        return {**seconds, "ratio": self.ratio(what), "result_rows": self.rows}


class Nexmark:
    """Events in a folder, and the queries over them."""

    def __init__(self, bench: Bench, root: Path, size: Size) -> None:
        self._bench, self._root, self._size = bench, root, size
        self._events = Events(root / "events", size.a_second)
        self._events.write(size.events, size.batches)
        self._judge = Judge(self._events)

    def compare(self, query: str, sides: Sequence[str] = tuple(SIDES)) -> Comparison:
        """Each side in turns, the first round left out. Raises `WrongResultError` if a result is not DuckDB's."""
        found = Comparison(query, {side: [] for side in sides})
        for number in range(1 + self._size.rounds):
            for side in sides if number % 2 else reversed(sides):
                what = f"{query}, {side}, round {number} of {self._size.rounds}"
                self._bench.console.print(f"  {what}", highlight=False)
                cost = self._cost(query, side, found)
                if number > 0:
                    found.costs[side].append(cost)
        return found

    def profile(self, query: str) -> Profile:
        """Penstock's batches, in detail, after a run that warms up."""
        for profile in (None, Profile()):
            with profile.collecting() if profile is not None else nullcontext():
                self._run(query, "penstock")
        assert profile is not None
        return profile

    def _cost(self, query: str, side: str, found: Comparison) -> Cost:
        with steady_cost(self._bench.spark, after=self._size.warm_up, until=self._size.batches) as steady:
            found.rows = self._run(query, side)
        return steady.of_a_batch()

    def _run(self, query: str, side: str) -> int:
        """A run from nothing, whose results are compared; returns how many there are."""
        root = self._root / side
        shutil.rmtree(root, ignore_errors=True)
        job = SIDES[side](query, self._events, root)
        job.run(self._bench.spark)
        return self._judge.check(query, job.results, by_spark=side == "spark")


compared: dict[str, Comparison] = {}
"""What `figures` has found, for the geometric mean."""


def figures(bench: Bench, query: str) -> dict[str, Found]:
    """CPU and wall seconds of a batch of 50,000 events, Spark over Penstock."""
    size = bench.size(Size(), Size(events=2_000, batches=4, warm_up=2, rounds=1, a_second=200))
    by_value()
    with bench.scratch() as root:
        found = compared[query] = Nexmark(bench, root, size).compare(query)
    return {f"nexmark_{query}_{kind}_vs_spark": found.found(f"{kind}_s") for kind in ("cpu", "wall")}


def means(_: Bench) -> dict[str, Found]:
    """The geometric means over the queries that Spark's SQL can express."""
    wanted = NEXMARK.keys() - NEXMARK_OWN_CODE
    if not wanted <= compared.keys():
        raise SkippedError("the geometric mean needs all queries in the same run")
    queries = [compared[query] for query in wanted]
    return {
        f"nexmark_{kind}_vs_spark": {"ratio": geometric_mean(f"{kind}_s", queries)}
        for kind in ("cpu", "wall")
    }


def geometric_mean(what: str, queries: Iterable[Comparison]) -> float:
    """Of the ratios of these queries."""
    return math.exp(statistics.mean(math.log(query.ratio(what)) for query in queries))


def by_value() -> None:
    """Workers do not have this folder."""
    for module in (penstock_jobs, spark_queries):
        cloudpickle.register_pickle_by_value(module)


def main() -> int:
    """Measure what is asked for, and print it."""
    options = _options()
    by_value()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    bench = Bench(console, quick=False)
    size = Size(options.size, options.batches, options.warm_up, options.rounds, options.events_a_second)
    sides = (options.only,) if options.only else tuple(SIDES)
    with bench.scratch() as root:
        nexmark = Nexmark(bench, root, size)
        if options.profile:
            for query in options.queries:
                title = f"{query}: batches of {size.events:,} events, load {_load()}"
                for table in nexmark.profile(query).tables(title, size.warm_up):
                    console.print(table)
            return 0
        loaded = list(_compared(console, nexmark, options.queries, sides))
    if loaded:
        console.print(_table(loaded, sides, size))
    return 0 if len(loaded) == len(options.queries) else 1


def _compared(
    console: Console, nexmark: Nexmark, queries: Iterable[str], sides: Sequence[str]
) -> Iterator[tuple[Comparison, str]]:
    """The queries with right results, each with the load of the machine after it. A failure is shown, and the others go on."""
    for query in queries:
        try:
            found, load = nexmark.compare(query, sides), _load()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other queries are still worth having
            console.print(f"[bold red]FAILED[/]: {query}: {type(error).__name__}: {escape(str(error))}")
            continue
        costs = (
            f"{side} CPU {found.median(side, 'cpu_s'):.2f} s, wall {found.median(side, 'wall_s'):.2f} s"
            for side in sides
        )
        console.print(f"{query}: {'; '.join(costs)}; load {load}", highlight=False)
        yield found, load


def _options() -> argparse.Namespace:
    size = Size()
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(penstock_jobs.QUERIES)
    arguments.add_argument("queries", nargs="*", metavar="QUERY", help=f"of {', '.join(known)}; all of them")
    arguments.add_argument("--size", type=int, default=size.events, help="events of a batch")
    arguments.add_argument("--batches", type=int, default=size.batches, help="batches of a run")
    arguments.add_argument(
        "--warm-up", type=int, default=size.warm_up, help="batches of a run that do not count"
    )
    arguments.add_argument("--rounds", type=int, default=size.rounds, help="runs of each side that count")
    arguments.add_argument(
        "--events-a-second", type=int, default=size.a_second, help="events of a second of event time"
    )
    arguments.add_argument("--only", choices=list(SIDES), help="only this side")
    arguments.add_argument(
        "--profile", action="store_true", help="Penstock's batches one by one: calls over py4j, compilations"
    )
    options = arguments.parse_args()
    unknown = sorted(set(options.queries) - set(known))
    if unknown:
        arguments.error(f"no such query: {', '.join(unknown)}; there are {', '.join(known)}")
    options.queries = options.queries or known
    return options


def _table(loaded: list[tuple[Comparison, str]], sides: Sequence[str], size: Size) -> Table:
    table = Table(
        title=f"Nexmark, seconds of a batch of {size.events:,} events, median of {size.rounds} rounds"
    )
    both = len(sides) > 1
    kinds = {"cpu_s": "CPU", "wall_s": "wall"}
    names = [f"{side} {kind}" for kind in kinds.values() for side in (*sides, *(["ratio"] if both else []))]
    for name in ("query", *names, "result rows", "load"):
        table.add_column(name, justify="right")
    for found, load in loaded:
        cells = [
            cell
            for kind in kinds
            for cell in (
                *(f"{found.median(side, kind):.2f}" for side in sides),
                *([f"{found.ratio(kind):.2f}"] if both else []),
            )
        ]
        table.add_row(found.query, *cells, f"{found.rows:,}", load)
    if both:
        comparisons = [found for found, _ in loaded]
        means = [f"{geometric_mean(kind, comparisons):.2f}" for kind in kinds]
        table.add_section()
        table.add_row("geometric mean", "", "", means[0], "", "", means[1], "", "")
    return table


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"
