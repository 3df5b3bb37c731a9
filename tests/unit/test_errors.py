"""How errors are shown."""

from __future__ import annotations

import logging
import traceback

import pytest

from penstock.errors import ConfigError, InternalError, shown_alone


def failing(kind: type[Exception]) -> None:
    raise kind("what happened") from KeyError("deep inside")


def shown(kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        failing(kind)
    return "".join(traceback.format_exception(shown_alone(raised.value)))


def test_an_error_is_shown_alone() -> None:
    """Python prints neither the calls inside Penstock nor what led to it, which stays reachable."""
    assert shown(ConfigError) == "penstock.errors.ConfigError: what happened\n"
    with pytest.raises(ConfigError) as raised:
        failing(ConfigError)
    assert isinstance(shown_alone(shown_alone(raised.value)).__context__, KeyError)


def test_a_bug_is_shown_whole(caplog: pytest.LogCaptureFixture) -> None:
    """So is everything with the level DEBUG."""
    assert "deep inside" in shown(InternalError)
    assert "deep inside" in shown(KeyError)
    with caplog.at_level(logging.DEBUG, "penstock"):
        assert "deep inside" in shown(ConfigError)
