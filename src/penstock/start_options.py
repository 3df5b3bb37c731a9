"""The options of a start: keyword arguments of `Job.start` and `Job.run`, and options of `penstock run`. Driver.

While the command line runs a user's file to find the job in it, no job may start: it would run there, and then once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from penstock.child_process import TOKEN_VARIABLE
from penstock.config import whole_number
from penstock.dashboard.ui_options import Ui, UiOptions
from penstock.errors import ConfigError
from penstock.ownership.runs import EarlierAttempts
from penstock.places import AT, calling_place
from penstock.recovery.restore_options import RestoreOptions
from penstock.status.listeners import Listener, check_listener
from penstock.wording import start_option

_log = logging.getLogger(__name__)


def _option(text: str, value: str | None = None, *, default: Any = None) -> Any:
    """A field that the command line has, too: with this help, and this name of its value."""
    return field(default=default, metadata={"help": text, "metavar": value})


_SWITCHES = ("available_now", "takeover", "drain", "claim", "ui_read_only")


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """The options of a start, checked as far as that is possible without the job. `Job.start` explains them."""

    available_now: bool = _option("Process the input available now, then end.", default=False)
    restore: int | None = _option("Restore this retained checkpoint instead of the newest.", "N")
    takeover: bool = _option("Fence off a run that seems to be alive.", default=False)
    drop_state: tuple[str, ...] = _option(
        "An operator, or one of its states, whose stored state may be dropped; repeatable.",
        "UID[.STATE]",
        default=(),
    )
    drop_sources: tuple[str, ...] = _option(
        "A source that the job no longer has; its position may be dropped.", "UID", default=()
    )
    rename: Mapping[str, str] | None = _option("A uid that was renamed; repeatable.", "OLD=NEW")
    positions: Mapping[str, object] | None = _option(
        "Where a source continues: start, latest, or a position in JSON. Applied once.", "UID=WHERE"
    )
    drain: bool = _option(
        "With --available-now: close all windows and fire all event-time timers at the end.", default=False
    )
    savepoint: str | Path | None = _option(  # noqa: RUF009 - it makes a field
        "Start from this savepoint; a job that already started from it continues.", "DIR"
    )
    claim: bool = _option(
        "With --savepoint: the job takes ownership of it and deletes it later.", default=False
    )
    ui: str | int | bool | Ui | None = _option(  # noqa: RUF009 - it makes a field
        "Serve the job's pages at this address, such as 127.0.0.1:8090; auto: the first free port from 8090 on.",
        "ADDRESS",
    )
    ui_token: str | None = _option(f"A file with the token for these pages; or set {TOKEN_VARIABLE}.", "FILE")
    ui_read_only: bool = _option("Show the pages without actions.", default=False)
    listeners: Sequence[Listener] = ()

    changes: RestoreOptions = field(init=False, repr=False)
    """What adapts the checkpoint to the job."""
    pages: UiOptions | None = field(init=False, repr=False)
    """Where the job serves its pages; None if it serves none."""

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(
                    f"{start_option(name)} is {value!r}; it takes True or False. Nothing was started"
                )
        if self.restore is not None:
            whole_number(start_option("restore"), self.restore, minimum=0)
        if self.drain and not self.available_now:
            raise ConfigError(
                f"{start_option(drain=True)} needs {start_option(available_now=True)}: only an input that ends has an end of its time"
            )
        self._check_savepoint()
        if not isinstance(self.listeners, Sequence):
            raise ConfigError(f"listeners={self.listeners!r} is not allowed: it takes a list of listeners")
        for listener in self.listeners:
            check_listener(listener)
        changes = RestoreOptions.checked(
            drop_state=self.drop_state,
            drop_sources=self.drop_sources,
            rename={} if self.rename is None else self.rename,
            positions={} if self.positions is None else self.positions,
        )
        object.__setattr__(self, "changes", changes)
        object.__setattr__(self, "pages", self._pages())

    def _check_savepoint(self) -> None:
        if self.savepoint is None:
            if self.claim:
                raise ConfigError(
                    f"{start_option(claim=True)} needs {start_option(savepoint='DIR')}: there is nothing to claim"
                )
        elif self.restore is not None:
            raise ConfigError(
                f"{start_option(savepoint=str(self.savepoint))} and {start_option(restore=self.restore)} exclude each other: "
                "give one of them"
            )
        elif not isinstance(self.savepoint, str | Path) or self.savepoint == "":
            raise ConfigError(
                f"savepoint={self.savepoint!r} is no folder: give its path", savepoint=self.savepoint
            )

    def _pages(self) -> UiOptions | None:
        has_options = self.ui_token is not None or self.ui_read_only
        if self.ui is None or self.ui is False:
            if has_options:
                raise ConfigError(
                    f"{start_option('ui_token')} and {start_option('ui_read_only')} need {start_option('ui')}: without it "
                    "the job serves no pages"
                )
            return None
        if not isinstance(self.ui, Ui):
            short = Ui(self.ui, token=self.ui_token, read_only=self.ui_read_only)
            return UiOptions.of(short, start_option("ui_token"))
        if has_options:
            raise ConfigError("ui=Ui(...) stands beside ui_token or ui_read_only: give them to Ui")
        return UiOptions.of(self.ui)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Job.start` and `Job.run`."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def without_done_actions(self, earlier: EarlierAttempts) -> StartOptions:
        """Without actions that earlier attempts of the same supervisor completed: repeating them would lose all later progress."""
        restore = self.restore
        if restore is not None and earlier.have_restored(restore):
            _log.info(
                "%s was done before this program died: the job goes on from its newest checkpoint",
                start_option(restore=restore),
            )
            restore = None
        return replace(self, restore=restore, takeover=self.takeover and not earlier.have_claimed)


# ── jobs that must not start ───────────────────────────────────────────────────────────────────


GUARD = 'if __name__ == "__main__":'


class _Loading:
    """The file that is being loaded: one for the process, since a program may start its job in any thread."""

    file: Path | None = None


@contextmanager
def loading(file: Path) -> Iterator[None]:
    """Refuse every start of a job inside the context."""
    before, _Loading.file = _Loading.file, file
    try:
        yield
    finally:
        _Loading.file = before


def refuse_while_loading(call: str) -> None:
    """Called first by everything that starts a job; `call` is the call in the user's file."""
    file, place = _Loading.file, calling_place()
    if file is None:
        return
    error = ConfigError(
        f"{file.name if place is None else place.short}: {call} starts the job while the command line only looks for it in "
        f"{file.name}; nothing was started. Put that line under `{GUARD}`: then `python {file.name}` runs the job as before, "
        f"and `penstock run {file.name}` starts it itself",
        file=str(file) if place is None else place.file,
        line=None if place is None else place.line,
    )
    if place is not None:
        error.add_note(f"{AT}{place}")
    raise error
