"""Random steps on a map and a list of a key: one operator that does them, and the same done with Python's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import penstock as ps

MAP_STEPS = {
    "set": lambda m, a, b: m.__setitem__(a, b),
    "get": lambda m, a, _b: m.get(a, "none"),
    "index": lambda m, a, _b: [m[key] for key in m if key == a],
    "delete": lambda m, a, _b: m.pop(a, "was not there"),
    "setdefault": lambda m, a, b: m.setdefault(a, b),
    "update": lambda m, a, b: m.update({a: b, "x": 1}),
    "items": lambda m, _a, _b: sorted(m.items(), key=repr),
    "values": lambda m, _a, _b: sorted(m.values(), key=repr),
    "len": lambda m, _a, _b: (len(m), bool(m)),
    "clear": lambda m, _a, _b: m.clear(),
    "or": lambda m, a, b: sorted([*(m | {a: b}).items(), *({a: b} | m).items(), *m.copy().items()], key=repr),
    "or in place": lambda m, a, b: m.__ior__({a: b}) is m,
}
LIST_STEPS = {
    "append": lambda one, _a, b: one.append(b),
    "extend": lambda one, a, b: one.extend([b] * (len(a) + 1)),
    "all": lambda one, _a, _b: list(one),
    "len": lambda one, _a, _b: (len(one), bool(one)),
    "index": lambda one, _a, b: one[b] if b < len(one) else "too short",
    "last": lambda one, _a, _b: one[-1] if one else "empty",
    "slice": lambda one, _a, b: one[b:],
    "set": lambda one, _a, b: one.__setitem__(-1, b) if one else None,
    "insert": lambda one, a, b: one.insert(len(a), b),
    "pop": lambda one, _a, _b: one.pop(0) if one else "empty",
    "pop last": lambda one, _a, _b: one.pop() if one else "empty",
    "reverse": lambda one, _a, _b: one.reverse(),
    "sort": lambda one, _a, b: one.sort(key=lambda value: value % 3 if b else value, reverse=b % 2 == 1),
    "add": lambda one, _a, b: (one + [b], [b] + one, one.copy()),  # noqa: RUF005 - it is what is tested
    "add in place": lambda one, _a, b: one.__iadd__([b, b]) is one,
    "find": lambda one, _a, b: (one.count(b), one.index(b) if b in one else None),
    "clear": lambda one, _a, _b: one.clear(),
}
Step = tuple[str, str, str, str, int]
"""The key, 'map' or 'list', what to do, and two arguments."""


def done(step: Step, entries: Any, elements: Any) -> str:
    _, what, name, a, b = step
    result = MAP_STEPS[name](entries, a, b) if what == "map" else LIST_STEPS[name](elements, a, b)
    return json.dumps(result)


class Steps(ps.KeyedProcess):
    """Does what the rows say, and gives what it saw."""

    entries = ps.MapState("string", "long")
    elements = ps.ListState("long")
    calls = ps.ValueState("long", default=0)

    def process(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Iterator[tuple[str, str]]:
        self.calls.value += 1
        for row in rows:
            if row.name == "fail":
                raise ValueError("asked to")
            yield key, done((key, row.what, row.name, row.a, row.b), self.entries, self.elements)
