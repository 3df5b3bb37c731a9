"""Scripts in Flink's judge's words, and its answers as the models say them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from builders.time_models import (
    EVENT,
    LONG_AGO,
    Alarm,
    Batch,
    Command,
    CountWindows,
    Fired,
    Joined,
    Pair,
    Row,
    SessionWindows,
    Sided,
    TimeWindows,
    Windowed,
    Windows,
    sliding,
)
from services.flink import Flink

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """A kind of windows: its name, the numbers that Flink is told, and the model of it."""

    name: str
    first: int
    second: int = 0
    offset: int = 0
    lateness: int = 0

    def model(self) -> Windows:
        """A new one, that has seen nothing."""
        match self.name:
            case "count":
                return CountWindows(self.first, self.second)
            case "session":
                return SessionWindows(self.first, self.lateness)
            case _:
                slide = self.second or self.first
                return TimeWindows(sliding(self.first, slide, self.offset), self.lateness)

    @property
    def marks(self) -> tuple[int, ...]:
        """How far from the watermark times lie that are just late, or just not."""
        closes = self.first - 1
        return tuple(-last + beside for last in (closes, closes + self.lateness) for beside in (0, 1))

    def words(self, function: str) -> str:
        """As the judge is told."""
        return f"{self.name} {function} {self.first} {self.second} {self.offset} {self.lateness}"


@st.composite
def kinds(draw: st.DrawFn, name: str) -> Kind:
    """Sizes that divide each other or not, gaps between windows, offsets of both signs, rows allowed late or not."""
    first, second, offset = draw(st.integers(1, 12)), 0, 0
    if name == "count":
        return Kind(name, draw(st.integers(1, 5)), draw(st.integers(0, 5)))
    if name == "sliding":
        second = draw(st.integers(1, 12))
    if name != "session":
        most = (second or first) - 1
        offset = draw(st.integers(-most, most))
    return Kind(name, first, second, offset, draw(st.one_of(st.just(0), st.integers(1, 25))))


def one_by_one(batches: Sequence[Batch]) -> list[Batch]:
    """The same, with a batch for each row, in which time stands still, and one for each watermark."""
    before, found = LONG_AGO, []
    for batch in batches:
        found += [Batch((row,), before) for row in batch.rows]
        found.append(Batch((), before := batch.watermark))
    return found


def falling(batches: Sequence[Batch]) -> list[Batch]:
    """The same, with the latest rows of each batch first."""
    return [Batch(tuple(sorted(batch.rows, key=lambda row: -row.time)), batch.watermark) for batch in batches]


def play_windows(flink: Flink, kind: Kind, batches: Sequence[Batch]) -> list[Windowed]:
    """What Flink gives for each row and each watermark, see `one_by_one`. Its windows list their rows."""
    steps = one_by_one(batches)
    given = [Windowed() for _ in steps]
    for one in flink.play(kind.words("list"), map(_step, steps)):
        if one.kind == "r":
            key, start, end, values = one.words
            fired = Fired(key, int(start), int(end), tuple(sorted(int(value) for value in values.split(","))))
            given[one.step].fired.append(fired)
        else:
            key, value = one.words
            given[one.step].late.append(Row(key, one.time, int(value)))
    return given


def play_sums(flink: Flink, kind: Kind, batches: Sequence[Batch]) -> list[list[str]]:
    """The same of windows that keep a sum and a number of rows only: key, start, end, both."""
    steps = one_by_one(batches)
    given: list[list[str]] = [[] for _ in steps]
    for one in flink.play(kind.words("sum"), map(_step, steps)):
        if one.kind == "r":
            given[one.step].append(" ".join(one.words))
    return given


def summed(fired: Iterable[Fired]) -> list[str]:
    """As `play_sums` says it."""
    return [f"{one.key} {one.start} {one.end} {sum(one.values)},{len(one.values)}" for one in fired]


def once_a_batch(
    given: Sequence[Windowed], batches: Sequence[Batch], kept: Sequence[frozenset[tuple[str, int, int]]]
) -> list[Windowed]:
    """What is left of Flink's results when a window gives one in a batch: the last.

    A session that another row of the batch made longer gives none: it is not there any more when the rows have come (`kept`).
    """
    found = []
    for steps, windows in zip(by_batch(given, batches), kept, strict=True):
        last = {one[:3]: one for step in steps for one in step.fired if one[:3] in windows}
        found.append(Windowed(list(last.values()), [row for step in steps for row in step.late], windows))
    return found


def play_batches(flink: Flink, kind: Kind, batches: Sequence[Batch]) -> list[Windowed]:
    """What Flink gives for each batch, where a window gives one result in a batch. Windows of so many rows give all they have."""
    if kind.name == "count":
        return [
            Windowed([one for step in steps for one in step.fired])
            for steps in by_batch(play_windows(flink, kind, batches), batches)
        ]
    model = kind.model()
    kept = [model.batch(batch).kept for batch in batches]
    return once_a_batch(play_windows(flink, kind, falling(batches)), batches, kept)


def by_batch(steps: Sequence[T], batches: Sequence[Batch]) -> Iterator[Sequence[T]]:
    """What belongs to the rows and the watermark of each batch."""
    at = 0
    for batch in batches:
        yield steps[at : at + len(batch.rows) + 1]
        at += len(batch.rows) + 1


def _step(batch: Batch) -> str:
    for row in batch.rows:
        return f"1 {row.key} {row.time} {row.value}"
    return f"w {batch.watermark}"


def play_join(
    flink: Flink, lower: int, upper: int, batches: Sequence[tuple[Sequence[Sided], int]]
) -> list[Joined]:
    """What Flink's interval join gives for each row and each watermark."""
    steps = []
    for rows, watermark in batches:
        steps += [f"{1 if left else 2} {row.key} {row.time} {row.value}" for left, row in rows]
        steps.append(f"w {watermark}")
    given = [Joined([], []) for _ in steps]
    for one in flink.play(f"join {lower} {upper}", steps):
        if one.kind == "r":
            key, left, right, *_ = one.words
            given[one.step].pairs.append(Pair(key, int(left), int(right)))
        else:
            key, value = one.words
            given[one.step].late.append(Sided(one.kind == "l", Row(key, one.time, int(value))))
    return given


def play_timers(flink: Flink, batches: Sequence[tuple[Sequence[Command], int, int]]) -> list[list[Alarm]]:
    """The timers that fire in each batch: first event time goes on, then the clock."""
    steps, batch_of = [], []
    for number, (commands, watermark, now) in enumerate(batches):
        steps += [f"1 {command.key} 0 {_words(command)}" for command in commands]
        steps += [f"w {watermark}", f"p {now}"]
        batch_of += [number] * (len(commands) + 2)
    given: list[list[Alarm]] = [[] for _ in batches]
    for one in flink.play("timers", steps):
        key, domain, time, _ = one.words
        given[batch_of[one.step]].append(Alarm(key, domain, int(time)))
    return given


def _words(command: Command) -> str:
    if command.action == "again":
        return f"again {command.times} {command.time}"
    return f"{command.action}{'e' if command.domain == EVENT else 'p'} {command.time}"
