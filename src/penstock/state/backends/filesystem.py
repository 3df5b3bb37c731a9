"""The backend `filesystem`: sorted immutable runs, memory-mapped. Runs in tasks on executors.

A batch writes its changed rows as one new run; now and then neighbouring runs are merged into one
(`merge_policy`). The runs themselves are the snapshot: a checkpoint uploads the new ones and names the old
ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.state.backends.base import RunRef, StateBackend, StateHandle, StateLayout, Workplace
from penstock.state.backends.fetch import open_runs
from penstock.state.backends.merge_policy import choose_merge
from penstock.state.backends.run_file import Run, RunBatch, RunHeader, write_run
from penstock.state.backends.run_state import RunState


class FilesystemBackend(StateBackend):
    """Keep state in files of this machine and of storage: bounded by disk, not by memory."""

    name = "filesystem"

    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> FilesystemState:
        """See `StateBackend.open`."""
        return FilesystemState(workplace, layout, open_runs(workplace, layout, handle))


class FilesystemState(RunState):
    """Runs as files."""

    backend = FilesystemBackend.name

    def freeze(self) -> StateHandle:
        """See `OpenState.freeze`."""
        fresh = self._fresh()
        runs = [*fresh, *self._runs]
        if not self._settled():
            window: range | None = range(len(runs))
        elif not fresh:
            window = None
        else:
            window = choose_merge([run.rows for run in runs])
        if window is None:
            return self._handle(self._refs(runs))
        newer, merged, older = runs[: window.start], runs[window.start : window.stop], runs[window.stop :]
        refs = (*self._refs(newer), *self._merge(merged, has_older=bool(older)), *self._refs(older))
        return self._handle(refs)

    def _settled(self) -> bool:
        """Whether all runs are files that this subtask wrote; others must be merged, to drop foreign keys."""
        return all(self._wrote(run) and run.ref is not None and run.ref.name for run in self._runs)

    def _refs(self, runs: Iterable[Run]) -> tuple[RunRef, ...]:
        """The names of runs, writing what this batch changed."""
        refs = (run.ref or self._write_fresh(run) for run in runs)
        return tuple(ref for ref in refs if ref is not None)

    def _write_fresh(self, fresh: Run) -> RunRef | None:
        if fresh.header.tombstones and not self._runs:
            # Nothing older could be hidden, so the first run needs no tombstones.
            batches, header = self._merged([fresh], keep_tombstones=False)
            return self._write(".arrow", batches, header)
        return self._write(".arrow", fresh.batches, fresh.header)

    def _merge(self, runs: list[Run], *, has_older: bool) -> tuple[RunRef, ...]:
        batches, header = self._merged(runs, keep_tombstones=has_older)
        ref = self._write("-merged.arrow", batches, header)
        return () if ref is None else (ref,)

    def _write(self, suffix: str, batches: Iterable[RunBatch], header: RunHeader) -> RunRef | None:
        name = self._workplace.new_name(suffix)
        path = self._workplace.local_path(name)
        return write_run(path, name, batches, layout=self._layout, header=header)
