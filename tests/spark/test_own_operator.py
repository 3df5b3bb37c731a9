"""An operator that is not part of Penstock: its class, its spec, its task and its Spark side are all in this file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ledger import Ledger

import penstock as ps
from penstock.errors import ConfigError
from penstock.operators.base import Node, Operator, Spec, Task, TaskContext
from penstock.operators.grouping import group_rows
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.ownership.claim import read_descents
from penstock.recovery.history import read_history
from penstock.savepoint.create import create_savepoint
from penstock.spark.dead_letters import all_nullable
from penstock.spark.operators.base import CompiledOperator, OperatorInput, compiled
from penstock.spark.operators.registry import register
from penstock.state.backends.base import OpenState, StateLayout
from penstock.storage import LocalStorage

pytestmark = pytest.mark.spark


# ── the operator ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Few(Operator):
    """Lets the first `n` rows of each key pass."""

    n: int

    def describe(self) -> str:
        return f"the first {self.n}"


@dataclass(frozen=True)
class FewSpec(Spec):
    columns: pa.Schema
    key: pa.Schema
    n: int

    def layout(self) -> StateLayout:
        return StateLayout(self.key, pa.schema([("passed", pa.int64())]))

    @property
    def output(self) -> pa.Schema:
        return self.columns

    def task(self, context: TaskContext) -> Task:
        return FewTask(context, self)


@dataclass
class FewTask(Task):
    spec: FewSpec

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        grouped = group_rows(rows.own, list(self.context.keys))
        stored, _ = state.read(grouped.keys)
        passed = stored.column("passed").fill_null(0).to_numpy()
        counts = np.diff(grouped.starts)
        number = np.arange(grouped.table.num_rows) - np.repeat(grouped.starts[:-1] - passed, counts)
        totals = pa.array(np.minimum(passed + counts, self.spec.n))
        state.write(grouped.keys, pa.RecordBatch.from_arrays([totals], schema=self.spec.layout().value))
        results = grouped.table.filter(pa.array(number < self.spec.n)).cast(self.spec.output)
        return {RESULTS: results.to_batches()}


def compile_few(node: Few, given: OperatorInput) -> CompiledOperator:
    """Its Spark side: rows go to tasks as they are."""
    spec = FewSpec(given.columns, given.key, node.n)
    return compiled(given, spec, all_nullable(given.frame.schema))


register(Few, compile_few)


# ── in jobs ────────────────────────────────────────────────────────────────────────────────────────


def run(spark: Any, ledger: Ledger, job: ps.Job, out: str, **start: Any) -> None:
    def few(upstream: Node) -> Few:
        return Few("few", upstream, ("app",), 3)

    stream = job.read(ledger.log.read(spark), uid="clicks").apply(few, on_bad_record="skip")
    stream.write_to(ledger.files(out), uid="out")
    job.run(available_now=True, **start)


def seen(ledger: Ledger, out: str) -> Counter[str]:
    return Counter(row["app"] for row in ledger.rows(out))


def append(ledger: Ledger, **rows: int) -> None:
    for app, count in rows.items():
        ledger.append(0, app, count)


def test_an_operator_from_outside_keeps_its_state(spark: Any, tmp_path: Path) -> None:
    """It goes on where it was after a restart at another parallelism, and in another job that starts from a savepoint of the first."""
    ledger = Ledger(tmp_path)
    append(ledger, a=1, b=5)
    run(spark, ledger, ledger.job(parallelism=2), "files")
    assert seen(ledger, "files") == {"a": 1, "b": 3}

    append(ledger, a=1, b=2, c=1)
    run(spark, ledger, ledger.job(parallelism=3), "files")
    assert seen(ledger, "files") == {"a": 2, "b": 3, "c": 1}

    storage, to = LocalStorage(tmp_path / "store" / "pv"), LocalStorage(tmp_path / "saved")
    newest = read_history(storage, read_descents(storage)).whole[-1]
    create_savepoint(storage, newest, to, token="saved")
    append(ledger, a=4, b=4, c=4, d=4)
    fork = ledger.job("fork", backend="memory", parallelism=1)
    run(spark, ledger, fork, "fork", savepoint=tmp_path / "saved")
    assert seen(ledger, "fork") == {"a": 1, "c": 2, "d": 3}


def test_an_operator_that_nobody_registered(spark: Any, tmp_path: Path) -> None:
    """The start says which call is missing."""

    @dataclass(frozen=True, eq=False)
    class Unknown(Operator):
        def describe(self) -> str:
            return "unknown"

    ledger = Ledger(tmp_path)
    job = ledger.job()
    stream = job.read(ledger.log.read(spark), uid="clicks")
    stream.apply(lambda upstream: Unknown("which", upstream, ("app",))).write_to(ledger.files(), uid="out")
    with pytest.raises(ConfigError, match=r"register\(Unknown, \.\.\.\)"):
        job.run(available_now=True)
