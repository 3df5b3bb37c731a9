"""The staged rows of one transaction in an Arrow file. Executors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

import pyarrow as pa

from penstock.sinks.staged.staging import StagedTransaction, create_private
from penstock.storage.file_system import sync_file


class StagedRows:
    """Writes one file; it exists from the beginning, so that the transaction can be found and aborted."""

    def __init__(self, transaction: StagedTransaction, path: Path) -> None:
        self.transaction = transaction
        self.path = path
        self.rows = 0
        create_private(path)
        self._file: IO[bytes] = path.open("wb")
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Close the file and make it durable; without rows it stays empty."""
        if self._writer is not None:
            self._writer.close()
        self._file.close()
        sync_file(self.path)

    def discard(self) -> None:
        """Close the file, whatever the disk says; it is deleted by `abort`."""
        with contextlib.suppress(OSError):
            self._file.close()
