"""Holds: a reader that does not own the job keeps a checkpoint from being deleted while it reads it. Driver and readers.

`holds/<token>.json` says until when it is valid; its reader renews it. A reader first writes its hold, then chooses the newest checkpoint,
and then names it in the hold: only that one is kept for it. The run that owns the job looks for valid holds after it has written the
metadata that subsumes a checkpoint, and before it deletes anything of that checkpoint (see `Coordinator`). A reader that chose the
checkpoint has written its hold by then. The hold of a dead reader expires by itself.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.log_fields import in_context
from penstock.ownership.claim import newest_run
from penstock.ownership.heartbeat import last_beat
from penstock.ownership.records import read_small
from penstock.storage import Storage
from penstock.wording import duration

_log = logging.getLogger(__name__)

HOLD_S = 120.0
"""How long a hold is valid without renewal: the clocks of two machines may differ, and storage may be unavailable for a while."""
RENEW_S = 20.0
BELIEVED_S = 3600.0
"""A hold that claims to be valid for longer is not ours, or a clock is wrong: it must not keep checkpoints forever."""
FAR_S = 1e9
"""The largest difference of clocks that is reported."""
TOKEN_DIGITS = 32
ANY = -1
"""In the place of a checkpoint's number."""

_FILE = re.compile(r"holds/([0-9a-f]{1,64})\.json")


class Hold(msgspec.Struct, frozen=True):
    """The content of `holds/<token>.json`."""

    token: str
    until: float
    """Seconds since the epoch, by the clock of the reader."""
    why: str = ""
    checkpoint: int = ANY
    """The only checkpoint that it keeps; `ANY`: its reader has not chosen yet."""
    run: int = 0

    def keeps(self, checkpoint: int, run: int) -> bool:
        """Whether it keeps this checkpoint."""
        return self.checkpoint == ANY or (self.checkpoint, self.run) == (checkpoint, run)

    def is_good(self, now: float) -> bool:
        """Whether it is to be respected."""
        return now < self.until < now + BELIEVED_S


_HOLDS = msgspec.json.Decoder(Hold)


def name_of(token: str) -> str:
    """The name of the file of a hold."""
    return f"holds/{token}.json"


def put_hold(
    storage: Storage, token: str, now: float, why: str = "", *, checkpoint: int = ANY, run: int = 0
) -> None:
    """Put a hold there, or renew it."""
    storage.put(name_of(token), msgspec.json.encode(Hold(token, now + HOLD_S, why, checkpoint, run)))


def release_hold(storage: Storage, token: str) -> None:
    """Take it away; one that is gone already is no error."""
    storage.delete([name_of(token)])


class FoundHolds(NamedTuple):
    """What one look at `holds/` shows."""

    good: list[Hold]
    """To be respected."""
    old: list[str]
    """Holds of dead readers and unreadable files: the owner of the job may delete them."""


def find_holds(storage: Storage, now: float) -> FoundHolds:
    """Read all holds; without any, this costs one listing."""
    names = [name for name in storage.names("holds") if _FILE.fullmatch(name)]
    found = {name: _read(storage, name) for name in names}
    for name, hold in found.items():
        if hold is not None and hold.until >= now + BELIEVED_S:
            _log.warning(
                "%s in %s is not believed: it is to be good for %s, and no hold is. The reader holds nothing; set the clock there",
                *(name, storage.uri, duration(min(hold.until - now, FAR_S))),
            )
    good = [hold for hold in found.values() if hold is not None and hold.is_good(now)]
    return FoundHolds(good, [name for name, hold in found.items() if not _may_come_back(hold, now)])


def _may_come_back(hold: Hold | None, now: float) -> bool:
    """Whether its reader may be one that stood still for a while, and renews it."""
    return hold is not None and abs(hold.until - now) < BELIEVED_S


def _read(storage: Storage, name: str) -> Hold | None:
    try:
        return read_small(storage, name, _HOLDS)
    except FileNotFoundError:
        return None  # released in this moment, or no file
    except msgspec.DecodeError as error:
        _log.warning("%s in %s is not readable, it holds nothing: %s", name, storage.uri, error)
        return None


def _warn_if_behind(storage: Storage, now: float) -> None:
    """A job whose clock is far ahead of this one takes a hold for that of a dead reader."""
    try:
        run = newest_run(storage)
        heartbeat = last_beat(storage, run) if run else None
    except PenstockError as error:
        _log.debug("it cannot be seen whether the clocks differ: %s", error)
        return
    if heartbeat is not None and heartbeat.at - now > HOLD_S / 2:
        _log.warning(
            "the clock here is %s behind that of run %d of the job in %s: what is read may be deleted meanwhile; set the clocks, or read "
            "while the job stands still",
            *(duration(min(heartbeat.at - now, FAR_S)), run, storage.uri),
        )


class Holding:
    """A hold of this process. It keeps every checkpoint until `only` says which one is read. By two threads: the reader's, and its own."""

    def __init__(self, storage: Storage, why: str, token: str, clock: Clock) -> None:
        self.token = token
        self._storage = storage
        self._why = why
        self._clock = clock
        self._lock = threading.Lock()
        self._checkpoint, self._run = ANY, 0
        self._put()

    def only(self, checkpoint: int = ANY, run: int = 0) -> None:
        """Nothing but this checkpoint is read; without one, another is about to be chosen."""
        self._checkpoint, self._run = checkpoint, run
        self.renew()

    def renew(self) -> None:
        """Say that it is still good. A storage that does not take it is tried again soon, and the hold of before is good until then."""
        try:
            self._put()
        except PenstockError as error:
            _log.warning("a hold on checkpoints in %s could not be renewed: %s", self._storage.uri, error)

    def _put(self) -> None:
        with self._lock:
            checkpoint, run = self._checkpoint, self._run
            put_hold(self._storage, self.token, self._clock.wall(), self._why, checkpoint=checkpoint, run=run)


@contextmanager
def holding(storage: Storage, why: str, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[Holding]:
    """Hold until the end of the block, however long that takes. Checkpoints must be listed inside; say which one is read with `only`."""
    held = Holding(storage, why, SYSTEM_RANDOMNESS.token(TOKEN_DIGITS), clock)
    ended = threading.Event()

    def renew() -> None:
        while not clock.wait(ended, RENEW_S):
            held.renew()

    _warn_if_behind(storage, clock.wall())
    thread = threading.Thread(target=in_context(renew), name="penstock-hold", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        ended.set()
        thread.join()
        try:
            release_hold(storage, held.token)
        except UnavailableError as error:
            _log.warning("a hold on checkpoints in %s is left to end by itself: %s", storage.uri, error)
