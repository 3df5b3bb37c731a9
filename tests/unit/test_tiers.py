"""Which tests each command runs."""

from __future__ import annotations

import re

import pytest

from services import tiers
from services.dealing import ROOT
from services.tiers import LATER, Tier, share


def test_what_is_moved_exists() -> None:
    """A test that is renamed or goes takes its line with it, and none is moved twice."""
    names = [name for moved in LATER for name in moved.names]
    assert len(set(names)) == len(names)
    for name in names:
        module, _, test = name.partition("::")
        text = (ROOT / module).read_text()
        assert not test or re.search(rf"^(def|class) {test.partition('[')[0]}\(", text, re.MULTILINE), name


def test_the_table_for_people_says_the_same() -> None:
    """CONTRIBUTING.md lists what each later command adds, in the words that a run prints."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lists = re.findall(r"^`(make [a-z-]+)` adds:\n\n((?:- .+\n)+)", text, re.MULTILINE)
    rows = [(command, line[2:]) for command, lines in lists for line in lines.splitlines()]
    assert rows[1:] == [(moved.tier.command, moved.what) for moved in LATER]


def test_a_later_command_tries_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random cases grow from command to command, and a few are tried everywhere."""
    tried = {}
    for tier in Tier:
        monkeypatch.setattr(tiers, "_current", tier)
        tried[tier] = (share(200), share(40), share(3), tiers.everything())
    assert tried == {
        Tier.CHECK: (20, 4, 2, False),
        Tier.TEST: (40, 8, 3, False),
        Tier.ALL: (200, 40, 3, True),
        Tier.CHAOS: (200, 40, 3, True),
    }
