"""Options of a start for uids and positions that differ from the checkpoint: checked before anything is changed. Pure; driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError, IncompatibleStateError
from penstock.ids import checked_name
from penstock.job_spec import Uids
from penstock.recovery.progress_log import NO_POSITION, position_of
from penstock.wording import counted, did_you_mean, start_option

START, LATEST = "start", "latest"

Latest = Callable[[str], Sequence[str]]
"""Where a source ends now, as Spark writes it, one position for each of its streams; raises where that cannot be known."""


@dataclass(frozen=True)
class RestoreOptions:
    """Options of a start that adapt the checkpoint to the job, see `Job.start`."""

    drop_state: tuple[str, ...] = ()
    """Operators, or single states as `operator.state`, that may be lost."""
    drop_sources: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    """By source: `START`, `LATEST`, or a position as `Barrier.positions` shows it."""

    @classmethod
    def checked(
        cls, *, drop_state: object, drop_sources: object, rename: object, positions: object
    ) -> RestoreOptions:
        """Check the options as far as that is possible without the job."""
        return cls(
            _checked_uids(
                "drop_state",
                drop_state,
                "operators, such as 'views', or states of theirs, such as 'views.seen'",
            ),
            _checked_uids("drop_sources", drop_sources, "sources, such as 'clicks'"),
            _checked_rename(rename),
            checked_positions(positions),
        )

    @property
    def former_uids(self) -> dict[str, str]:
        """Old uids by new ones."""
        return {new: old for old, new in self.rename.items()}

    def check_names(self, now: Uids) -> None:
        """Refuse names that the job does not have, or still has."""
        every = {*now.sources, *now.operators, *now.sinks}
        for uid in self.drop_sources:
            if uid in now.sources:
                raise ConfigError(
                    f"{start_option(drop_sources=(uid,))}: the job reads it; take it out of the job, or let it begin anew with "
                    f"{start_option(positions={uid: START})}",
                    uid=uid,
                )
        for old, new in self.rename.items():
            if old in every:
                raise ConfigError(f"{start_option(rename={old: new})}: the job still has {old!r}", uid=old)
            if new not in every:
                raise ConfigError(
                    f"{start_option(rename={old: new})}: the job has no {new!r}. {did_you_mean(new, every)}".strip(),
                    uid=new,
                )
        for uid in self.positions:
            if uid not in now.sources:
                raise ConfigError(
                    f"{start_option('positions')} names {uid!r}, which is no source of the job; it reads {', '.join(now.sources)}. "
                    f"{did_you_mean(uid, now.sources)}".strip(),
                    uid=uid,
                )


def _checked_uids(option: str, value: object, what: str) -> tuple[str, ...]:
    uids = tuple(value) if isinstance(value, tuple | list | set | frozenset) else None
    if uids is None or not all(isinstance(uid, str) and uid for uid in uids):
        raise ConfigError(
            f"{option}={value!r} is not allowed: it takes a tuple of uids of {what}", **{option: value}
        )
    return uids


def _checked_rename(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"rename={value!r} is not allowed: it takes new uids by old ones, such as rename={{'clicks': 'views'}}",
            rename=value,
        )
    pairs = {
        checked_name("uid of rename", old): checked_name("uid of rename", new) for old, new in value.items()
    }
    news = list(pairs.values())
    for old, new in pairs.items():
        if news.count(new) > 1:
            raise ConfigError(f"{start_option('rename')}: two uids would become {new!r}", uid=new)
        if new in pairs:
            raise ConfigError(
                f"{start_option('rename')}: {new!r} is both an old uid and a new one, so that the same start once more would rename "
                f"again; give {old!r} a uid that nothing had, or rename in two starts",
                uid=new,
            )
    return pairs


def checked_positions(value: object) -> dict[str, Any]:
    """Positions by source, as JSON has them."""
    if not isinstance(value, Mapping) or not all(isinstance(uid, str) and uid for uid in value):
        raise ConfigError(
            f"positions={value!r} is not allowed: it takes uids of sources, such as positions={{'clicks': 'latest'}}",
            positions=value,
        )
    return {uid: _checked_position(uid, one) for uid, one in value.items()}


def _checked_position(uid: str, value: object) -> object:
    """As JSON has it. A text is `START`, `LATEST`, or JSON."""
    try:
        given = json.loads(value) if isinstance(value, str) and value not in (START, LATEST) else value
        checked = json.loads(json.dumps(given, allow_nan=False))  # Python reads NaN, which JSON does not have
    except (TypeError, ValueError):
        checked = None
    if checked is None or checked == "" or (isinstance(checked, str) and checked not in (START, LATEST)):
        raise ConfigError(
            f"{start_option(positions={uid: value})} is not allowed: say {START!r}, {LATEST!r}, or a position as a checkpoint shows it, in "
            "JSON",
            uid=uid,
        )
    return checked


# ── positions by choice ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class PositionChoice:
    """The chosen position of one source, and the message for the log."""

    lines: tuple[str, ...]
    said: str


def choose_position(
    uid: str, asked: object, stored: Sequence[str], streams: int, latest: Latest
) -> PositionChoice:
    """What was asked for, as Spark writes it. `stored`: what the checkpoint has, nothing for a source that is new."""
    option = start_option(positions={uid: asked if isinstance(asked, str) else json.dumps(asked)})
    if asked == START:
        said = (
            f"{option}: source {uid!r} forgets its position ({', '.join(stored) or 'it has none'}) and begins where its own options say; "
            "what it has read and reads again counts twice, what it leaves out is lost"
        )
        return PositionChoice((NO_POSITION,) * streams, said)
    if asked == LATEST:
        lines = tuple(latest(uid))
    else:
        every = [asked] if streams == 1 else asked
        if not isinstance(every, list) or len(every) != streams:
            raise ConfigError(
                f"{option}: source {uid!r} has {streams} streaming sources in it; give a list with a position for each",
                uid=uid,
            )
        lines = tuple(json.dumps(one, separators=(",", ":")) for one in every)
        for before, line in zip(stored, lines, strict=False):
            _check_like(option, uid, position_of(before), json.loads(line))
    return PositionChoice(
        lines, f"{option}: source {uid!r} goes on at {', '.join(lines)}; {_told(stored, lines)}"
    )


def _check_like(option: str, uid: str, stored: object, given: object) -> None:
    """A partition that is left out would begin anywhere, and what another source would understand ends the query."""
    if stored is None:
        return
    before, after = dict(_leaves(stored)), dict(_leaves(given))
    missing = [".".join(path) or "a position" for path in before if path not in after]
    if missing:
        raise IncompatibleStateError(
            f"{option}: source {uid!r} is at {json.dumps(stored)}, and what is given says nothing of {', '.join(missing)}; give a position "
            "of the same form, with every partition",
            source=uid,
        )
    at, to = before.get(_FILES), after.get(_FILES)
    if isinstance(at, int) and not (isinstance(to, int) and to <= at):
        raise IncompatibleStateError(
            f"{option}: source {uid!r} reads files, and its position is a number in its own list of files, which ends at {at}: it can "
            "only go back",
            source=uid,
        )


_FILES = ("logOffset",)


def _leaves(position: object, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(position, dict):
        for name, value in position.items():
            yield from _leaves(value, (*above, name))
    else:
        yield above, position


def _told(stored: Sequence[str], lines: Sequence[str]) -> str:
    """The rows that are skipped and those that are read again, as far as positions are numbers."""
    skipped = again = 0
    for before, after in zip(stored, lines, strict=False):
        here = dict(_leaves(position_of(before)))
        for path, value in _leaves(position_of(after)):
            old = here.get(path)
            if isinstance(old, int) and isinstance(value, int):
                skipped, again = skipped + max(0, value - old), again + max(0, old - value)
    parts = [f"{counted(skipped, 'record is', 'records are')} skipped"] if skipped else []
    parts += [f"{counted(again, 'record is', 'records are')} read again and counted twice"] if again else []
    if parts:
        return " and ".join(parts)
    return "it was there already" if list(stored) == list(lines) else "the checkpoint had no such position"
