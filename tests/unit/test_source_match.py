"""Positions, notes and event time of a checkpoint find their sources by uid, whatever the order."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.model import Barrier, SourceFile, SourceTime, TimeReached
from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.job_spec import in_order
from penstock.recovery.progress_log import NO_POSITION
from penstock.recovery.source_match import (
    for_sources,
    lines_by_source,
    notes_by_source,
    numbers_of,
    without_position,
)

HEAD = 'v1\n{"batchWatermarkMs":0}'


def barrier(streams: dict[str, int], *, numbered: bool = True) -> Barrier:
    """Each stream has a position and a note, which name it."""
    numbers = in_order(streams)
    lines = [json.dumps({"of": f"{uid}.{at}"}) for uid, count in streams.items() for at in range(count)]
    positions: dict[str, object] = {}
    for uid, own in numbers.items():
        found = [json.loads(lines[number]) for number in own]
        positions[uid] = found[0] if len(found) == 1 else found
    notes = [
        SourceFile(f"{number}/7.compact", f"state/_sources/1-{uid}-{at}", 1, "x")
        for uid, own in numbers.items()
        for at, number in enumerate(own)
    ]
    time = TimeReached({"op": 5}, {uid: SourceTime(1) for uid in streams})
    return Barrier(positions, "\n".join([HEAD, *lines]), tuple(notes), time, numbers if numbered else {})


UIDS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True)


@given(
    stored=UIDS, now=UIDS, counts=st.lists(st.integers(1, 3), min_size=6, max_size=6), numbered=st.booleans()
)
def test_each_source_finds_its_own(
    stored: list[str], now: list[str], counts: list[int], numbered: bool
) -> None:
    """Those that were there have their positions, their notes and their time; new ones have none; the way back gives what was."""
    by_uid = dict(zip("abcdef", counts, strict=True))
    before = barrier({uid: by_uid[uid] for uid in stored}, numbered=numbered)
    numbers = in_order({uid: by_uid[uid] for uid in now})
    gone = [uid for uid in stored if uid not in now]
    after = for_sources(before, numbers, dropped=gone)
    lines, notes = lines_by_source(after), notes_by_source(after)
    assert list(after.positions) == list(lines) == now
    assert after.progress_log.splitlines()[:2] == HEAD.splitlines()
    assert len(after.progress_log.splitlines()) == 2 + sum(by_uid[uid] for uid in now)
    for uid in now:
        if uid in stored:
            assert lines[uid] == lines_by_source(before)[uid]
            assert [[file.name for file in own] for own in notes[uid]] == [
                [f"state/_sources/1-{uid}-{at}"] for at in range(by_uid[uid])
            ]
            assert after.positions[uid] == before.positions[uid]
        else:
            assert lines[uid] == [NO_POSITION] * by_uid[uid]
            assert not any(notes[uid])
    assert set(after.time.sources) == set(stored) & set(now)
    assert after.time.watermarks_us == before.time.watermarks_us
    new = {number for uid in now if uid not in stored for number in numbers[uid]}
    assert without_position(after) == new
    if not gone:
        back = for_sources(after, in_order({uid: by_uid[uid] for uid in stored}))
        assert msgspec.structs.replace(back, numbers={}, source_log=()) == msgspec.structs.replace(
            before, numbers={}, source_log=()
        )
        assert set(back.source_log) == set(before.source_log)


def test_a_source_that_is_gone_needs_a_word() -> None:
    """Its position would be lost; one that has none yet has nothing to lose."""
    before = barrier({"a": 1, "b": 1})
    with pytest.raises(
        IncompatibleStateError,
        match=r"position of the source b, which .*rename=\{'b': .*drop_sources=\('b',\)",
    ):
        for_sources(before, {"a": (0,)})
    added = for_sources(before, in_order({"new": 1, "a": 1, "b": 1}))
    assert list(for_sources(added, in_order({"a": 1, "b": 1})).positions) == ["a", "b"]


def test_another_number_of_streams_is_refused() -> None:
    """Nobody can tell which position is whose; by choice it begins anew."""
    before = barrier({"a": 2, "b": 1})
    with pytest.raises(
        IncompatibleStateError, match="'a' had 2 streaming sources in it at the checkpoint, and has 1 now"
    ):
        for_sources(before, in_order({"a": 1, "b": 1}))
    after = for_sources(before, in_order({"a": 1, "b": 1}), set_to={"a": [NO_POSITION]})
    assert after.positions == {"a": None, "b": {"of": "b.0"}}
    assert [file.path for file in after.source_log] == ["1/7.compact"]


def test_a_position_that_is_set_keeps_the_notes_and_forgets_the_time() -> None:
    """A source that goes back in its own list of files needs the list. What it reads again must not be behind its own watermark."""
    before = barrier({"a": 1, "b": 1})
    after = for_sources(before, in_order({"a": 1, "b": 1}), set_to={"a": ["17"]})
    assert after.positions == {"a": 17, "b": {"of": "b.0"}}
    assert after.source_log == before.source_log
    assert set(after.time.sources) == {"b"}


def test_one_stream_cannot_be_at_two_places() -> None:
    """Two sources of one DataFrame share a stream: a new one cannot begin at the start of what the other has read."""
    before = barrier({"a": 1, "b": 1})
    with pytest.raises(IncompatibleStateError, match="'b' and 'twin' read one and the same DataFrame"):
        for_sources(before, {"a": (0,), "b": (1,), "twin": (1,)})
    shared = for_sources(before, {"b": (0,), "a": (1,)})
    twins = msgspec.structs.replace(
        shared,
        positions={**shared.positions, "twin": shared.positions["a"]},
        progress_log=shared.progress_log + "\n" + shared.progress_log.splitlines()[-1],
        numbers={**shared.numbers, "twin": (1,)},
    )
    apart = for_sources(twins, in_order({"twin": 1, "a": 1, "b": 1}))
    assert [(file.path, file.name) for file in apart.source_log] == [
        ("0/7.compact", "state/_sources/1-a-0"),
        ("1/7.compact", "state/_sources/1-a-0"),
        ("2/7.compact", "state/_sources/1-b-0"),
    ]


def test_one_stream_cannot_have_two_lists() -> None:
    """Two sources of files at the same place, each in a list of its own, cannot become one; with the same list they can."""

    def apart(*checksums: str) -> Barrier:
        notes = tuple(SourceFile(f"{at}/0", f"note {at}", 1, one) for at, one in enumerate(checksums))
        at = {"logOffset": 1}
        line = json.dumps(at)
        return Barrier({"a": at, "b": at}, f"{HEAD}\n{line}\n{line}", notes, numbers={"a": (0,), "b": (1,)})

    with pytest.raises(IncompatibleStateError, match=r"'a' and 'b' read one and the same DataFrame.*differ"):
        for_sources(apart("x", "y"), {"a": (0,), "b": (0,)})
    together = for_sources(apart("x", "x"), {"a": (0,), "b": (0,)})
    assert [file.path for file in together.source_log] == ["0/0"]
    assert len(for_sources(apart("x", "y"), {"b": (0,), "a": (1,)}).source_log) == 2


def test_checkpoints_that_do_not_say_whose_streams_are_whose() -> None:
    """A list is several positions, or the one position of a source whose positions are lists."""
    assert numbers_of(Barrier({"a": [1, 2], "b": 3}, f"{HEAD}\n1\n2\n3")) == {"a": (0, 1), "b": (2,)}
    assert numbers_of(Barrier({"a": [1, 2], "b": 3}, f"{HEAD}\n[1,2]\n3")) == {"a": (0,), "b": (1,)}
    with pytest.raises(
        CorruptStateError, match="positions of the sources a, b, and Spark's entry in it has 1"
    ):
        numbers_of(Barrier({"a": 1, "b": 3}, f"{HEAD}\n1"))


def test_what_was_noted_before_anything_was_read() -> None:
    """There is no entry yet: the notes alone go where their sources are now."""
    start = Barrier(
        {"a": None, "b": None}, "", (SourceFile("1/0", "n", 1, "x"),), numbers={"a": (0,), "b": (1,)}
    )
    after = for_sources(start, in_order({"b": 1, "a": 1}))
    assert (after.progress_log, after.positions) == ("", {"b": None, "a": None})
    assert [file.path for file in after.source_log] == ["0/0"]
    assert for_sources(Barrier(), in_order({"a": 1})) == Barrier()
