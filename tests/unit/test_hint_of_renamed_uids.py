"""The hint for an operator that the job no longer has names one that could go on with its state, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import IncompatibleStateError
from penstock.operators.states import state_layout
from penstock.recovery.fit import Fit
from penstock.recovery.lifetimes import columns_of

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


def refusal(stored: dict[str, Any], now: dict[str, Any]) -> str:
    """What is said when a job goes on from state of these operators."""
    operators = {
        uid: SimpleNamespace(columns=columns_of(state_layout(one, KEY)), handles=(), lifetimes={})
        for uid, one in stored.items()
    }
    point = cast("Any", SimpleNamespace(id=7, checkpoint=SimpleNamespace(operators=operators, dropped=())))
    fit = Fit(point, {uid: state_layout(one, KEY) for uid, one in now.items()}, 1, "filesystem")
    with pytest.raises(IncompatibleStateError) as raised:
        fit.handles(())
    return str(raised.value)


def test_an_operator_of_another_kind_is_not_named() -> None:
    """Its state could not be read by it."""
    assert "rename" not in refusal({"paid": Count()}, {"best": Seen()})
    said = refusal({"paid": Count()}, {"best": Seen(), "payed": Count(), "other": Count()})
    assert "(other, payed are new: if it is the same one" in said
    assert "rename={'paid': 'payed'}" in said


def test_the_first_that_has_a_partner_is_named() -> None:
    """Of several operators that are gone."""
    said = refusal({"a": Seen(), "b": Count()}, {"c": Count()})
    assert "rename={'b': 'c'}" in said


def test_one_that_was_renamed_and_changed_at_once_is_named() -> None:
    """Where nothing is lost; one whose state is the same is more likely."""
    assert "rename={'paid': 'sums'}" in refusal(
        {"paid": Count()}, {"sums": CountAndLargest(), "best": Seen()}
    )
    assert "rename={'paid': 'best'}" in refusal(
        {"paid": Count()}, {"pai": CountAndLargest(), "best": Count()}
    )
