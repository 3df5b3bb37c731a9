"""Values that MySQL and MariaDB would change without a word, found before they are sent. Executors.

    enum        a text that is no member but a number chooses the member at that place; case is bent to that of the member
    set         the same; members are put in order
    char        spaces at the end are dropped
    binary(n)   shorter values are filled with zero bytes

Other changes, such as spaces beyond a varchar(n), are told in a note of the server, see `writing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.bad_rows import Change
from penstock.sinks.sql.table import Column
from penstock.sinks.sql.values import plain_texts

_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_ESCAPES = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r"}


def changed_values(batch: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[Change]:
    """Which values would not come back as they are."""
    for values, column in zip(batch.columns, columns, strict=True):
        texts = plain_texts(values) if column.type in {"char", "enum", "set"} else None
        if column.type == "binary":
            size = int(re.sub(r"\D", "", column.declared) or 1)
            short = pc.less(pc.binary_length(values.cast(pa.large_binary())), size)
            yield column.name, short, f"{column.declared} fills shorter values with zero bytes"
        elif texts is not None and column.type == "char":
            yield (
                column.name,
                pc.ends_with(texts, " "),
                f"{column.declared} does not keep spaces at the end of a text",
            )
        elif texts is not None:
            yield column.name, _strangers(texts, column), f"no value of {column.declared}, letter by letter"


def members(declared: str) -> list[str]:
    """The members of an enum or a set, from its declaration in the catalog."""
    return [_ESCAPES.sub(_plain, found) for found in _MEMBER.findall(declared)]


def _plain(found: re.Match[str]) -> str:
    return "'" if found[1] is None else _ESCAPED.get(found[1], found[1])


def _strangers(texts: pa.Array, column: Column) -> pa.Array:
    known = members(column.declared)
    different = pc.unique(texts).drop_null()
    wrong = [text for text in different.to_pylist() if not _is_value(text, known, column.type)]
    return pc.is_in(texts, value_set=pa.array(wrong, texts.type))


def _is_value(text: str, known: Sequence[str], kind: str) -> bool:
    """Of a set: some members, in the order of the declaration, each once."""
    if kind == "enum" or not text:
        return text in known or (kind == "set" and not text)
    chosen = set(text.split(","))
    return text == ",".join(member for member in known if member in chosen)
