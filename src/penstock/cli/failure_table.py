"""How failures are printed: what happened, what was decided, what it cost. Driver; no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from penstock.cli.console import plain_console
from penstock.cli.printing import ago, in_brief, moment, visible
from penstock.status.failure_history import grouped
from penstock.status.view import FailureGroup, FailureView
from penstock.wording import counted, duration

SHORT = 300


def cost(failure: FailureView) -> str:
    """What it cost, in words: for how long nothing was processed, and what was done again."""
    if failure.restored_from is None and not failure.back_at:
        return "it has not come back yet"
    origin = "the beginning" if failure.restored_from == -1 else f"checkpoint {failure.restored_from}"
    parts = [f"went on from {origin}" if failure.restored_from is not None else "came back"]
    if failure.down_s is not None:
        parts.append(f"nothing was processed for {duration(failure.down_s)}")
    elif not failure.back_at:
        parts.append("its first batch is not done yet")
    if failure.rows_again is not None:
        parts.append(f"{counted(failure.rows_again, 'row was', 'rows were')} processed again")
    return ", ".join(parts)


def what_happened(failure: FailureView, longest: int = SHORT) -> str:
    """The root cause first."""
    root = f"{failure.root}; so " if failure.root else ""
    return in_brief(f"{root}{failure.error}: {failure.why}", longest)


def print_failures(job: str, failures: Sequence[FailureView], now: float, *, verbose: bool) -> None:
    """The newest last, where people look."""
    console = plain_console()
    if not failures:
        console.print(f"job {job} has no failure that is known", highlight=False)
        return
    for group in reversed(grouped(failures)):
        found = failures[group.begins : group.begins + (group.count if verbose else 1)]
        lines = [line for failure in reversed(found) for line in _lines(failure, now, verbose=verbose)]
        for line in (*lines, *([_in_all(group)] if group.count > 1 else [])):
            console.print(line, soft_wrap=True, highlight=False)


def _in_all(group: FailureGroup) -> Text:
    """Of a failure that came again and again."""
    parts = [f"the same {counted(group.count, 'time')} since {moment(group.first_at)} UTC"]
    if group.down_s is not None:
        parts.append(f"nothing was processed for {duration(group.down_s)} in all")
    if group.rows_again is not None:
        parts.append(f"{counted(group.rows_again, 'row was', 'rows were')} processed again")
    return Text(f"  {', '.join(parts)} (-v: each of them)", "yellow")


def _lines(failure: FailureView, now: float, *, verbose: bool) -> Iterator[Text]:
    yield Text.assemble(
        (f"{moment(failure.at)} UTC", "bold"), (f"  run {failure.run}, {ago(now - failure.at)}", "dim")
    )
    yield Text("  " + what_happened(failure, 10_000 if verbose else SHORT), "red")
    if verbose:
        for text in (*failure.notes, failure.trace):
            if text:
                yield Text("\n".join(f"    {line}" for line in visible(text).splitlines()), "dim")
    if failure.strategy or failure.decision:
        decided = ": ".join(part for part in (failure.strategy, failure.decision) if part)
        yield Text(f"  decided by {visible(decided)}" if failure.strategy else f"  {visible(decided)}")
    yield Text(f"  {cost(failure)}")
