"""What to do is said in the words of the place that was asked: arguments of Python, or options of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import start_options
from penstock.start_options import asked_on_the_command_line


@pytest.mark.parametrize(
    ("named", "in_python", "typed"),
    [
        (start_options.takeover, "takeover=True", "--takeover"),
        (lambda: start_options.restore(3), "restore=3", "--restore 3"),
        (lambda: start_options.drop_state("c"), "drop_state=('c',)", "--drop-state c"),
        (lambda: start_options.drop_state("a", "b"), "drop_state=('a', 'b')", "--drop-state a --drop-state b"),
        (start_options.drop_state, "drop_state", "--drop-state"),
        (lambda: start_options.drop_sources("a", "b"), "drop_sources=('a', 'b')", "--drop-source a --drop-source b"),
        (start_options.drop_sources, "drop_sources", "--drop-source"),
        (lambda: start_options.rename("a", "b"), "rename={'a': 'b'}", "--rename a=b"),
        (start_options.rename, "rename", "--rename"),
        (lambda: start_options.positions("a", "start"), "positions={'a': 'start'}", "--position a=start"),
        (start_options.positions, "positions", "--position"),
        (start_options.available_now, "available_now=True", "--available-now"),
        (start_options.drain, "drain=True", "--drain"),
    ],
)  # fmt: skip
def test_an_option_is_named_as_it_is_given(named: Callable[[], str], in_python: str, typed: str) -> None:
    """On the command line as one types it, only as long as that is at work."""
    assert named() == in_python
    with asked_on_the_command_line():
        assert named() == typed
    assert named() == in_python
