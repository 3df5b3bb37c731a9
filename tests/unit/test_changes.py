"""What a start may be told about uids and positions, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from builders.protocol_story import completed
from builders.restore_plans import job_spec, plan_of
from builders.sink_double import TroubledSink
from penstock.checkpoint.model import (
    Barrier,
    Completed,
    OperatorState,
    PreCommitted,
    SourceTime,
    TimeReached,
)
from penstock.checkpoint.state_columns import columns_of
from penstock.errors import ConfigError, IncompatibleStateError
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.job_spec import JobSpec, Uids
from penstock.ownership.claim import Claim
from penstock.recovery.history import StoredJob
from penstock.recovery.restore_options import Latest, RestoreOptions, checked_positions, choose_position
from penstock.recovery.restore_plan import RestorePlan, plan_restore, renamed_barrier, renamed_checkpoint
from penstock.recovery.started_batches import BarrierOverride, StartedBatch
from penstock.state.backends.base import StateLayout
from penstock.state.handle import StateHandle
from penstock.storage import LocalStorage
from penstock.testing.simulation.external import External

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
        ({"positions": {"": "latest"}}, r"positions=\{'': 'latest'\} is not allowed"),
        ({"positions": {"clicks": float("nan")}}, r"positions=\{'clicks': nan\} is not allowed"),
        ({"positions": {"clicks": '{"0": Infinity}'}}, "is not allowed"),
    ],
)
def test_what_can_be_no_option(options: dict[str, Any], match: str) -> None:
    """It is refused whatever the job is, with what is meant."""
    with pytest.raises(ConfigError, match=match):
        RestoreOptions.checked(
            **{"drop_state": (), "drop_sources": (), "rename": {}, "positions": {}, **options}
        )


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
    asked = checked_positions({"a": '{"0":5}', "b": "latest", "c": 7})
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
COUNTS = StateLayout(pa.schema([("app", pa.string())]), pa.schema([("n", pa.int64())]))
FOUR = msgspec.structs.replace(completed(4, run=2), barrier=AT, operators={})


def spec_of(tmp_path: Path) -> JobSpec:
    return job_spec(LocalStorage(tmp_path), layouts={"count": COUNTS}, streams={"views": 1, "clicks": 1})


def plan(
    tmp_path: Path,
    checkpoint: Completed | None = FOUR,
    started: StartedBatch | None = None,
    *,
    latest: Latest = lambda _: ["99"],
    **options: Any,
) -> RestorePlan:
    """The plan of a run with these options."""
    retained = [checkpoint] if checkpoint else []
    return plan_of(spec_of(tmp_path), retained, started, latest=latest, **options)


def test_a_choice_is_recorded_and_made_once(tmp_path: Path) -> None:
    """The run that makes it records where it leads; whoever goes on from the same checkpoint, and is told the same, goes on there."""
    first = plan(tmp_path, positions={"clicks": "latest"})
    assert first.barrier.positions == {"views": 7, "clicks": 99}
    assert first.started is not None
    assert first.started.instead == BarrierOverride(4, 2, first.barrier)
    assert first.started.positions_set == {"clicks": "latest"}
    again = plan(tmp_path, started=first.started, latest=nobody, positions={"clicks": "latest"})
    assert again.barrier == first.barrier
    without = plan(tmp_path, started=first.started)
    assert without.barrier == first.barrier
    assert without.started is not None
    assert without.started.positions_set == {}
    later = msgspec.structs.replace(FOUR, checkpoint=9, positions_set={"clicks": "latest"})
    told = plan(tmp_path, later, latest=nobody, positions={"clicks": "latest", "views": 3})
    assert told.barrier.positions == {"views": 3, "clicks": 5}
    assert any("was applied to clicks by an earlier start" in message.text for message in told.messages)


def test_a_choice_at_most_once_begins_behind_what_was_begun(tmp_path: Path) -> None:
    """The record of what must not be read again is the one that is changed."""
    at = msgspec.structs.replace(AT, positions={"clicks": 6, "views": 8}, progress_log=f"{HEAD}\n6\n8")
    first = plan(tmp_path, started=StartedBatch(2, at, 6), positions={"clicks": "start"})
    assert first.last_read == CheckpointId(6)
    assert first.barrier.positions == {"views": 8, "clicks": None}
    assert first.started is not None
    assert (first.started.batch, first.started.instead) == (6, None)
    assert first.started.barrier.positions == first.barrier.positions
    again = plan(tmp_path, started=first.started, positions={"clicks": "start"})
    assert again.barrier == first.barrier


def test_a_job_that_has_read_nothing_has_no_positions_to_set(tmp_path: Path) -> None:
    """Where it begins is for the options of its sources to say."""
    with pytest.raises(
        ConfigError, match="the job has no checkpoint yet: it starts where the options of the source say"
    ):
        plan(tmp_path, None, positions={"clicks": "latest"})


def test_a_job_without_a_checkpoint_has_nothing_to_rename(tmp_path: Path) -> None:
    """A rename at the first start is a mistake in a name, or the wrong storage: nothing would take it into account."""
    with pytest.raises(
        ConfigError, match=r"rename=\{'old': 'count'\}: the job has no checkpoint yet.*without rename, or"
    ):
        plan(tmp_path, None, rename={"old": "count"})
    sources = StartedBatch(RunId(1), _with_source(AT, "visits"))
    assert plan(tmp_path, None, sources, rename={"visits": "clicks"}).barrier.positions["clicks"] == 5


def test_what_is_in_storage_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing that the stored checkpoint names may be deleted as long as nothing else is complete."""
    stored = msgspec.structs.replace(FOUR, operators={"old": _state()})
    made = plan(tmp_path, stored, rename={"old": "count"}, positions={"clicks": "start"})
    assert made.retained == (stored,)
    assert list(made.checkpoint.operators if made.checkpoint else {}) == ["count"]


def test_an_operator_whose_state_is_dropped_begins_anew_in_time(tmp_path: Path) -> None:
    """With its old watermark the rows that it is to read again would be late."""
    assert plan(tmp_path).barrier.time.watermarks_us == {"count": 3}
    assert plan(tmp_path, drop_state=("count",)).barrier.time.watermarks_us == {}


def test_spark_goes_on_after_the_last_batch_that_was_read(tmp_path: Path) -> None:
    """Its log is filled with the positions of the plan, and says which sources choose where to start, and which of these had a position."""
    going_on = plan(tmp_path)
    assert (going_on.progress.last_read, going_on.progress.barrier) == (4, going_on.barrier)
    assert (going_on.progress.undecided, going_on.progress.anew) == ({}, frozenset())
    anew = plan(tmp_path, positions={"clicks": "start"}).progress
    assert (anew.undecided, anew.anew) == ({"clicks": [1]}, frozenset({"clicks"}))
    first = plan(tmp_path, None).progress
    assert (first.last_read, first.undecided, first.anew) == (-1, {"views": [0], "clicks": [1]}, frozenset())


def test_transactions_are_promised_until_they_are_known_to_be_committed(tmp_path: Path) -> None:
    """A sink that the job no longer has is refused only as long as it has something to commit."""
    spec = spec_of(tmp_path)
    promising = msgspec.structs.replace(FOUR, transactions=(PreCommitted("out", 4, 0, {"sink": "out"}),))
    assert plan_of(spec, [promising]).promised == ()
    claim, stored = Claim(spec.storage, RunId(3), "token"), StoredJob((promising,))
    with pytest.raises(IncompatibleStateError, match="transactions of the sink out, which the job no longer"):
        plan_restore(claim, stored, spec, now=0.0)
    kept = replace(spec, sinks={"out": TroubledSink(External())})
    assert plan_restore(claim, stored, kept, now=0.0).promised == promising.transactions


def test_what_belongs_to_other_key_groups_is_refused(tmp_path: Path) -> None:
    """A crash may have come between a savepoint that changed them and the record of the job."""
    with pytest.raises(IncompatibleStateError, match="checkpoint 4 has max_parallelism=8, the job 16"):
        plan_of(replace(spec_of(tmp_path), max_parallelism=16), [FOUR])


def test_time_does_not_go_back(tmp_path: Path) -> None:
    """A run starts at the time of its checkpoint if the clock was set back since."""
    assert plan(tmp_path).now_us == 1_000_000_000
    assert plan(tmp_path, msgspec.structs.replace(FOUR, now_us=2_000_000_000)).now_us == 2_000_000_000


def _state() -> OperatorState:
    columns = columns_of(COUNTS)
    handle = StateHandle(SubtaskId("old", 0), "filesystem", 4)
    return OperatorState(columns.key, columns.value, (handle,), schema=columns.schema)


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
    visits = msgspec.structs.replace(FOUR, barrier=_with_source(AT, "visits"))
    with pytest.raises(
        IncompatibleStateError, match="the checkpoint has no source 'klicks'; it has visits, views"
    ):
        plan(tmp_path, visits, rename={"klicks": "clicks"})
    both = msgspec.structs.replace(
        AT,
        positions={**AT.positions, "visits": 1},
        progress_log=f"{AT.progress_log}\n1",
        numbers={**AT.numbers, "visits": (2,)},
    )
    with pytest.raises(
        IncompatibleStateError, match="the checkpoint has both, source 'visits' and source 'clicks'"
    ):
        plan(tmp_path, msgspec.structs.replace(FOUR, barrier=both), rename={"visits": "clicks"})
    assert plan(tmp_path, rename={"visits": "clicks"}).barrier.positions == {"views": 7, "clicks": 5}


def _with_source(barrier: Barrier, uid: str) -> Barrier:
    return renamed_barrier(barrier, {"clicks": uid})
