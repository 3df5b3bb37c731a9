"""Runs an operator, of either kind, over batches of rows with state in files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.ids import SubtaskId
from penstock.operators.process.columns import BatchProcess, run_batch_process
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.process.run_keyed import run_process
from penstock.operators.process.user_code import Context
from penstock.operators.state.declarations import state_layout
from penstock.state.backends import FilesystemBackend
from penstock.state.backends.base import OpenState, Workplace
from penstock.state.keys import SORT_KEY
from penstock.storage import LocalStorage

CONTEXT = Context("op", 3, 0, 1)


class OperatorHarness:
    """The state goes on from call to call, whichever operator is run."""

    def __init__(self, root: Path, keys: list[str], output: pa.Schema) -> None:
        self.root = root
        self.keys = keys
        self.output = output
        self.handle = None
        self.layout = None
        self.versions = count()

    def run(self, operator: KeyedProcess | BatchProcess, table: pa.Table) -> pa.Table:
        """Run one batch; returns the results."""
        return self._run(
            operator, table, run_batch_process if isinstance(operator, BatchProcess) else run_process
        )

    def _run(
        self, operator: KeyedProcess | BatchProcess, table: pa.Table, run: Callable[..., Any]
    ) -> pa.Table:
        self.layout = state_layout(operator, pa.schema([table.schema.field(key) for key in self.keys]))
        state = self._open()
        table = table.append_column(SORT_KEY, self._sort_keys(table))
        results = run(operator, table, state, key_names=self.keys, output=self.output, context=CONTEXT)
        self.handle = state.freeze()
        return pa.Table.from_batches(results, self.output)

    def state(self) -> dict[tuple[object, ...], tuple[object, ...]]:
        """Everything that is stored, by key."""
        stored = {}
        for batch in self._open().scan():
            rows = [tuple(row.values()) for row in batch.drop_columns([SORT_KEY]).to_pylist()]
            stored |= {row[: len(self.keys)]: row[len(self.keys) :] for row in rows}
        return stored

    def _open(self) -> OpenState:
        stem = f"1-{next(self.versions)}-0-0"
        place = Workplace(LocalStorage(self.root), self.root, SubtaskId("op", 0), 1, 128, 0, stem)
        return FilesystemBackend().open(place, self.layout, self.handle)

    def _sort_keys(self, table: pa.Table) -> pa.Array:
        """Few different numbers, so that keys share them; equal keys have equal numbers."""
        rows = zip(*(table.column(key).to_pylist() for key in self.keys), strict=True)
        return pa.array(np.array([sum(repr(row).encode()) % 13 for row in rows], dtype=np.int64))
