"""The command line as a shell calls it, for tests: arguments in, exit code and both streams out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.cli import main


class Result(NamedTuple):
    """What a shell would see."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed for programs."""
        return json.loads(self.out)


Penstock = Callable[..., Result]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    """A function that calls it in this process."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return Result(int(exit_.value.code or 0), *capsys.readouterr())

    return call
