"""What a demonstration is made of: its size, its folder, and when the driver is killed. Process of the command line, and driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from penstock.config import Mode, whole_number
from penstock.errors import ConfigError
from penstock.testing.faulty_storage import KillMoment, KillPoint

JOB = "page-views"
TABLE = "views"
BATCHES_PER_DRIVER = 2
"""At least: then there are checkpoints before, between and after the kills."""

MAX_KILLS = 6
MAX_BATCHES = 1000
MAX_APPS = 1000
_MARK = "this-is-a-penstock-demo"


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `penstock demo` and its drivers must agree on."""

    folder: str
    mode: Mode = Mode.EXACTLY_ONCE
    events: int = 1_000_000
    partitions: int = 4
    apps: int = 20
    kills: int = 2
    batches: int = 16

    @property
    def root(self) -> Path:
        """The folder of the demonstration, as a path."""
        return Path(self.folder)

    @property
    def log_path(self) -> Path:
        """The partitioned log that the job reads."""
        return self.root / "page-views.log"

    @property
    def storage_path(self) -> Path:
        """The folder below which the job has its checkpoints."""
        return self.root / "storage"

    @property
    def database_path(self) -> Path:
        """The output that shows the state."""
        return self.root / "views.db"

    @property
    def files_path(self) -> Path:
        """The output that shows what was delivered."""
        return self.root / "delivered"

    @property
    def rows_per_batch(self) -> int:
        """How many events a batch takes."""
        return -(-self.events // self.batches)

    @property
    def kills_so_far(self) -> int:
        """How many drivers have been killed."""
        return len(self._kills_path.read_bytes()) if self._kills_path.exists() else 0

    def note_kill(self) -> None:
        """Record that a driver is about to be killed."""
        with self._kills_path.open("ab") as kills:
            kills.write(b".")

    @property
    def _kills_path(self) -> Path:
        return self.root / "kills"

    def kill_point(self, number: int) -> KillPoint | None:
        """When the driver that is started as the `number`-th (from 0) dies; None for one that may live."""
        if number >= self.kills:
            return None
        spaced = self.batches * (number + 1) // (self.kills + 1)
        return KillPoint(moment=self._moment(number), first=max(1, spaced - 1))

    def _moment(self, number: int) -> KillMoment:
        """Exactly once survives both moments. In the other modes the kill comes before the checkpoint, where it has an effect."""
        if self.mode is Mode.EXACTLY_ONCE and number % 2 == 1:
            return KillMoment.BEFORE_COMMIT
        return KillMoment.BEFORE_COMPLETE


def checked(settings: DemoSettings) -> DemoSettings:
    """Refuse numbers that make no demonstration."""
    whole_number("--partitions", settings.partitions, minimum=1, maximum=100)
    whole_number("--apps", settings.apps, minimum=1, maximum=MAX_APPS)
    whole_number("--kills", settings.kills, minimum=0, maximum=MAX_KILLS)
    whole_number(
        "--batches", settings.batches, minimum=BATCHES_PER_DRIVER * (settings.kills + 1), maximum=MAX_BATCHES
    )
    whole_number("--events", settings.events, minimum=settings.batches * 100)
    return settings


def prepare_folder(folder: Path) -> None:
    """Make the folder, or empty it if it is that of an earlier demonstration; anything else is left alone."""
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).is_file():
            raise ConfigError(
                f"{folder} holds something that is not of an earlier demonstration, and the demonstration begins by emptying its "
                "folder; name another one with --dir, or remove it yourself",
                folder=str(folder),
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text(
            "Everything in this folder is deleted when the next demonstration starts.\n"
        )
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error}; name another folder with --dir") from error


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The job has been taken over and restored; -1 means that there was no checkpoint."""

    run: int
    restored_from: int
    read: int


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A batch or a checkpoint was finished."""

    batch: int
    checkpoint: int
    read: int


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The driver is about to be killed. Another of its threads may still say something."""

    moment: KillMoment
    checkpoint: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The input is done, everything is committed."""


class DriverFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The job failed, and its restart strategy gave up."""

    error: str


Ending = Killed | Finished | DriverFailed
Message = Started | Moved | Killed | Finished | DriverFailed


def read_message(line: bytes) -> Message | None:
    """Return the message in a line; None for what others print there."""
    try:
        message: Message = msgspec.json.decode(line, type=Message)
    except msgspec.DecodeError:
        return None
    return message
