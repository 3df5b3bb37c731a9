"""The weakest link decides, and is named."""

from __future__ import annotations

import pytest

from penstock.config import Mode
from penstock.errors import ConfigError
from penstock.guarantee import SinkFacts, SourceFacts, derive
from penstock.sinks.two_phase_commit import Delivery

LOG = SourceFacts("clicks", "log", replayable=True)
SOCKET = SourceFacts("wire", "socket", replayable=False)
FILES = SinkFacts("files-out", "Files", Delivery.TRANSACTIONAL)
REDIS = SinkFacts("cache", "Redis", Delivery.IDEMPOTENT)
HTTP = SinkFacts("hook", "Webhook", Delivery.AT_LEAST_ONCE)


def test_nothing_limits() -> None:
    """A replayable source and transactional sinks: exactly once, end to end."""
    guarantee = derive(Mode.EXACTLY_ONCE, [LOG], [FILES])
    assert (guarantee.level, guarantee.limited_by) == (Mode.EXACTLY_ONCE, None)
    assert str(guarantee).startswith("exactly-once: sources replay")


def test_a_sink_without_transactions_limits() -> None:
    """One sink that may receive rows again makes the job at least once, and is named, wherever it stands."""
    guarantee = derive(Mode.EXACTLY_ONCE, [LOG], [FILES, REDIS, HTTP])
    assert (guarantee.level, guarantee.limited_by) == (Mode.AT_LEAST_ONCE, "hook")
    assert "'hook' (Webhook)" in guarantee.reason
    assert "state is exactly once" in guarantee.reason


def test_an_idempotent_sink_is_exact_with_a_note() -> None:
    """Writing by key ends up exact; the reason says what a reader may see for a moment."""
    guarantee = derive(Mode.EXACTLY_ONCE, [LOG], [FILES, REDIS])
    assert (guarantee.level, guarantee.limited_by) == (Mode.EXACTLY_ONCE, None)
    assert "'cache' (Redis)" in guarantee.reason
    assert "older value" in guarantee.reason


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE])
def test_the_mode_limits(mode: Mode) -> None:
    """A weaker mode than the parts could keep is the limit, and is named as a setting."""
    guarantee = derive(mode, [LOG], [FILES])
    assert (guarantee.level, guarantee.limited_by) == (mode, "checkpoint.mode")


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE])
def test_a_mode_that_a_source_cannot_keep_is_refused(mode: Mode) -> None:
    """A source that cannot go back refuses every mode that would need it to, and says what to do."""
    with pytest.raises(
        ConfigError, match=rf"{mode.value} cannot be kept: the source 'wire' \(socket\)"
    ) as refused:
        derive(mode, [LOG, SOCKET], [FILES])
    assert "AT_MOST_ONCE" in str(refused.value)
    assert refused.value.facts == {"source": "wire", "mode": mode.value}


def test_at_most_once_needs_no_replay() -> None:
    """A socket can be read at most once."""
    assert derive(Mode.AT_MOST_ONCE, [SOCKET], [FILES]).level is Mode.AT_MOST_ONCE


def test_a_sink_explains_itself() -> None:
    """What a sink says of itself replaces the usual words, and every sink with something to say is heard."""
    log = SinkFacts("log", "WriteAheadLog", Delivery.IDEMPOTENT, "hands rows over late")
    guarantee = derive(Mode.EXACTLY_ONCE, [LOG], [FILES, log, REDIS])
    assert (
        "the sink 'log' (WriteAheadLog) hands rows over late; the sink 'cache' (Redis) writes by key"
        in guarantee.reason
    )
    assert "files-out" not in guarantee.reason


def test_at_most_once_with_a_sink_that_repeats() -> None:
    """Rows that may be lost and may be written twice are promised nothing, and the sink that repeats them is named."""
    guarantee = derive(Mode.AT_MOST_ONCE, [SOCKET], [FILES, HTTP])
    assert (guarantee.level, guarantee.limited_by) == (None, "hook")
    assert str(guarantee).startswith("no guarantee: the mode is at-most-once")
    assert "goes to 'hook' (Webhook) may be written more than once" in guarantee.reason
    assert derive(Mode.AT_LEAST_ONCE, [LOG], [HTTP]).level is Mode.AT_LEAST_ONCE
