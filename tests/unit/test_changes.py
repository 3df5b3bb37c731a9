"""What a start may be told about uids and positions, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.protocol_story import completed
from penstock.checkpoint.completed import (
    Barrier,
    Completed,
    OperatorState,
    PreCommitted,
    SourceTime,
    TimeReached,
)
from penstock.errors import ConfigError, IncompatibleStateError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.job_spec import Uids, in_order
from penstock.ownership.claim import Claim
from penstock.recovery.fitting import JobNow
from penstock.recovery.restore import RestorePoint
from penstock.recovery.restore_options import RestoreOptions, choose_position
from penstock.recovery.started_batches import BarrierOverride, StartedBatch
from penstock.recovery.uid_renames import renamed_barrier, renamed_checkpoint
from penstock.state.handle import StateHandle
from penstock.storage import LocalStorage

NOW = Uids(["clicks", "views"], ["count"], ["out"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"drop_sources": "clicks"}, r"drop_sources='clicks' is not allowed"),
        ({"rename": ["a", "b"]}, r"rename=\['a', 'b'\] is not allowed"),
        ({"rename": {"a": "b/c"}}, "uid of rename"),
        ({"rename": {"a": "x", "b": "x"}}, "two uids would become 'x'"),
        ({"rename": {"a": "b", "b": "a"}}, "'b' is both an old uid and a new one"),
        ({"positions": "latest"}, "positions='latest' is not allowed"),
        ({"positions": {"clicks": "lastest"}}, r"positions=\{'clicks': 'lastest'\} is not allowed"),
        ({"positions": {"clicks": None}}, r"positions=\{'clicks': None\} is not allowed"),
        ({"positions": {"clicks": {1, 2}}}, "is not allowed"),
    ],
)
def test_what_can_be_no_option(options: dict[str, Any], match: str) -> None:
    """It is refused whatever the job is, with what is meant."""
    with pytest.raises(ConfigError, match=match):
        RestoreOptions.checked(*({"drop_sources": (), "rename": {}, "positions": {}} | options).values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (RestoreOptions(drop_sources=("clicks",)), r"the job reads it; .*positions=\{'clicks': 'start'\}"),
        (RestoreOptions(rename={"count": "views"}), "the job still has 'count'"),
        (RestoreOptions(rename={"old": "cuont"}), "the job has no 'cuont'. did you mean 'count'"),
        (
            RestoreOptions(positions={"click": "start"}),
            "'click', which is no source of the job; .*did you mean 'clicks'",
        ),
    ],
)
def test_names_that_are_not_right_for_the_job(changes: RestoreOptions, match: str) -> None:
    """They are refused before Spark is asked for anything."""
    with pytest.raises(ConfigError, match=match):
        changes.check_names(NOW)


def test_positions_as_text_are_json() -> None:
    """The command line has nothing else."""
    asked = RestoreOptions.checked((), {}, {"a": '{"0":5}', "b": "latest", "c": 7}).positions
    assert asked == {"a": {"0": 5}, "b": "latest", "c": 7}


def nobody(uid: str) -> list[str]:
    raise AssertionError(uid)


@pytest.mark.parametrize(
    ("stored", "asked", "said"),
    [
        (
            '{"0":5,"1":5}',
            {"0": 9, "1": 3},
            "4 records are skipped and 2 records are read again and counted twice",
        ),
        ('{"0":5}', {"0": 5}, "it was there already"),
        ('{"t":{"0":5}}', {"t": {"0": 5, "1": 2}}, "the checkpoint had no such position"),
        ("5", 6, "1 record is skipped"),
        ('{"logOffset":5}', {"logOffset": 3}, "2 records are read again"),
    ],
)
def test_what_a_choice_costs_is_told(stored: str, asked: object, said: str) -> None:
    """As far as positions are numbers, in numbers."""
    assert said in choose_position("clicks", asked, [stored], 1, nobody).said


@pytest.mark.parametrize(
    ("stored", "asked", "match"),
    [
        ('{"0":5,"1":5}', {"0": 9}, "says nothing of 1; give a position of the same form"),
        ('{"t":{"0":5}}', 5, "says nothing of t.0"),
        ("5", {"0": 5}, "says nothing of a position"),
        ('{"logOffset":5}', {"logOffset": 6}, "its own list of files, which ends at 5: it can only go back"),
    ],
)
def test_a_position_of_another_form_is_refused(stored: str, asked: object, match: str) -> None:
    """A partition that is left out would begin anywhere."""
    with pytest.raises(IncompatibleStateError, match=match):
        choose_position("clicks", asked, [stored], 1, nobody)


def test_a_source_of_several_streams_needs_a_position_for_each() -> None:
    """One for all would be that of another."""
    with pytest.raises(ConfigError, match="has 2 streaming sources in it; give a list"):
        choose_position("clicks", 5, ["1", "2"], 2, nobody)
    assert choose_position("clicks", [5, 6], ["1", "2"], 2, nobody).lines == ("5", "6")
    assert choose_position("clicks", "latest", ["1", "2"], 2, lambda _: ["8", "9"]).lines == ("8", "9")


# ── what a run makes of it ─────────────────────────────────────────────────────────────────────


HEAD = 'v1\n{"batchWatermarkMs":0}'
AT = Barrier(
    {"clicks": 5, "views": 7},
    f"{HEAD}\n5\n7",
    time=TimeReached({"count": 3}, {"clicks": SourceTime(1), "views": SourceTime(2)}),
    numbers={"clicks": (0,), "views": (1,)},
)
FOUR = msgspec.structs.replace(completed(4, run=2), barrier=AT)


def point(
    tmp_path: Path, checkpoint: Completed | None = FOUR, begun: StartedBatch | None = None
) -> RestorePoint:
    claim = Claim(LocalStorage(tmp_path), RunId(3), "token")
    return RestorePoint(claim, (checkpoint,) if checkpoint else (), begun)


def job(**changes: Any) -> JobNow:
    return JobNow(in_order({"views": 1, "clicks": 1}), NOW, RestoreOptions(**changes), lambda _: ["99"])


def test_a_choice_is_recorded_and_made_once(tmp_path: Path) -> None:
    """The run that makes it records where it leads; whoever goes on from the same checkpoint, and is told the same, goes on there."""
    first = job(positions={"clicks": "latest"}).fit(point(tmp_path))
    assert first.barrier.positions == {"views": 7, "clicks": 99}
    assert first.begun is not None
    assert first.begun.instead == BarrierOverride(4, 2, first.barrier)
    assert first.begun.positions_set == {"clicks": "latest"}
    again = replace(job(positions={"clicks": "latest"}), latest=nobody).fit(
        point(tmp_path, begun=first.begun)
    )
    assert again.barrier == first.barrier
    without = job().fit(point(tmp_path, begun=first.begun))
    assert without.barrier == first.barrier
    assert without.begun is not None
    assert without.begun.positions_set == {}
    later = msgspec.structs.replace(FOUR, checkpoint=9, positions_set={"clicks": "latest"})
    told = replace(job(positions={"clicks": "latest", "views": 3}), latest=nobody).fit(point(tmp_path, later))
    assert told.barrier.positions == {"views": 3, "clicks": 5}
    assert told.fitted is not None
    assert any("was asked for clicks before, and done" in line for line in told.fitted.said)


def test_a_choice_at_most_once_begins_behind_what_was_begun(tmp_path: Path) -> None:
    """The record of what must not be read again is the one that is changed."""
    begun = StartedBatch(
        2, msgspec.structs.replace(AT, positions={"clicks": 6, "views": 8}, progress_log=f"{HEAD}\n6\n8"), 6
    )
    fitted = job(positions={"clicks": "start"}).fit(point(tmp_path, begun=begun))
    assert fitted.last_read == CheckpointId(6)
    assert fitted.barrier.positions == {"views": 8, "clicks": None}
    assert fitted.begun is not None
    assert (fitted.begun.batch, fitted.begun.instead) == (6, None)
    assert fitted.begun.barrier.positions == fitted.barrier.positions
    assert (
        job(positions={"clicks": "start"}).fit(point(tmp_path, begun=fitted.begun)).barrier == fitted.barrier
    )


def test_a_job_that_has_read_nothing_has_no_positions_to_set(tmp_path: Path) -> None:
    """Where it begins is for the options of its sources to say."""
    with pytest.raises(
        ConfigError, match="the job has no checkpoint yet: it begins where the options of the source say"
    ):
        job(positions={"clicks": "latest"}).fit(point(tmp_path, None))


def test_what_is_in_storage_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing that the stored checkpoint names may be deleted as long as nothing else is complete."""
    fitted = job(rename={"old": "count"}, positions={"clicks": "start"}).fit(
        point(tmp_path, msgspec.structs.replace(FOUR, operators={"old": _state()}))
    )
    assert "old" in fitted.retained[-1].operators
    assert fitted.retained[-1].barrier == AT
    assert list(fitted.checkpoint.operators if fitted.checkpoint else {}) == ["count"]


def test_an_operator_whose_state_is_dropped_begins_anew_in_time(tmp_path: Path) -> None:
    """With its old watermark the rows that it is to read again would be late."""
    assert job().fit(point(tmp_path)).barrier.time.watermarks_us == {"count": 3}
    assert job().fit(point(tmp_path), ("count",)).barrier.time.watermarks_us == {}


def _state() -> Any:
    return OperatorState(
        {"app": "string"}, {"n": "long"}, (StateHandle(SubtaskId("old", 0), "filesystem", 4),)
    )


def test_everything_under_a_new_uid(tmp_path: Path) -> None:
    """State, watermarks, counts and promises are found by the new uid; the transaction itself keeps the name it has in the target."""
    stored = msgspec.structs.replace(
        FOUR,
        operators={"old": _state()},
        barrier=msgspec.structs.replace(
            AT, time=msgspec.structs.replace(AT.time, watermarks_us={"old": 3}, to_go_on_from_us={"old": 2})
        ),
        transactions=(PreCommitted("old-out", 4, 0, {"sink": "old-out"}),),
        bad_records={"old": 2},
        late_rows={"old": 1},
    )
    now = renamed_checkpoint(stored, {"old": "count", "old-out": "out", "clicks": "visits"})
    assert [(handle.subtask.uid, handle.subtask.index) for handle in now.operators["count"].handles] == [
        ("count", 0)
    ]
    assert now.operators["count"].former_uids == ("old",)
    assert (now.transactions[0].sink, now.transactions[0].transaction) == ("out", {"sink": "old-out"})
    assert list(now.barrier.positions) == list(now.barrier.numbers) == ["visits", "views"]
    assert set(now.barrier.time.sources) == {"visits", "views"}
    assert now.barrier.time.watermarks_us == {"count": 3}
    assert now.barrier.time.to_go_on_from_us == {"count": 2}
    assert (now.bad_records, now.late_rows) == ({"count": 2}, {"count": 1})
    assert renamed_checkpoint(now, {"old": "count", "old-out": "out", "clicks": "visits"}) == now


def test_renames_that_the_checkpoint_does_not_allow(tmp_path: Path) -> None:
    """A uid that it does not have, and two that would become one; what was renamed before is no mistake."""
    with pytest.raises(
        IncompatibleStateError, match="the checkpoint has no source 'klicks'; it has visits, views"
    ):
        job(rename={"klicks": "clicks"}).fit(
            point(tmp_path, msgspec.structs.replace(FOUR, barrier=_with_source(AT, "visits")))
        )
    both = msgspec.structs.replace(
        AT,
        positions={**AT.positions, "visits": 1},
        progress_log=f"{AT.progress_log}\n1",
        numbers={**AT.numbers, "visits": (2,)},
    )
    with pytest.raises(
        IncompatibleStateError, match="the checkpoint has both, source 'visits' and source 'clicks'"
    ):
        job(rename={"visits": "clicks"}).fit(point(tmp_path, msgspec.structs.replace(FOUR, barrier=both)))
    assert job(rename={"visits": "clicks"}).fit(point(tmp_path)).barrier.positions == {
        "views": 7,
        "clicks": 5,
    }


def _with_source(barrier: Barrier, uid: str) -> Barrier:
    return renamed_barrier(barrier, {"clicks": uid})
