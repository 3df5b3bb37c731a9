"""Random jobs with random trouble: crashes, zombies, failing storage and sinks, lost workers, changes of parallelism."""

from __future__ import annotations

import os
from dataclasses import replace

import msgspec
import pytest
from simulations import SEED as SMALL_SEED
from simulations import workload, world

from penstock.config import Mode
from penstock.recovery.restore_plan import RestorePlan
from penstock.testing.simulation import Fate, Intervention, Violation, random_workload
from penstock.testing.simulation.workload import SinkKind, on_an_object_store
from services.tiers import share

SEED = os.environ.get("PENSTOCK_SEED")
PINNED = (336,)
"""A zombie comes up and takes the job, and then the driver that had it is cancelled with all that is kept."""
SEEDS = [*range(share(200)), *PINNED] if SEED is None else [int(SEED)]
"""Some that once failed among them."""
BAD_SEEDS = share(20)
KIND_SEEDS = share(12)
CHANGING_SEEDS = share(12)
WOKEN_SEEDS = share(20)
TIMER_SEEDS = share(30)
SAVED_SEEDS = share(18)
READER_SEEDS = share(12)
WANTED_SEEDS = share(12)
OBJECT_SEEDS = share(60)
MANY = int(os.environ.get("PENSTOCK_CHAOS_SEEDS") or 10_000)
TELL_EVERY = 500


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_promise_is_kept(seed: int) -> None:
    """Sinks, state and storage end up as the mode promises, whatever the seed does to the job."""
    live(seed)


@pytest.mark.parametrize("seed", SEEDS[:BAD_SEEDS])
def test_every_record_is_in_one_of_two_outputs(seed: int) -> None:
    """Records that user code or a sink cannot take are dead letters, once as the mode promises, and in nothing else."""
    alone = {"in_sequence": False, "emits_once": False, "sinks": (SinkKind.TRANSACTIONS,)}
    live(seed, bad_records=0.2, every_kind=bool(seed % 2), **alone)


@pytest.mark.parametrize("seed", SEEDS[:KIND_SEEDS])
@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
def test_every_kind_of_state_keeps_the_promise(seed: int, backend: str) -> None:
    """Values, reduced and aggregated ones, bytes, maps and lists say what the count says, in every checkpoint of every seed."""
    live(seed, every_kind=True, backend=backend)


@pytest.mark.parametrize("seed", SEEDS[:CHANGING_SEEDS])
def test_a_job_that_changes_keeps_the_promise(seed: int) -> None:
    """Each run has another backend and another set of states than the one before, whatever happens while state is written anew."""
    live(seed, changes=True)


@pytest.mark.parametrize("seed", SEEDS[:WOKEN_SEEDS])
def test_subtasks_that_are_woken_change_nothing(seed: int) -> None:
    """Whether a subtask runs without rows or not, sinks, state and storage end up as the mode promises."""
    live(seed, wakes_every=2)


@pytest.mark.parametrize("seed", SEEDS[:SAVED_SEEDS])
def test_every_run_begins_with_a_savepoint(seed: int) -> None:
    """Made of the newest checkpoint and adopted with the next parallelism, whoever dies or wakes up meanwhile."""
    backend = ("filesystem", "memory", "rocksdb")[seed % 3]
    live(seed, savepoints=True, every_kind=seed % 2 == 0, backend=backend, interventions=(), modes=())


@pytest.mark.parametrize("seed", SEEDS[:TIMER_SEEDS])
def test_timers_fire_as_often_as_promised(seed: int) -> None:
    """In event time and by the clock, in batches with rows and without, with the end of time behind every other job."""
    live(seed, timers=True, drains=seed % 2 == 1)


@pytest.mark.parametrize("seed", SEEDS[:READER_SEEDS])
def test_who_holds_a_checkpoint_can_read_it(seed: int) -> None:
    """Somebody reads the newest checkpoint with a hold while the job completes others, crashes and comes back: no file goes meanwhile."""
    drawn = random_workload(seed)
    goes_back = seed % 3 == 0 and drawn.promise is not Mode.AT_MOST_ONCE
    settings = replace(drawn.checkpoint, interval="1s", retained=3 if goes_back else 1 + seed % 2)
    changed: dict[str, object] = {"checkpoint": settings, "retained": (), "records": 60, "interventions": ()}
    if goes_back:
        back = (None, Intervention.GO_FAR_BACK) * 2
        changed |= {"interventions": back, "troubled_runs": 5, "flakiness": 0.004}
    live(seed, readers=0.05, **changed)


@pytest.mark.parametrize("seed", SEEDS[:WANTED_SEEDS])
def test_who_wants_a_checkpoint_gets_it(seed: int) -> None:
    """It has all that was finished when it was wanted, with all it promised committed, however long the interval is; nobody waits in vain."""
    drawn = random_workload(seed)
    interval = ["1h", "1s"][seed % 2]
    live(seed, wants=1.0, checkpoint=replace(drawn.checkpoint, interval=interval), intervals_s=())


@pytest.mark.parametrize("seed", SEEDS[:OBJECT_SEEDS])
def test_an_object_store_that_loses_answers(seed: int) -> None:
    """Creates are conditional puts whose answers are lost, and Spark's log goes with the driver's machine; the promise is kept."""
    drawn = on_an_object_store(random_workload(seed), seed)
    live(seed, object_store=True, lost_answers=drawn.lost_answers)


def live(seed: int, **changed: object) -> None:
    job = msgspec.structs.replace(random_workload(seed), **changed)
    with world(job, seed) as simulated:
        try:
            simulated.live()
        except BaseException:
            print(f"replay with: PENSTOCK_SEED={seed} pytest tests/protocol/test_random_seeds.py")
            print(job, *simulated.log, sep="\n  ")
            raise


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_subtasks_without_rows_are_rescaled_twice(backend: str) -> None:
    """One key, and 2, 3 and 4 subtasks: those that never get a row do not hand on files of subtasks that are gone."""
    job = msgspec.structs.replace(
        workload(backend=backend), records=60, keys=1, batch_size=2, parallelisms=(2, 3, 4), operators=1
    )
    with world(job, SMALL_SEED, (Fate(dies_before=90), Fate(dies_before=150))) as simulated:
        audit, restored = simulated.site.on_restored, set[int]()

        def note(point: RestorePlan) -> None:
            restored.add(point.checkpoint.parallelism if point.checkpoint else 0)
            audit(point)

        simulated.site.on_restored = note
        simulated.live()
        assert {2, 3} <= restored


def test_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does any of thousands of seeds break a promise; it goes on after one that does, and tells all of them in the end."""
    broken: dict[int, str] = {}
    for seed in range(MANY):
        try:
            live(seed)
            if seed % 10 == 0:
                live(seed, savepoints=True, interventions=(), modes=())
                live(seed, object_store=True, lost_answers=0.3)
        except (Violation, Exception) as error:  # noqa: BLE001 - all of them are told
            broken[seed] = f"{type(error).__name__}: {error}"
        if (seed + 1) % TELL_EVERY == 0:
            with capsys.disabled():
                print(f"seeds 0 to {seed}: {len(broken)} broken {sorted(broken)}")
    assert not broken, broken


def test_a_seed_replays_everything() -> None:
    """The same seed gives the same I/O calls in the same order, under the same names and by the same claimants."""

    def told() -> tuple[list[list[str]], list[bytes]]:
        with world(workload(), SMALL_SEED, (Fate(dies_after=60), Fate(pauses_before=30))) as simulated:
            simulated.live()
            storage = simulated.site.storage
            claims = [storage.get(name) for name in storage.names("runs") if name.endswith(".json")]
            return simulated.calls, claims

    assert told() == told()
