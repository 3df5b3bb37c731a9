"""What to do is said in the words of the place that was asked: arguments of Python, or options of the command line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.run_commands import _pairs
from penstock.start_options import StartOptions
from penstock.wording import asked_on_the_command_line, start_option

SOURCE = Path(ps.__file__).parent


@pytest.mark.parametrize(
    ("given", "in_python", "typed"),
    [
        ({"takeover": True}, "takeover=True", "--takeover"),
        ({"restore": 3}, "restore=3", "--restore 3"),
        ({"savepoint": "/a"}, "savepoint='/a'", "--savepoint /a"),
        ({"drop_state": ("c",)}, "drop_state=('c',)", "--drop-state c"),
        ({"drop_state": ("a", "b")}, "drop_state=('a', 'b')", "--drop-state a --drop-state b"),
        ({"drop_sources": ("a", "b")}, "drop_sources=('a', 'b')", "--drop-source a --drop-source b"),
        ({"rename": {"a": "b"}}, "rename={'a': 'b'}", "--rename a=b"),
        ({"positions": {"a": "start"}}, "positions={'a': 'start'}", "--position a=start"),
        ({"available_now": True}, "available_now=True", "--available-now"),
    ],
)
def test_an_option_is_named_as_it_is_given(given: dict[str, object], in_python: str, typed: str) -> None:
    """On the command line as one types it, only as long as that is at work."""
    assert start_option(**given) == in_python  # type: ignore[arg-type]
    with asked_on_the_command_line():
        assert start_option(**given) == typed  # type: ignore[arg-type]
    assert start_option(**given) == in_python  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "typed"),
    [("drop_sources", "--drop-source"), ("positions", "--position"), ("ui_token", "--ui-token-file")],
)
def test_the_name_of_an_option(name: str, typed: str) -> None:
    """Without a value, it is the name alone."""
    assert start_option(name) == name
    with asked_on_the_command_line():
        assert start_option(name) == typed


def named_options() -> Iterator[str]:
    """Every option that the texts of Penstock name."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "start_option":
                yield from (str(keyword.arg) for keyword in node.keywords)
                yield from (str(one.value) for one in node.args if isinstance(one, ast.Constant))


def test_only_options_that_exist_are_named() -> None:
    """A text cannot propose an option that `start` does not have."""
    named = set(named_options())
    assert "restore" in named
    assert named <= {one.name for one in fields(StartOptions) if one.init}


@pytest.mark.parametrize("name", ["available_now", "takeover", "drain", "claim", "ui_read_only"])
def test_a_switch_takes_only_a_boolean(name: str) -> None:
    """The text "no" does not count as True."""
    given: dict[str, Any] = {name: "no"}
    with pytest.raises(ps.errors.ConfigError, match=f"{name}.* is 'no'; it takes True or False"):
        StartOptions(**given)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"rename": 0}, "rename=0 is not allowed"),
        ({"positions": []}, r"positions=\[\] is not allowed"),
        ({"listeners": 5}, "listeners=5 is not allowed"),
        ({"savepoint": ""}, "savepoint='' is no folder"),
        ({"ui": True, "ui_token": 7}, "token of the dashboard is of type int"),
    ],
)
def test_values_that_are_false_are_no_absent_values(given: dict[str, Any], refusal: str) -> None:
    """What is not of the right type is refused, also if it counts as false."""
    with pytest.raises(ps.errors.ConfigError, match=refusal):
        StartOptions(**given)


def test_a_name_is_given_once() -> None:
    """The second value would win without a word."""
    with pytest.raises(ps.errors.ConfigError, match="--rename names a twice: a=b and a=c; give one of them"):
        _pairs("rename", ["a=b", "x=y", "a=c"])
