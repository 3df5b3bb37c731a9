"""The hint for an operator that the job no longer has names one that could go on with its state, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from builders.protocol_story import completed
from builders.restore_plans import job_spec, plan_of
from penstock.checkpoint.model import OperatorState
from penstock.checkpoint.state_columns import columns_of
from penstock.errors import IncompatibleStateError
from penstock.operators.state.declarations import state_layout
from penstock.storage import LocalStorage

KEY = pa.schema([("k", pa.string())])


class Count(ps.KeyedProcess):
    count = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class CountAndLargest(ps.KeyedProcess):
    count = ps.ValueState("long", default=0)
    largest = ps.ValueState("long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


class Seen(ps.KeyedProcess):
    seen = ps.MapState("string", "long")

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


def refusal(tmp_path: Path, stored: dict[str, Any], now: dict[str, Any]) -> str:
    """What is said when a job goes on from state of these operators."""
    columns = {uid: columns_of(state_layout(one, KEY)) for uid, one in stored.items()}
    operators = {
        uid: OperatorState(one.key, one.value, (), one.tables, schema=one.schema)
        for uid, one in columns.items()
    }
    checkpoint = msgspec.structs.replace(completed(7), operators=operators)
    layouts = {uid: state_layout(one, KEY) for uid, one in now.items()}
    with pytest.raises(IncompatibleStateError) as raised:
        plan_of(job_spec(LocalStorage(tmp_path), layouts=layouts), [checkpoint])
    return str(raised.value)


def test_an_operator_of_another_kind_is_not_named(tmp_path: Path) -> None:
    """Its state could not be read by it."""
    assert "rename" not in refusal(tmp_path, {"paid": Count()}, {"best": Seen()})
    said = refusal(tmp_path, {"paid": Count()}, {"best": Seen(), "payed": Count(), "other": Count()})
    assert "(other, payed are new: if it is the same one" in said
    assert "rename={'paid': 'payed'}" in said


def test_the_first_that_has_a_partner_is_named(tmp_path: Path) -> None:
    """Of several operators that are gone."""
    said = refusal(tmp_path, {"a": Seen(), "b": Count()}, {"c": Count()})
    assert "rename={'b': 'c'}" in said


def test_one_that_was_renamed_and_changed_at_once_is_named(tmp_path: Path) -> None:
    """Where nothing is lost; one whose state is the same is more likely."""
    assert "rename={'paid': 'sums'}" in refusal(
        tmp_path, {"paid": Count()}, {"sums": CountAndLargest(), "best": Seen()}
    )
    assert "rename={'paid': 'best'}" in refusal(
        tmp_path, {"paid": Count()}, {"pai": CountAndLargest(), "best": Count()}
    )
