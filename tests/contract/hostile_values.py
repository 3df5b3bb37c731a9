"""Values that break sinks: one column for each type that Spark has, and what an honest reader must find of them.

A value is in its plain form: text is the bytes that Spark hands on (which need not be UTF-8), a day is a number of days, a moment one of
microseconds, a decimal its digits without the point. What is read back is brought into the same form.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

SCALE = 18


def _deep_type(text: pa.DataType) -> pa.DataType:
    """Maps in an array, and a map of arrays, in a struct."""
    maps = pa.list_(pa.map_(text, pa.float64()))
    return pa.struct([("maps", maps), ("named", pa.map_(text, pa.list_(text)))])


DECIMAL = pa.decimal128(38, SCALE)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("real", pa.float64()),
        ("whole", pa.int64()),
        ("exact", DECIMAL),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("texts", pa.list_(pa.string())),
        ("days", pa.list_(pa.date32())),
        ("pair", pa.struct([("a", pa.string()), ("b", pa.float64())])),
        ("named", pa.map_(pa.string(), pa.float64())),
        ("deep", _deep_type(pa.string())),
    ]
)
NESTED = ("texts", "days", "pair", "named", "deep")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEXTS = [
    b"",
    b"\0",
    b"a\0b",
    b"\xff",
    b"\xed\xa0\x80",
    b"ok\xc3",
    "\U0001f600".encode(),
    b"'\"\\`;--",
    b"a\r\nb\tc",
    b"\xef\xbf\xbf",
]
_WORDS = [b"x" * 70_000, b"__HIVE_DEFAULT_PARTITION__", b"null", b"%41/=", b"  ", b".."]
_REALS = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
_MICROS = [
    253402300799999999,
    253402300800000000,
    -62135596800000000,
    -62135596800000001,
    -1,
    2**63 - 1,
    1 - 2**63,
]
_DAYS = [-719163, -719162, 2932896, 2932897, 10**7, 2**31 - 1, -(2**31)]
EDGES: dict[str, list[Any]] = {
    "text": [*_TEXTS, *_WORDS],
    "real": _REALS,
    "whole": [2**63 - 1, -(2**63), 2**53 + 1],
    "exact": [10**38 - 1, 1 - 10**38, 1, -1, 10**SCALE],
    "day": _DAYS,
    "moment": _MICROS,
    "local": _MICROS,
    "raw": _TEXTS,
    "flag": [False],
    "texts": [[], [None], *([text] for text in _TEXTS)],
    "days": [[], *([day] for day in _DAYS)],
    "pair": [*((text, 0.5) for text in _TEXTS), *((b"", real) for real in _REALS)],
    "named": [
        [],
        [(b"a", 1.0), (b"a", 2.0)],
        *([(text, 0.5)] for text in _TEXTS),
        *([(b"", real)] for real in _REALS),
    ],
    "deep": [
        (None, None),
        ([], []),
        ([None, [], [(b"b", 1.0), (b"a", None)]], [(b"", []), (b"x", [None])]),
        ([[(b"a", 1.0), (b"a", 2.0)]], None),
        (None, [(b"a", []), (b"a", [b"x"])]),
        *(([[(text, 0.5)]], [(text, [text])]) for text in _TEXTS),
        *(([[(b"", real)]], None) for real in _REALS),
    ],
}
"""What sinks have stumbled over, or may."""
_TEXT = st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=8)
_DAY = st.integers(-(2**31), 2**31 - 1)
_MOMENT = st.integers(-(2**62), 2**62)
_ANY: dict[str, st.SearchStrategy[Any]] = {
    "text": _TEXT,
    "real": st.floats(),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "exact": st.integers(1 - 10**38, 10**38 - 1),
    "day": _DAY,
    "moment": _MOMENT,
    "local": _MOMENT,
    "raw": st.binary(max_size=20),
    "flag": st.booleans(),
    "texts": st.lists(_TEXT | st.none(), max_size=3),
    "days": st.lists(_DAY, max_size=2),
    "pair": st.tuples(_TEXT, st.floats()),
    "named": st.lists(st.tuples(_TEXT, st.floats()), max_size=2),
    "deep": st.tuples(
        st.lists(st.none() | st.lists(st.tuples(_TEXT, st.none() | st.floats()), max_size=2), max_size=2),
        st.none() | st.lists(st.tuples(_TEXT, st.lists(st.none() | _TEXT, max_size=2)), max_size=2),
    ),
}
PLAIN: dict[str, Any] = {
    "text": b"plain \xc3\xa9",
    "real": 1.5,
    "whole": -7,
    "exact": 15 * 10 ** (SCALE - 1),
    "day": 20_000,
    "moment": 1_700_000_000_123_456,
    "local": 1_700_000_000_123_456,
    "raw": b"\x01\x02",
    "flag": True,
    "texts": [b"a", None],
    "days": [20_000],
    "pair": (b"a", 0.5),
    "named": [(b"a", 0.5)],
    "deep": ([[(b"a", 0.5)], None], [(b"b", [b"c", None])]),
}
"""What every sink that has a form for the column must take."""


def edges(columns: list[str]) -> list[tuple[str, Any]]:
    """Columns and what they hold, one by one."""
    return [(name, value) for name in columns for value in [None, *EDGES[name]]]


def any_values(columns: list[str]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """The same, at random."""
    one = st.sampled_from(columns).flatmap(lambda name: st.tuples(st.just(name), _ANY[name]))
    return st.lists(one, min_size=1, max_size=25)


def row(schema: pa.Schema, number: int, column: str, value: Any) -> pa.RecordBatch:
    """One row in which only the id and this column are not null."""
    found = {"id": pa.array([number], pa.int64()), column: _array(column, value)}
    arrays = [found.get(field.name, pa.nulls(1, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: str, value: Any) -> pa.Array:  # noqa: C901, PLR0911 - one a type
    kind = SCHEMA.field(column).type
    if value is None:
        return pa.nulls(1, kind)
    match column:
        case "text":
            return _unchecked([value])
        case "exact":
            return pa.array([Decimal(f"{value}E-{SCALE}")], kind)
        case "day":
            return pa.array([value], pa.int32()).view(kind)
        case "moment" | "local":
            return pa.array([value], pa.int64()).view(kind)
        case "texts":
            return pa.ListArray.from_arrays([0, len(value)], _unchecked(value))
        case "days":
            return pa.ListArray.from_arrays([0, len(value)], pa.array(value, pa.int32()).view(pa.date32()))
        case "pair":
            return pa.StructArray.from_arrays(
                [_unchecked([value[0]]), pa.array([value[1]], pa.float64())], ["a", "b"]
            )
        case "named":
            items = pa.array([number for _, number in value], pa.float64())
            return pa.MapArray.from_arrays([0, len(value)], _unchecked([key for key, _ in value]), items)
        case "deep":
            row = dict(zip(("maps", "named"), value, strict=True))
            return pa.array([row], _deep_type(pa.binary())).cast(kind, safe=False)
    return pa.array([value], kind)


def _unchecked(texts: list[bytes | None]) -> pa.Array:
    """Strings as Spark hands them on: nobody has looked at the bytes."""
    return pa.array(texts, pa.binary()).view(pa.string())


# What was read, in the plain form


def of_arrow(column: str, found: pa.Scalar) -> Any:  # noqa: PLR0911 - one a type
    """A value of an Arrow table."""
    if not found.is_valid:
        return None
    match column:
        case "day" | "moment" | "local":
            return found.value
        case "days":
            return [one.value for one in found.values]
        case "named":
            return [(key.encode(), number) for key, number in found.as_py()]
        case "pair":
            return (found.as_py()["a"].encode(), found.as_py()["b"])
        case "deep":
            return _deep(**found.as_py())
        case "exact":
            return _digits(found.as_py())
    return _bytes_of_texts(column, found.as_py())


def of_json(column: str, found: Any) -> Any:  # noqa: PLR0911 - one a type
    """A value of a JSON document."""
    if found is None:
        return None
    match column:
        case "raw":
            return base64.b64decode(found)
        case "days":
            return [_days(one) for one in found]
        case "named":
            return [(key.encode(), _real(number)) for key, number in found.items()]
        case "pair":
            return (found["a"].encode(), _real(found["b"]))
        case "deep":
            return _deep(**found)
    return of_text(column, found)


def of_text(column: str, found: Any) -> Any:  # noqa: PLR0911 - one a type
    """A value of a store that keeps texts, and perhaps numbers."""
    if found is None:
        return None
    match column:
        case "day":
            return _days(found)
        case "moment" | "local":
            return _micros(found)
        case "exact":
            return _digits(Decimal(found))
        case "real":
            return float(found)
        case "whole":
            return int(found)
        case "flag":
            return found in {1, "1", "true"}
        case "days" | "named" | "pair" | "texts" | "deep":
            return (
                of_json(column, json.loads(found))
                if isinstance(found, str | bytes)
                else _bytes_of_texts(column, found)
            )
    return _bytes_of_texts(column, found)


def of_python(column: str, found: Any) -> Any:
    """A value as a driver of a database gives it."""
    if isinstance(found, dt.datetime):
        aware = found if found.tzinfo else found.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(found, dt.date):
        return (found - _EPOCH.date()).days
    if column in NESTED and found is not None and not isinstance(found, str | bytes):
        return of_json(column, found)
    return of_text(column, found)


def same(column: str, value: Any, found: Any) -> bool:
    """Whether nothing was changed; negative zero is zero, and JSON knows neither NaN nor infinity inside of lists and structs."""
    if isinstance(value, float) and isinstance(found, float):
        return found == value or (math.isnan(value) and math.isnan(found))
    if column in {"pair", "named"} and value is not None and found is not None:
        return _finite(column, value) == _finite(column, found)
    if column == "deep" and value is not None and found is not None:
        return _finite_deep(*value) == _finite_deep(*found)
    return bool(value == found)


def _finite(column: str, value: Any) -> Any:
    pairs = [value] if column == "pair" else value
    found = [(key, number if number is not None and math.isfinite(number) else None) for key, number in pairs]
    return sorted(found, key=lambda pair: (pair[0] is None, pair[0] or b""))  # a map has no order


def _finite_deep(maps: Any, named: Any) -> Any:
    finite = None if maps is None else [None if one is None else _finite("named", one) for one in maps]
    return finite, None if named is None else sorted(named)


def _deep(maps: Any, named: Any) -> Any:
    """What was read of a `deep`, whose maps are dictionaries or lists of pairs."""
    numbers = None if maps is None else [_entries(one, _real) for one in maps]
    return numbers, _entries(named, lambda texts: _bytes_of_texts("texts", texts))


def _entries(found: Any, plain: Callable[[Any], Any]) -> Any:
    if found is None:
        return None
    pairs = found.items() if isinstance(found, dict) else found
    return [(key.encode(), plain(value)) for key, value in pairs]


def _bytes_of_texts(column: str, found: Any) -> Any:
    if column == "texts":
        return [None if one is None else one.encode() for one in found]
    return found.encode() if column == "text" and isinstance(found, str) else found


def _digits(number: Decimal) -> int:
    with localcontext(prec=100):
        return int(number.scaleb(SCALE))


def _real(number: float | None) -> float | None:
    return None if number is None else float(number)


def _days(text: str) -> int:
    return (dt.date.fromisoformat(text) - _EPOCH.date()).days


def _micros(text: str) -> int:
    found = dt.datetime.fromisoformat(text)
    aware = found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)
