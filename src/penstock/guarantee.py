"""What a job promises end to end: the weakest link decides, and is named. Pure; driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import Mode
from penstock.errors import ConfigError
from penstock.sinks.two_phase_commit import Delivery

_USUAL_WORDS = {
    Delivery.TRANSACTIONAL: "commits with the checkpoint",
    Delivery.IDEMPOTENT: "writes by key: rows written again change nothing, though after a recovery a reader may see an "
    "older value until the key is next written",
    Delivery.AT_LEAST_ONCE: "has no transactions: after a failure it may receive rows again",
}


@dataclass(frozen=True)
class SourceFacts:
    """What matters about a source: whether it can go back and deliver the same records again."""

    uid: str
    kind: str
    replayable: bool


@dataclass(frozen=True)
class SinkFacts:
    """What matters about a sink. `explanation` completes 'the sink ...'; empty for the usual words of its delivery."""

    uid: str
    kind: str
    delivery: Delivery
    explanation: str = ""

    def __str__(self) -> str:
        return f"the sink {self.uid!r} ({self.kind}) {self.explanation or _USUAL_WORDS[self.delivery]}"


@dataclass(frozen=True)
class Guarantee:
    """The promise from source to sink (None: rows may be missing and may come twice), what limits it (None: nothing), and why."""

    level: Mode | None
    limited_by: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.level.value if self.level else 'no guarantee'}: {self.reason}"


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
    if mode is Mode.EXACTLY_ONCE:
        return _limited_by_sinks(sinks)
    repeating = [sink for sink in sinks if sink.delivery is Delivery.AT_LEAST_ONCE]
    if mode is Mode.AT_MOST_ONCE and repeating:
        return _neither(repeating)
    return Guarantee(mode, "checkpoint.mode", _MODE_REASONS[mode])


_MODE_REASONS = {
    Mode.AT_LEAST_ONCE: "the mode is at-least-once: after a failure records since the last checkpoint may count twice",
    Mode.AT_MOST_ONCE: "the mode is at-most-once: after a failure nothing is read again, so what was under way is lost",
}


def _neither(repeating: Sequence[SinkFacts]) -> Guarantee:
    """At most once holds for rows that are read, but a sink that is called again for the same rows writes them again."""
    named = ", ".join(f"{sink.uid!r} ({sink.kind})" for sink in repeating)
    return Guarantee(
        None,
        repeating[0].uid,
        f"{_MODE_REASONS[Mode.AT_MOST_ONCE]}; but what goes to {named} may be written more than once, as when Spark repeats a task. "
        "A sink with transactions makes it at most once, another mode makes it at least once",
    )


def _limited_by_sinks(sinks: Sequence[SinkFacts]) -> Guarantee:
    for sink in sinks:
        if sink.delivery is Delivery.AT_LEAST_ONCE:
            return Guarantee(Mode.AT_LEAST_ONCE, sink.uid, f"state is exactly once, but {sink}")
    noted = [sink for sink in sinks if sink.delivery is Delivery.IDEMPOTENT or sink.explanation]
    if noted:
        return Guarantee(
            Mode.EXACTLY_ONCE,
            None,
            f"sources replay, state is exactly once, and {'; '.join(map(str, noted))}",
        )
    return Guarantee(
        Mode.EXACTLY_ONCE,
        None,
        "sources replay, state is exactly once, and every sink commits with the checkpoint",
    )
