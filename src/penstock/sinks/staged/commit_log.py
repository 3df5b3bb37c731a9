"""The proof that a transaction of a file sink was committed. Driver only.

    <folder>/<run>-<block>.<writer>.log      one line a transaction: <checkpoint>.<subtask>.<attempt>.<token>

A file in its final place proves little: users and compactions take files away. So each commit is written
down here, and kept for good. Nothing shorter is safe: checkpoints are retained in any number, a savepoint
may be restored after months, and either makes the driver commit again what it names. 'Everything up to
checkpoint n' would also claim transactions that were aborted on the way to n. A line takes about 20 bytes:
8 subtasks that commit every 10 seconds write 1.5 MB a day. Whole blocks may be deleted by hand once no
checkpoint or savepoint that old will be restored.

Each process writes to files of its own, and reads all: a run that was replaced and its successor may both write down the same
commit, and NFS does not add to the end of a file in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from penstock.ids import SYSTEM_RANDOMNESS
from penstock.sinks.staged.staging import (
    StagedTransaction,
    folders_up_to,
    names_in,
    storage_errors,
)
from penstock.storage.file_system import sync_file, sync_folder

CHECKPOINTS_PER_BLOCK = 10_000
_WRITER = SYSTEM_RANDOMNESS.token(8)
_BLOCK = re.compile(r"(\d+)-(\d+)\..*\.log")
_LINE = re.compile(r"(\d+)\.\d+\.\d+\.[0-9a-f]+")


class CommitLog:
    """The committed transactions of one job and sink below `folder`, which may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, transactions: Iterable[StagedTransaction]) -> None:
        """Write them down, durably; writing one down twice does no harm."""
        with storage_errors("record commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                self._append_lines(block, [_line(member) for member in members])

    def _append_lines(self, name: str, lines: list[str]) -> None:
        block = self._folder / f"{name}.{_WRITER}.log"
        created = not block.exists()
        block.parent.mkdir(parents=True, exist_ok=True)
        with block.open("a", encoding="ascii") as file:
            # The leading newline ends a line that a crash tore: alone, that is no valid line.
            file.write("\n" + "\n".join(lines) + "\n")
        sync_file(block)
        if created:
            for folder in folders_up_to(self._folder, self._folder.parent):
                sync_folder(folder)

    def committed(self, transactions: Iterable[StagedTransaction]) -> set[StagedTransaction]:
        """Tell which of these were written down."""
        found: set[StagedTransaction] = set()
        with storage_errors("read the commits in", self._folder):
            for block, members in groupby(sorted(transactions, key=self._block), key=self._block):
                lines = set().union(*(_complete_lines(file) for file in self._files(block)))
                found |= {member for member in members if _line(member) in lines}
        return found

    def newest(self) -> tuple[int, int] | None:
        """The newest run that has a commit here, and its newest checkpoint."""
        with storage_errors("read the commits in", self._folder):
            blocks = [match for name in names_in(self._folder) if (match := _BLOCK.fullmatch(name))]
            for run, block in sorted({(int(match[1]), int(match[2])) for match in blocks}, reverse=True):
                lines = set().union(*(_complete_lines(file) for file in self._files(f"{run}-{block}")))
                numbers = [int(match[1]) for line in lines if (match := _LINE.fullmatch(line))]
                if numbers:
                    return run, max(numbers)
        return None

    def _files(self, block: str) -> list[Path]:
        """Not by `glob`, which takes a folder that cannot be listed for an empty one."""
        names = names_in(self._folder)
        return [
            self._folder / name for name in names if name.startswith(f"{block}.") and name.endswith(".log")
        ]

    def _block(self, transaction: StagedTransaction) -> str:
        return f"{transaction.run}-{transaction.checkpoint // CHECKPOINTS_PER_BLOCK}"


def _line(transaction: StagedTransaction) -> str:
    return f"{transaction.checkpoint}.{transaction.subtask}.{transaction.attempt}.{transaction.token}"


def _complete_lines(block: Path) -> set[str]:
    try:
        text = block.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return set()
    return set(text.split("\n")[:-1])
