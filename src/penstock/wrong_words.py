"""Words that streams do not have and people try: steps in the wrong order, and names from Flink or Spark. Driver.

Python would say that there is no such attribute or argument. This says what to write instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.errors import ConfigError
from penstock.wording import did_you_mean

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _all(names: str, instead: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), instead)


_WATERMARK = "event time is said of a source: job.read(..., event_time='at', out_of_order='10s')"
_LATENESS = "say window(..., lateness='30s'); out_of_order='10s' is how much older rows may be than the newest of their partition"
_OUT_OF_ORDER = "say out_of_order='10s': rows may be so much older than the newest of their partition"
_AGGREGATE = "it is aggregate(n=F.count('*'), uid='n')"
_BEFORE_KEY = "write it before key_by(...)"

STEPS: Mapping[str, Mapping[str, str]] = {
    "Stream": {
        "top": "it is done key by key. Call key_by first: stream.key_by('column').top(...)",
        **_all("groupBy group_by keyBy", "rows belong together by key_by('column')"),
        **_all("filter map select where withColumn", "SQL is transform(lambda rows: rows.where(...))"),
        **_all("withWatermark assign_timestamps_and_watermarks", _WATERMARK),
        **_all(
            "dropDuplicates dropDuplicatesWithinWatermark", "it is dedupe(on='id', within='1h', uid='once')"
        ),
        **_all("add_sink sink_to writeStream", "a stream ends in write_to(sink, uid='out')"),
        "get_side_output": "it is side('name')",
        "interval_join": "it is join(other, on='id', within=('-5min', '10min'), uid='joined')",
    },
    "KeyedStream": {
        **_all(
            "bad_records late side write_to",
            "rows with a key are no results yet. Put process, aggregate, top or window(...).aggregate(...) before it",
        ),
        **_all("broadcast transform union", _BEFORE_KEY),
        **_all(
            "dedupe interval_join join lookup", f"joins and dedupe find the key by on='id'; {_BEFORE_KEY}"
        ),
        **_all("count max min reduce sum", _AGGREGATE),
        **_all("session sliding tumbling", "say window(ps.windows.tumbling('1min')).aggregate(...)"),
    },
    "ConnectedStreams": {
        "process": "rows of both streams meet by key. Call key_by first: left.connect(right).key_by('id').process(...)"
    },
    "WindowedStream": {
        "allowed_lateness": "say window(..., lateness='30s')",
        "apply": "own code over the rows of a window is process(...), with a WindowProcess",
        **_all("late side_output_late_data", "ask it of the results: window(...).aggregate(...).late()"),
        **_all("count max min reduce sum", _AGGREGATE),
        "top": "rank the results: window(...).aggregate(...).key_by('window_start').top(...)",
        "trigger": "say window(..., early='10s') for results before a window closes",
        **_all(
            "transform write_to", "windows are no results yet. Put aggregate(...) or process(...) before it"
        ),
    },
    "BroadcastStream": {
        "process": "give it to a stream: stream.connect(rules.broadcast()).process(...)",
    },
}
"""By kind of stream: what to write instead of a step that it does not have."""

ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "read": {
        **_all("allowed_lateness lateness", _LATENESS),
        **_all("delay max_out_of_orderness", _OUT_OF_ORDER),
        **_all("idle_timeout idleness", "say idle_after='1min'"),
        **_all("timestamp watermark", "say event_time='at', and out_of_order='10s'"),
    },
    "window": {
        "allowed_lateness": "say lateness='30s'",
        "gap": "say window(ps.windows.session('30min'))",
        "size": "say window(ps.windows.tumbling('1min'))",
        **_all("every slide step", "say window(ps.windows.sliding('10min', '1min'))"),
        "trigger": "say early='10s' for results before a window closes",
        **_all("out_of_order watermark", _WATERMARK),
        "uid": "it is said behind it: window(...).aggregate(..., uid='counts')",
    },
    "dedupe": {
        **_all("keys subset", "say on='id'"),
        **_all(
            "ttl window", "say within='1h': the same value passes again when it is so far away in event time"
        ),
        **_all("lateness watermark", _WATERMARK),
    },
    "join": {
        **_all(
            "between bounds",
            "say within=('-5min', '10min'): where the right row lies, seen from the left one",
        ),
        **_all("lateness watermark", _WATERMARK),
    },
}
"""By function: what to write instead of an argument that it does not have."""


class Steps:
    """A part of a job whose next steps are methods."""

    if not TYPE_CHECKING:  # type checkers are to find what is not there, too

        def __getattr__(self, name: str) -> object:
            """Called for what is not there."""
            kind = type(self).__name__
            instead = STEPS.get(kind, {}).get(name)
            if instead is not None:
                raise ConfigError(f"a {kind} has no {name}(...): {instead}", step=name)
            guess = did_you_mean(name, [one for one in dir(type(self)) if not one.startswith("_")])
            raise AttributeError(f"a {kind} has no {name!r}{guess and f'; {guess}'}", name=name, obj=self)


def checked_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function. An argument that it does not have is a `ConfigError` that says what to write instead."""
    parameters = inspect.signature(function).parameters
    known = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*args: _P.args, **given: _P.kwargs) -> _R:
        for name in given:
            if name not in parameters:
                raise ConfigError(_no_argument(function.__name__, name, known), argument=name)
        return function(*args, **given)

    return checked


def _no_argument(function: str, name: str, known: Sequence[str]) -> str:
    instead = ARGUMENTS.get(function, {}).get(name)
    instead = instead or did_you_mean(name, known) or f"there are {', '.join(known)}"
    return f"{function}(...) has no argument {name!r}: {instead}"
