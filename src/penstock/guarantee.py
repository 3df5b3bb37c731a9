"""What a job promises end to end: the weakest link decides, and is named. Pure; driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import Mode
from penstock.errors import ConfigError
from penstock.sinks.two_phase_commit import Delivery

_STRENGTH = [Mode.AT_MOST_ONCE, Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE]


@dataclass(frozen=True)
class SourceFacts:
    """What matters about a source: whether it can go back and deliver the same records again."""

    uid: str
    kind: str
    replayable: bool


@dataclass(frozen=True)
class SinkFacts:
    """What matters about a sink."""

    uid: str
    kind: str
    delivery: Delivery


@dataclass(frozen=True)
class Guarantee:
    """The promise from source to sink, the part that limits it (None when nothing does) and why."""

    level: Mode
    limited_by: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.level.value}: {self.reason}"


def derive(mode: Mode, sources: Sequence[SourceFacts], sinks: Sequence[SinkFacts]) -> Guarantee:
    """The end-to-end guarantee; refuses a mode that a source cannot keep."""
    for source in sources:
        if not source.replayable and mode is not Mode.AT_MOST_ONCE:
            raise ConfigError(
                f"mode {mode.value} cannot be kept: the source {source.uid!r} ({source.kind}) cannot go back to a position, so what "
                "was read and not yet in a checkpoint is lost when the job fails; use mode=AT_MOST_ONCE, or put a log such "
                "as Kafka in front",
                source=source.uid,
                mode=mode.value,
            )
    if mode is not Mode.EXACTLY_ONCE:
        return Guarantee(mode, "checkpoint.mode", _MODE_REASONS[mode])
    return _limited_by_sinks(sinks)


_MODE_REASONS = {
    Mode.AT_LEAST_ONCE: "the mode is at-least-once: after a failure records since the last checkpoint may count twice",
    Mode.AT_MOST_ONCE: "the mode is at-most-once: after a failure nothing is read again, so what was under way is lost",
}


def _limited_by_sinks(sinks: Sequence[SinkFacts]) -> Guarantee:
    for sink in sinks:
        if sink.delivery is Delivery.AT_LEAST_ONCE:
            return Guarantee(
                Mode.AT_LEAST_ONCE,
                sink.uid,
                f"state is exactly once, but the sink {sink.uid!r} ({sink.kind}) has no transactions: after a failure it may "
                "receive rows again",
            )
    for sink in sinks:
        if sink.delivery is Delivery.IDEMPOTENT:
            return Guarantee(
                Mode.EXACTLY_ONCE,
                None,
                f"sources replay, state is exactly once, and the sink {sink.uid!r} ({sink.kind}) writes by key: rows written again "
                "change nothing, though a reader may for a moment see an older value after a recovery",
            )
    return Guarantee(
        Mode.EXACTLY_ONCE,
        None,
        "sources replay, state is exactly once, and every sink commits with the checkpoint",
    )
