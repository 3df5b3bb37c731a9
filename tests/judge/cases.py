"""Cases of windows and joins worth naming, each with what must come out: for people to read, and for Flink and Penstock to pass.

Rows are `key@time=value`. A result of a window is `key start end sum,count`, one of a join `key left-right`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flink_scripts import Kind

from builders.time_models import FAR_AWAY, Batch, Row, Sided


@dataclass(frozen=True)
class Step:
    """A batch, and what comes of it."""

    rows: str
    watermark: int
    results: tuple[str, ...] = ()
    late: str = ""

    @property
    def batch(self) -> Batch:
        """Without what comes of it."""
        return Batch(tuple(rows_of(self.rows)), self.watermark)


@dataclass(frozen=True)
class Case:
    """Windows in a situation."""

    name: str
    kind: Kind
    steps: tuple[Step, ...]


def rows_of(text: str) -> list[Row]:
    """Rows that are written down."""
    found = []
    for word in text.split():
        key, _, rest = word.partition("@")
        time, _, value = rest.partition("=")
        found.append(Row(key, int(time), int(value)))
    return found


def _tumbling(lateness: int = 0, offset: int = 0) -> Kind:
    return Kind("tumbling", 10, 0, offset, lateness)


def _session(lateness: int = 0) -> Kind:
    return Kind("session", 10, 0, 0, lateness)


YEARS = 1000 * 365 * 86_400_000_000
WINDOWS = (
    Case(
        "a window closes at its last moment, and the next row begins another",
        _tumbling(),
        (
            Step("a@0=1 a@9=2 a@10=4", 8),
            Step("", 9, ("a 0 10 3,2",)),
            Step("a@19=8", 18),
            Step("", 19, ("a 10 20 12,2",)),
        ),
    ),
    Case(
        "keys have windows of their own, and one without rows gives nothing",
        _tumbling(),
        (Step("a@5=1 b@25=2", 19, ("a 0 10 1,1",)), Step("", FAR_AWAY, ("b 20 30 2,1",))),
    ),
    Case(
        "windows before 1970 begin at multiples of their size, too",
        _tumbling(),
        (
            Step("a@-1=1 a@-10=2 a@-11=4 a@0=8", -1, ("a -20 -10 4,1", "a -10 0 3,2")),
            Step("", 9, ("a 0 10 8,1",)),
        ),
    ),
    Case(
        "an offset moves all windows, to either side",
        _tumbling(offset=-3),
        (Step("a@6=1 a@7=2 a@-4=4", 6, ("a -13 -3 4,1", "a -3 7 1,1")), Step("", 16, ("a 7 17 2,1",))),
    ),
    Case(
        "a row at the watermark is late for a window that has closed with it",
        _tumbling(),
        (Step("", 9), Step("a@9=1 a@10=2", 9, (), "a@9=1"), Step("", 19, ("a 10 20 2,1",))),
    ),
    Case(
        "a late row is taken as long as allowed, and gives the window again",
        _tumbling(lateness=10),
        (
            Step("a@5=1", 9, ("a 0 10 1,1",)),
            Step("a@6=2", 18, ("a 0 10 3,2",)),
            Step("a@7=4", 19, ("a 0 10 7,3",)),
            Step("a@8=8", 20, (), "a@8=8"),
        ),
    ),
    Case(
        "a late row alone makes a window that is over at once",
        _tumbling(lateness=10),
        (Step("", 15), Step("a@3=1", 15, ("a 0 10 1,1",)), Step("", FAR_AWAY)),
    ),
    Case(
        "lateness of a thousand years keeps windows, also behind the end of the input",
        _tumbling(lateness=YEARS),
        (Step("a@5=1", 100, ("a 0 10 1,1",)), Step("a@6=2", YEARS, ("a 0 10 3,2",)), Step("", FAR_AWAY)),
    ),
    Case(
        "a row is in every sliding window that holds its time",
        Kind("sliding", 30, 10),
        (
            Step("a@5=1 a@15=2 b@39=4", 9, ("a -20 10 1,1",)),
            Step("", 29, ("a -10 20 3,2", "a 0 30 3,2")),
            Step("", 39, ("a 10 40 2,1", "b 10 40 4,1")),
            Step("", FAR_AWAY, ("b 20 50 4,1", "b 30 60 4,1")),
        ),
    ),
    Case(
        "a row that is late for some sliding windows counts in the others, and is not late",
        Kind("sliding", 30, 10),
        (
            Step("a@15=1", 19, ("a -10 20 1,1",)),
            Step("a@16=2", 39, ("a 0 30 3,2", "a 10 40 3,2")),
            Step("a@17=4", 39, (), "a@17=4"),
        ),
    ),
    Case(
        "rows as far apart as the gap are one session, further apart two",
        _session(),
        (Step("a@0=1 a@10=2 b@0=4 b@11=8", FAR_AWAY, ("a 0 20 3,2", "b 0 10 4,1", "b 11 21 8,1")),),
    ),
    Case(
        "a row between two sessions makes them one",
        _session(),
        (Step("a@0=1 a@15=2", 5), Step("a@8=4", 20), Step("", 24, ("a 0 25 7,3",))),
    ),
    Case(
        "a row inside a session changes its content alone",
        _session(),
        (Step("a@0=1 a@9=2", 0), Step("a@5=4", 18, ("a 0 19 7,3",))),
    ),
    Case(
        "a session that has closed is over: the next row begins another although the gap has not passed",
        _session(),
        (Step("a@0=1", 9, ("a 0 10 1,1",)), Step("a@9=2", 18, ("a 9 19 2,1",))),
    ),
    Case(
        "a row that is late by itself counts in a session that lives",
        _session(),
        (Step("a@10=1 a@20=2", 19), Step("a@5=4", 29, ("a 5 30 7,3",))),
    ),
    Case(
        "a row that touches nothing but a session that is over is late",
        _session(),
        (Step("a@0=1", 9, ("a 0 10 1,1",)), Step("a@-1=2", 9, (), "a@-1=2")),
    ),
    Case(
        "a row whose own session ends with the watermark is late, one later it is not",
        _session(lateness=10),
        (Step("", 29), Step("a@10=1 b@11=2", 29, ("b 11 21 2,1",), "a@10=1")),
    ),
    Case(
        "a late row inside a session that has closed gives it again",
        _session(lateness=10),
        (Step("a@0=1 a@6=2", 15, ("a 0 16 3,2",)), Step("a@3=4", 15, ("a 0 16 7,3",)), Step("", FAR_AWAY)),
    ),
    Case(
        "a late row opens a session that has closed, and it closes anew, longer",
        _session(lateness=10),
        (Step("a@0=1", 9, ("a 0 10 1,1",)), Step("a@8=2", 16), Step("", 17, ("a 0 18 3,2",))),
    ),
    Case(
        "a late row joins a session that has closed with one that is open",
        _session(lateness=10),
        (Step("a@0=1 a@18=2", 12, ("a 0 10 1,1",)), Step("a@9=4", 26), Step("", 27, ("a 0 28 7,3",))),
    ),
    Case(
        "a late row joins two sessions that have closed",
        _session(lateness=20),
        (
            Step("a@0=1 a@15=2", 24, ("a 0 10 1,1", "a 15 25 2,1")),
            Step("a@7=4", 24, ("a 0 25 7,3",)),
            Step("a@-10=8", 44, ("a -10 25 15,4",)),
            Step("a@0=16", 44, (), "a@0=16"),
        ),
    ),
    Case(
        "every so many rows of a key, and what is not full gives nothing",
        Kind("count", 2),
        (Step("a@0=1 b@0=2 a@0=4", 5, ("a 0 0 5,2",)), Step("b@-9=8 b@7=16", FAR_AWAY, ("b 0 0 10,2",))),
    ),
)


@dataclass(frozen=True)
class JoinStep:
    """A batch of two sides, and what comes of it."""

    left: str
    right: str
    watermark: int
    pairs: tuple[str, ...] = ()
    late: tuple[str, str] = ("", "")

    @property
    def rows(self) -> list[Sided]:
        """Left rows first."""
        return sided(self.left, self.right)


def sided(left: str, right: str) -> list[Sided]:
    """Rows of two sides that are written down."""
    return [*(Sided(True, row) for row in rows_of(left)), *(Sided(False, row) for row in rows_of(right))]


@dataclass(frozen=True)
class JoinCase:
    """A join in a situation."""

    name: str
    lower: int
    upper: int
    steps: tuple[JoinStep, ...]


SIX = "a@1=11 a@2=12 a@3=13 a@4=14 a@5=15 a@6=16"
JOINS = (
    JoinCase(
        "both bounds belong to the interval",
        -2,
        2,
        (JoinStep("a@10=1", "a@7=2 a@8=3 a@12=4 a@13=5", FAR_AWAY, ("a 1-3", "a 1-4")),),
    ),
    JoinCase(
        "an interval behind the left row",
        1,
        2,
        (JoinStep("a@1=1 a@4=2", SIX, FAR_AWAY, ("a 1-12", "a 1-13", "a 2-15", "a 2-16")),),
    ),
    JoinCase(
        "an interval before the left row",
        -2,
        -1,
        (JoinStep("a@3=1 a@6=2", SIX, FAR_AWAY, ("a 1-11", "a 1-12", "a 2-14", "a 2-15")),),
    ),
    JoinCase(
        "an interval of one moment before 1970",
        0,
        0,
        (JoinStep("a@-5=1", "a@-5=2 b@-5=3 a@-4=4", FAR_AWAY, ("a 1-2",)),),
    ),
    JoinCase(
        "rows wait for partners of later batches, on either side",
        -5,
        5,
        (
            JoinStep("a@10=1", "a@22=2", 12),
            JoinStep("a@18=3", "a@14=4", 16, ("a 1-4", "a 3-2", "a 3-4")),
            JoinStep("", "a@16=5", FAR_AWAY, ("a 3-5",)),
        ),
    ),
    JoinCase(
        "equal rows each find each other",
        0,
        1,
        (JoinStep("a@1=1 a@1=2", "a@1=3 a@1=4", FAR_AWAY, ("a 1-3", "a 1-4", "a 2-3", "a 2-4")),),
    ),
    JoinCase(
        "a row from before the watermark is late, on either side, also where a partner waits; one at the watermark is not",
        -5,
        5,
        (
            JoinStep("a@12=1", "a@12=2", 10, ("a 1-2",)),
            JoinStep("a@9=3 a@10=4", "a@9=5 a@10=6", 20, ("a 1-6", "a 4-2", "a 4-6"), ("a@9=3", "a@9=5")),
        ),
    ),
)
