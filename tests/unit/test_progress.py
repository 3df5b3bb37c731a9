"""What a running job says it has done."""

from __future__ import annotations

from protocol_story import transaction

from penstock.engine.observer import Observer
from penstock.ids import CheckpointId


def test_rows_are_counted_where_they_come_in_and_for_each_sink() -> None:
    """Input rows are those of the sources, output rows those of each sink by its uid; nothing is summed over sinks."""
    observer = Observer()
    observer.rows_read(40)
    observer.batch_done(CheckpointId(0), [transaction(0, "views"), transaction(0, "views", subtask=1)], 0.5)
    early = observer.progress.rows_out
    observer.rows_read(2)
    observer.batch_done(CheckpointId(1), [transaction(1, "alerts")], 0.5)
    assert observer.progress.rows_in == 42
    assert observer.progress.rows_out == {"views": 2, "alerts": 1}
    assert early == {"views": 2}
