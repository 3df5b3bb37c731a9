"""Steps and arguments that are not there: what is said instead of Python's own words."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

import penstock as ps
from penstock import keyed_streams, streams
from penstock.graph import Graph, Source, TimeSettings
from penstock.wrong_words import ARGUMENTS, STEPS

STREAM: Any = ps.types.Stream(
    Graph(), Source("rows", cast("Any", None), None, TimeSettings("at", 0, None, None))
)
KEYED: Any = STREAM.key_by("k")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "read": ps.Job.read,
    "window": ps.types.KeyedStream.window,
    "dedupe": ps.types.Stream.dedupe,
    "join": ps.types.Stream.join,
}


def kind(name: str) -> type:
    found: type = getattr(keyed_streams, name, None) or getattr(streams, name)
    return found


class Visits(ps.KeyedProcess):
    def process(self, key: Any, rows: ps.types.Rows, ctx: ps.types.Context) -> None: ...


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: STREAM.top(3, by="n", uid="t"), "stream.key_by('column').top(...)"),
        (
            lambda: STREAM.process(Visits(), schema="k string", uid="v"),
            "stream.key_by('column').process(...)",
        ),
        (lambda: STREAM.connect(STREAM).process(Visits()), "Call key_by first"),
        (lambda: STREAM.withWatermark("at", "10s"), "job.read(..., event_time='at', out_of_order='10s')"),
        (lambda: KEYED.dedupe(on="id", within="1h", uid="d"), "write it before key_by(...)"),
        (lambda: KEYED.write_to(None, uid="out"), "Put process, aggregate, top or window"),
        (lambda: KEYED.window(ps.windows.tumbling("1min")).late(), "window(...).aggregate(...).late()"),
        (lambda: KEYED.window(ps.windows.tumbling("1min"), allowed_lateness="1s"), "say lateness='30s'"),
        (
            lambda: KEYED.window(ps.windows.session("1min"), gap="1min"),
            "say window(ps.windows.session('30min'))",
        ),
        (lambda: KEYED.window(ps.windows.session("1min"), latenes="1s"), "did you mean 'lateness'?"),
        (lambda: KEYED.window(ps.windows.session("1min"), x=1), "there are lateness, early, event_time"),
        (lambda: STREAM.dedupe(on="id", ttl="1h", uid="d"), "say within='1h'"),
        (lambda: STREAM.join(STREAM, on="id", bounds=("0s", "1s"), uid="j"), "say within="),
        (lambda: cast("Any", ps.Job.read)(None, None, uid="r", watermark="1s"), "say event_time='at'"),
    ],
)
def test_what_to_write_instead(use: Callable[[], Any], said: str) -> None:
    """It is a mistake in the job, and the error has what to write."""
    with pytest.raises(ps.ConfigError, match=re.escape(said)):
        use()


def test_what_nobody_knows_is_no_attribute() -> None:
    """As of any object, with a name that is like it; and what Python itself looks for is simply not there."""
    with pytest.raises(AttributeError, match=r"a Stream has no 'tranform'; did you mean 'transform'\?$"):
        STREAM.tranform(None)
    with pytest.raises(AttributeError, match=r"a Stream has no 'zebra'$"):
        STREAM.zebra()
    assert copy.copy(STREAM).key_by("k")


def test_what_is_there_is_not_called_wrong() -> None:
    """A step or argument that comes to exist must leave the tables."""
    for name, words in STEPS.items():
        assert not [word for word in words if hasattr(kind(name), word)]
    assert ARGUMENTS.keys() == FUNCTIONS.keys()
    for name, words in ARGUMENTS.items():
        assert not words.keys() & inspect.signature(FUNCTIONS[name]).parameters.keys()
        with pytest.raises(ps.ConfigError):
            FUNCTIONS[name](None, **dict.fromkeys(words))
