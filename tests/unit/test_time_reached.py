"""How far time has come, for operators that are renamed or begin anew."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.checkpoint.model import SourceTime, TimeReached

BY_OPERATOR = [
    field.name
    for field in msgspec.structs.fields(TimeReached)
    if "dict" in str(field.type) and field.name != "sources"
]


@pytest.mark.parametrize("field", BY_OPERATOR)
def test_everything_by_operator_goes_along(field: str) -> None:
    """A field that is added to it cannot be forgotten where operators are renamed or dropped."""
    by_uid: Any = {field: {"old": 7, "other": 8}}
    time = TimeReached(**by_uid, sources={"old": SourceTime(3)})
    renamed = time.renamed({"old": "new"})
    assert getattr(renamed, field) == {"new": 7, "other": 8}
    assert renamed.sources == {"new": SourceTime(3)}
    assert getattr(time.without(("old",)), field) == {"other": 8}
    assert time.without(("old",)).sources == time.sources


def test_there_are_such_fields() -> None:
    """The list above is made of what the class has."""
    assert {"watermarks_us", "over_us"} <= set(BY_OPERATOR)
