"""Values that tables of SQL servers hold unchanged, and values that they would cut, bend or refuse."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
SPRING = dt.datetime.fromisoformat("2026-03-29T02:30:00.000001")
Values = dict[str, tuple[pa.DataType, str, list[Any]]]
"""By the name of a column: its type in Arrow, how the server declares it, and values."""
POSTGRES_VALUES: Values = {
    "whole": (pa.int64(), "bigint", [2**63 - 1, -(2**63), 0]),
    "small": (pa.int8(), "smallint", [127, -128, None]),
    "single": (pa.float32(), "real", [1.5, None, float("inf")]),
    "double": (pa.float64(), "double precision", [0.1, None, -1e300]),
    "exact": (pa.decimal128(38, 10), "numeric", [decimal.Decimal("0.0000000001"), None, decimal.Decimal(12)]),
    "yes": (pa.bool_(), "boolean", [True, False, None]),
    "day": (pa.date32(), "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "clock": (pa.time64("us"), "time", [dt.time(23, 59, 59, 999999), None, dt.time(0)]),
    "local": (pa.timestamp("us"), "timestamp", [SPRING, None, dt.datetime.fromisoformat("0001-01-01")]),
    "instant": (
        pa.timestamp("us", "Europe/Berlin"),
        "timestamptz",
        [NOON, None, dt.datetime(1969, 1, 1, tzinfo=dt.UTC)],
    ),
    "span": (
        pa.duration("us"),
        "interval",
        [dt.timedelta(days=-3, microseconds=7), None, dt.timedelta(hours=30)],
    ),
    "bytes": (pa.binary(), "bytea", [b"\x00\xff\n\\", b"", None]),
    "words": (pa.string(), "text", ['a"b,c\n\\.\r\n\\N', "", None]),
    "choice": (pa.dictionary(pa.int8(), pa.string()), "varchar(5)", ["ä€😀", None, "NULL"]),
    "some": (pa.list_(pa.int64()), "jsonb", [[1, None], [], None]),
    "pair": (pa.struct([("a", pa.string())]), "json", [{"a": 'q"'}, {"a": None}, None]),
    "nothing": (pa.null(), "integer", [None, None, None]),
}
MYSQL_VALUES: Values = {
    "whole": (pa.int64(), "bigint", [2**63 - 1, -(2**63)]),
    "double": (pa.float64(), "double", [0.1, -1e300]),
    "exact": (pa.decimal128(30, 10), "decimal(30, 10)", [decimal.Decimal("0.0000000001"), None]),
    "yes": (pa.bool_(), "boolean", [True, None]),
    "day": (pa.date32(), "date", [dt.date(1000, 1, 1), dt.date(9999, 12, 31)]),
    "local": (pa.timestamp("us"), "datetime(6)", [SPRING, None]),
    "instant": (pa.timestamp("us", "Europe/Berlin"), "datetime(6)", [NOON, None]),
    "bytes": (pa.binary(), "blob", [b"\x00\xff\n\\'\"%s", b""]),
    "words": (pa.string(), "text", ["a\"b'c\\'\n%s ? \0", ""]),
    "choice": (pa.dictionary(pa.int8(), pa.string()), "varchar(5)", ["ä€😀", None]),
    "some": (pa.list_(pa.int64()), "json", [[1, None], None]),
}
MYSQL_READS: dict[str, list[Any]] = {"instant": [NOON.replace(tzinfo=None), None], "some": ["[1,null]", None]}
"""What has no type of its own there: times with a zone are in UTC, nested values are text."""
Kept = dict[str, tuple[list[Any], list[Any]]]
"""By the type of a column: values that it keeps, and values that it would cut, bend or refuse."""
POSTGRES_KEPT: Kept = {
    "varchar(3)": (["abc", "ab ", "€😀ä", None], ["abc ", "abcd", "abcd "]),
    "below": (["abc"], ["abc "]),
    "further_below": (["abc"], ["abc "]),
    "char(3)": (["abc", " ab"], ["ab ", "abc ", "abcd"]),
    "bit(3)": (["101"], ["1", "1111"]),
    "integer[]": (["{1,2}"], ["{x}"]),
    "cidr": (["10.0.0.0/8"], ["10.0.0.1/8"]),
    "text": (["a "], ["a\0"]),
}
MYSQL_KEPT: Kept = {
    r"enum('x','y','1','it''s','a\\b')": (["x", "1", "it's", r"a\b", None], ["2", "3", "X", "y ", ""]),
    "set('a','b','2')": (["", "a", "a,b", "2"], ["1", "b,a", "a,a", "A", "a,"]),
    "char(3)": (["", "abc", " a"], ["ab ", "abc ", "abcd"]),
    "varchar(3)": (["abc", "ab ", "€😀ä"], ["abc ", "abcd"]),
    "varchar(3) CHARACTER SET latin1": (["ä  "], ["ä   ", "€😀"]),
    "tinytext": (["x" * 254 + " "], ["x" * 255 + " ", "x" * 256]),
    "binary(2)": ([b"ab", b"\0\0"], [b"a", b"", b"abc"]),
    "varbinary(2)": ([b"", b"a", b"a "], [b"ab "]),
    "inet6": (["::1"], ["1"]),
}
