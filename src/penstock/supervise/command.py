"""The command that a supervisor repeats. Driver."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def without(arguments: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """The arguments without these options, of which `valued` have a value; what follows `--` are none."""
    kept: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--":
            return [*kept, one, *rest]
        name, equals, _ = one.partition("=")
        if name in valued:
            if not equals:
                next(rest, None)
        elif one not in flags:
            kept.append(one)
    return kept
