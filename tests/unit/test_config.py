"""Settings: what is understood, what is refused, and whether the refusal helps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Checkpointing, Mode, OnCancel, choice, seconds, whole_number
from penstock.errors import ConfigError
from penstock.job import Job


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500ms", 0.5),
        ("10s", 10.0),
        ("10 seconds", 10.0),
        ("1 minute", 60.0),
        ("10 sec", 10.0),
        (" 1.5 min ", 90.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        (timedelta(minutes=3), 180.0),
    ],
)
def test_durations(value: object, expected: float) -> None:
    """A number with a unit and a timedelta are understood."""
    assert seconds("checkpoint.interval", value) == pytest.approx(expected)


@pytest.mark.parametrize("value", [10, 1.5, None, "10", "s", "-1s", "1 fortnight", "1s 2s", "1e3s", ""])
def test_not_a_duration(value: object) -> None:
    """Anything else is refused with the name, the value and examples."""
    with pytest.raises(ConfigError, match=r"checkpoint\.timeout=.*not a duration.*'10s'") as refused:
        seconds("checkpoint.timeout", value)
    assert refused.value.facts == {"setting": "checkpoint.timeout", "value": value}


def test_too_short_durations() -> None:
    """A bound is part of the refusal; an exclusive bound excludes itself."""
    assert seconds("x", "1s", minimum_s=1.0) == 1.0
    with pytest.raises(ConfigError, match="at least 1 s"):
        seconds("x", "999ms", minimum_s=1.0)
    with pytest.raises(ConfigError, match="more than 0 s"):
        seconds("x", "0s", exclusive=True)
    with pytest.raises(ConfigError, match="too short"):
        seconds("x", timedelta(seconds=-1))


@pytest.mark.parametrize("value", [0, 9, True, 1.0, "1", None])
def test_whole_numbers_that_are_refused(value: object) -> None:
    """Out of bounds, a boolean and anything that is not an int are refused with the bounds."""
    with pytest.raises(ConfigError, match=r"x=.*a whole number from 1 to 8"):
        whole_number("x", value, minimum=1, maximum=8)


def test_whole_numbers() -> None:
    """The bounds themselves are allowed; without an upper bound the refusal says so."""
    assert [whole_number("x", value, minimum=1, maximum=8) for value in (1, 8)] == [1, 8]
    with pytest.raises(ConfigError, match="from 0 up"):
        whole_number("x", -1, minimum=0)


def test_choices() -> None:
    """A member, its name and its value are understood; anything else is refused with the list of names."""
    assert {choice("mode", value, Mode) for value in (Mode.AT_MOST_ONCE, "AT_MOST_ONCE", "at-most-once")} == {
        Mode.AT_MOST_ONCE
    }
    with pytest.raises(ConfigError, match=r"mode='twice'.*'exactly-once', 'at-least-once', 'at-most-once'"):
        choice("mode", "twice", Mode)
    with pytest.raises(ConfigError, match="unknown"):
        choice("mode", ["EXACTLY_ONCE"], Mode)


def test_defaults() -> None:
    """Unset, the settings are Flink's, with an interval of 10 s."""
    settings = Checkpointing()
    assert (settings.interval_s, settings.timeout_s, settings.min_pause_s) == (10.0, 600.0, 0.0)
    assert (settings.max_concurrent, settings.tolerable_failures, settings.retained) == (1, 0, 1)
    assert settings.delivery_mode is Mode.EXACTLY_ONCE
    assert settings.on_cancel is OnCancel.RETAIN_ON_CANCELLATION


def test_mode_by_name() -> None:
    """A mode given as text becomes the member."""
    settings = Checkpointing(mode="at-least-once", on_cancel="DELETE_ON_CANCELLATION")
    assert settings.mode is settings.delivery_mode is Mode.AT_LEAST_ONCE
    assert settings.on_cancel is OnCancel.DELETE_ON_CANCELLATION


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("interval", "0s"),
        ("timeout", "99ms"),
        ("min_pause", "soon"),
        ("max_concurrent", 0),
        ("tolerable_failures", -1),
        ("retained", 0),
        ("mode", "sometimes"),
        ("on_cancel", "burn"),
    ],
)
def test_refused_settings(setting: str, value: Any) -> None:
    """Every setting refuses what cannot work, by its full name, when it is given."""
    with pytest.raises(ConfigError, match=rf"checkpoint\.{setting}={value!r}"):
        Checkpointing(**{setting: value})


@pytest.mark.parametrize("storage", ["", "  ", None, 7])
def test_a_job_without_a_storage(storage: object) -> None:
    """A storage that is empty or no text is refused by value; it would be the root of the machine."""
    with pytest.raises(ConfigError, match=f"storage is {storage!r}: give a path"):
        Job("views", storage=storage)  # type: ignore[arg-type]


@pytest.mark.parametrize("drop_state", ["views", ("",), (7,), 7])
def test_what_is_no_list_of_operators(drop_state: object, tmp_path: Path) -> None:
    """A word is taken for no list of letters, and what cannot be a uid is refused, before anything starts."""
    with pytest.raises(ConfigError, match=r"drop_state=.* is not allowed"):
        Job("views", storage=tmp_path).start(drop_state=drop_state)  # type: ignore[arg-type]
