"""What must always hold, checked from outside: storage and the external system against the truth in the source."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import msgspec

from penstock.checkpoint.events import CheckpointListener
from penstock.checkpoint.metadata import found_checkpoints, name_of, read_metadata
from penstock.checkpoint.model import Completed
from penstock.checkpoint.state_columns import stored_layout
from penstock.config import Mode
from penstock.ids import NO_CHECKPOINT, RunId, SubtaskId
from penstock.ownership.claim import JOB_FILE, in_line_of_descent, newest_run, read_descents
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.started_batches import last_started
from penstock.sinks.two_phase_commit import Transaction
from penstock.state.backends import backend_named
from penstock.state.backends.base import Workplace
from penstock.testing.simulation.counting import check_kinds, check_timers, scan, tells_of_timers
from penstock.testing.simulation.external import Row
from penstock.testing.simulation.lifeline import Violation
from penstock.testing.simulation.site import Site
from penstock.testing.simulation.topology import echoes_of, letters_of, sink_of
from penstock.testing.simulation.workload import MAX_PARALLELISM, Record, SinkKind, fault_of


class Audit(CheckpointListener):
    """Looks at a site; raises `Violation`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._mode = site.workload.promise
        self._mode_of_state = site.workload.promise_of_state
        self._owner = (0, NO_CHECKPOINT)
        """The newest run that restored, and the last checkpoint that it relies on."""

    # ── at any time ────────────────────────────────────────────────────────────────────────────

    def checkpoints(self) -> list[Completed]:
        """The checkpoints of the job's history, oldest first."""
        storage = self._site.storage
        descents = read_descents(storage)
        found = [read_metadata(storage, name) for name in found_checkpoints(storage)]
        return [one for one in found if in_line_of_descent(one.id, RunId(one.run), descents)]

    def whole_checkpoints(self) -> None:
        """Everything a checkpoint names exists (invariant 1)."""
        for completed in self.checkpoints():
            self._files_exist(completed)

    def completed(self, completed: Completed, complete_s: float, *, wanted: bool) -> None:  # noqa: ARG002 - for people
        """A checkpoint was completed: what it names exists, and its state is that of the barrier (invariants 1, 2)."""
        if newest_run(self._site.storage) > completed.run:
            return  # written just as another run took over: it does not count
        self._owner = max(self._owner, (completed.run, completed.id))
        self._files_exist(completed)
        self._state_is_right(completed)

    def history_is_kept(self) -> None:
        """Whatever another run does, the checkpoint that the owner relies on stays (invariant 6)."""
        run, relied_on = self._owner
        found = [one.id for one in self.checkpoints()]
        if newest_run(self._site.storage) == run and relied_on > max(found, default=NO_CHECKPOINT):
            raise Violation(f"run {run} relies on checkpoint {relied_on}, but there are only {found}")

    def visible(self, transaction: Transaction) -> None:
        """A transaction is about to become visible: exactly once, a checkpoint must name it (invariants 3, 6)."""
        if self._mode is not Mode.EXACTLY_ONCE:
            return
        promised = (one for completed in self.checkpoints() for one in completed.transactions)
        # sinks of other kinds have names of their own
        named = {one.transaction.get("id") for one in promised}
        if transaction["id"] not in named:
            raise Violation(f"transaction {transaction['id']} becomes visible, but no checkpoint names it")

    def restored(self, point: RestorePlan, *, undisturbed: bool) -> None:
        """After recovery nothing later is visible, and every other transaction is gone (invariant 4)."""
        if newest_run(self._site.storage) > point.run:
            return  # taken over at the last moment: the visible output is the new owner's
        self._owner = max(self._owner, (point.run, point.id))
        external = self._site.external
        if undisturbed and external.staged:
            raise Violation(f"transactions survive the recovery from {point.id}: {sorted(external.staged)}")
        later = [name for name in external.visible if external.facts[name]["checkpoint"] > point.id]
        if self._mode is Mode.EXACTLY_ONCE and later:
            raise Violation(f"after the recovery from {point.id} these are visible: {later}")

    # ── at the end ─────────────────────────────────────────────────────────────────────────────

    def finished(self) -> None:
        """The whole input is in the last checkpoint and in the sinks."""
        self.whole_checkpoints()
        for completed in self.checkpoints():
            self._state_is_right(completed)
        if self._mode is not Mode.AT_MOST_ONCE:  # which leaves out what was under way in the last crash
            self._all_input_is_in()
        for uid in self._site.topology.operators:
            rows = [*self._site.external.rows(sink_of(uid)), *self._letters(uid, from_sink=True)]
            self._rows_are_right(uid, [row for row in rows if not tells_of_timers(row["records"])])
            self._timers_have_fired(uid, [row for row in rows if tells_of_timers(row["records"])])
            self._other_sinks_are_right(uid)
            self._bad_records_are_apart(uid)

    def nothing_left_over(self) -> None:
        """Every file belongs to a checkpoint, no more are retained than asked for, no transaction is open (invariant 5)."""
        storage = self._site.storage
        found = self.checkpoints()
        needed = {name for one in found for name in (*one.files, *name_of(one).files)}
        begun = last_started(storage)
        needed |= begun.files if begun else set()
        kept = [
            name
            for name in storage.names()
            if not name.startswith(("runs/", "spark/", "begun/", "holds/")) and name != JOB_FILE
        ]
        stray = sorted(set(kept) - needed)
        if stray:
            raise Violation(f"these files belong to no checkpoint: {stray}")
        numbers = [name.checkpoint for name in found_checkpoints(storage)]
        by_last_run = found and found[-1].run == newest_run(storage)
        if by_last_run and len(numbers) > self._site.workload.most_retained:
            raise Violation(f"more checkpoints are kept than asked for: {numbers}")
        if self._site.external.staged:
            raise Violation(f"transactions stay open: {sorted(self._site.external.staged)}")
        left = sorted(path.name for path in self._site.staging.rglob("*.arrow"))
        if left:
            raise Violation(f"staged rows stay: {left}")

    # ── parts ──────────────────────────────────────────────────────────────────────────────────

    def _all_input_is_in(self) -> None:
        at = [self._site.source.at(completed.barrier.positions) for completed in self.checkpoints()]
        if not at or at[-1] != self._site.source.end:
            raise Violation(
                f"the job is finished, but its checkpoints are at {at}, not at {self._site.source.end}"
            )

    def _files_exist(self, completed: Completed) -> None:
        missing = sorted(completed.files - set(self._site.storage.names("state")))
        if missing:
            raise Violation(f"checkpoint {completed.checkpoint} names files that do not exist: {missing}")

    def _state_is_right(self, completed: Completed) -> None:
        if self._site.workload.bad_records:
            return  # which rows share a bad one's fate depends on the batches: see `_bad_records_are_apart`
        source, topology = self._site.source, self._site.topology
        until = source.at(completed.barrier.positions)
        read = list(source.between(source.start, until))
        for uid in topology.operators:
            found = Counter(dict(self._scan(completed, uid)))
            truth = topology.counts(uid, read)
            if not _agrees(found, truth, self._mode_of_state):
                raise Violation(
                    f"checkpoint {completed.checkpoint} at {until}: {uid} has {dict(found)}, the truth is {dict(truth)}"
                )

    def _all_records(self) -> list[Record]:
        source = self._site.source
        return list(source.between(source.start, source.end))

    def _scan(self, completed: Completed, uid: str) -> Iterator[tuple[str, int]]:
        scratch = self._site.root / "audit"
        for handle in completed.operators[uid].handles:
            workplace = Workplace(
                storage=self._site.storage,
                local_dir=scratch,
                subtask=SubtaskId(uid, handle.subtask.index),
                parallelism=completed.parallelism,
                max_parallelism=MAX_PARALLELISM,
                version=handle.version,
                stem="audit",
            )
            layout = stored_layout(completed.operators[uid].columns)
            with closing(backend_named(handle.backend).open(workplace, layout, handle)) as state:
                counts = scan(state)
                if self._site.topology.every_kind:
                    check_kinds(state, counts)
                yield from counts.items()
        shutil.rmtree(scratch, ignore_errors=True)

    def _rows_are_right(self, uid: str, rows: list[Row]) -> None:
        if self._mode is Mode.AT_MOST_ONCE and self._site.workload.emits_once:
            return  # state that was lost with a crash does not know what it had emitted: a later record is a first one again
        also = self._letters(uid, from_sink=False)
        seen = Counter(record for row in [*rows, *also] for record in row["records"])
        truth = self._site.topology.output(uid, self._all_records())
        if not _agrees(seen, truth, self._mode):
            lost, extra = dict(truth - seen), dict(seen - truth)
            raise Violation(f"sink of {uid}: lost {lost}, too many {extra}")
        if self._mode is Mode.EXACTLY_ONCE:
            self._rows_continue_each_other(uid, rows)

    def _rows_continue_each_other(self, uid: str, rows: list[Row]) -> None:
        """Check row by row that each count of a key follows the previous visible one."""
        last: Counter[str] = Counter()
        if self._site.workload.bad_records:  # some of them came another way
            rows = sorted(rows, key=lambda row: int(row["count"]))
        for row in rows if not self._site.workload.emits_once else ():
            if row["count"] != last[row["key"]] + len(row["records"]):
                raise Violation(f"sink of {uid}: after {last[row['key']]} comes {row}")
            last[row["key"]] = row["count"]
        nonces = [row["nonce"] for row in rows]
        if len(set(nonces)) != len(nonces):
            raise Violation(f"sink of {uid}: a row appears twice")

    def _timers_have_fired(self, uid: str, rows: list[Row]) -> None:
        work, found = self._site.workload, self.checkpoints()
        if work.timers and found:  # at most once a job may end without one
            told_of_keys = work.in_sequence and work.emits_once and uid != self._site.topology.operators[0]
            records = [] if told_of_keys else self._all_records()
            check_timers(uid, rows, records, found[-1], self._mode, drained=work.drains)

    def _letters(self, uid: str, *, from_sink: bool) -> list[Row]:
        """The rows that an operator could not take, or the results that its sink refused."""
        letters = self._site.external.rows(letters_of(uid))
        return [
            msgspec.json.decode(letter["row"])
            for letter in letters
            if (letter["operator"] == sink_of(uid)) == from_sink
        ]

    def _bad_records_are_apart(self, uid: str) -> None:
        """No bad record is among the results, and the state counts what is in results, and nothing of a bad call."""
        if not self._site.workload.bad_records:
            return
        visible = self._site.external.rows(sink_of(uid))
        faults = self._site.topology.faults
        bad = [record for row in visible for record in row["records"] if fault_of(record, faults)]
        if bad:
            raise Violation(f"sink of {uid}: it has the bad records {bad}")
        if self._mode is Mode.EXACTLY_ONCE:
            counted: Counter[str] = Counter()
            for row in (*visible, *self._letters(uid, from_sink=True)):
                counted[row["key"]] += len(row["records"])
            found = Counter(dict(self._scan(self.checkpoints()[-1], uid)))
            if found != counted:
                raise Violation(f"{uid} has the state {dict(found)}, its results say {dict(counted)}")
            self._side_output_is_right(uid, visible)
            self._bad_records_are_counted(uid)

    def _side_output_is_right(self, uid: str, visible: list[Row]) -> None:
        """Check that an operator emitted exactly the results of the attempts that Spark kept."""
        results = Counter(row["nonce"] for row in (*visible, *self._letters(uid, from_sink=True)))
        echoes = Counter(row["nonce"] for row in self._site.external.rows(echoes_of(uid)))
        if echoes != results:
            raise Violation(
                f"side output of {uid}: lost {dict(results - echoes)}, too many {dict(echoes - results)}"
            )

    def _bad_records_are_counted(self, uid: str) -> None:
        said = self.checkpoints()[-1].bad_records
        for at, from_sink in ((uid, False), (sink_of(uid), True)):
            letters = len(self._letters(uid, from_sink=from_sink))
            if said.get(at, 0) != letters:
                raise Violation(f"{at}: {letters} dead letters, the checkpoint records {said.get(at, 0)}")

    def _other_sinks_are_right(self, uid: str) -> None:
        kinds, external = self._site.workload.sinks, self._site.external
        if self._mode is Mode.AT_MOST_ONCE or self._site.workload.emits_once:
            return  # which value is the last, and whether a row was written, depends on what was lost
        for kind in {SinkKind.BY_KEY_AT_ONCE, SinkKind.BY_KEY_STAGED} & set(kinds):
            table = external.table(sink_of(uid, kind))
            found = Counter({key: row["count"] for key, row in table.items()})
            truth = self._site.topology.counts(uid, self._all_records())
            if not _agrees(found, truth, self._mode):
                raise Violation(f"table {sink_of(uid, kind)}: {dict(found)}, the truth is {dict(truth)}")
        if SinkKind.CALLS in kinds:
            rows = external.called.get(sink_of(uid, SinkKind.CALLS), [])
            seen = Counter(record for row in rows for record in row["records"])
            lost = self._site.topology.output(uid, self._all_records()) - seen
            if lost:
                raise Violation(
                    f"the function of {sink_of(uid, SinkKind.CALLS)} was never called with {dict(lost)}"
                )


def _agrees(found: Counter[str], truth: Counter[str], mode: Mode) -> bool:
    match mode:
        case Mode.EXACTLY_ONCE:
            return found == truth
        case Mode.AT_LEAST_ONCE:
            return found >= truth
        case Mode.AT_MOST_ONCE:
            return found <= truth
