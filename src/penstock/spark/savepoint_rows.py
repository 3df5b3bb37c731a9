"""Turns a user's DataFrames into rows of an operator's tables: checks, casts and names columns, hashes keys. Driver.

The columns of a DataFrame, by the kind of state; the key columns come in addition, and nothing else is allowed:

    values (also several at once)     a column for each
    the result of an aggregate        a column of its name, if only the result is stored: count, sum, min, max and the like
    map                               `name_key` and `name`, one row per entry; or only `name`, with whole maps
    list                              `name_position`, by which elements are ordered, and `name`; or only `name`, with whole arrays
    timers                            `at`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql import types as T  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, TimestampNTZType, TimestampType

from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import PICKING, Kind, partial_name
from penstock.operators.event_time import TimeColumn
from penstock.operators.state.timers import AT, KINDS, timer_table
from penstock.savepoint.views import placed_by, refused_values
from penstock.spark.event_times import in_microseconds
from penstock.spark.key_columns import check_keys, normal, quoted, sort_key
from penstock.spark.savepoint_files import WRONG_HASH, OperatorTable
from penstock.state.backends.base import VALUES, OnRescale, Parts, StateLayout, TableLayout
from penstock.state.keys import GROUP_SHIFT, ORDER, SORT_KEY
from penstock.wording import did_you_mean

_WHOLE: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
"""Integer types and their number of digits."""
_IN_FLOAT, _IN_DOUBLE = 5, 10
"""How many digits of an integer type a float, or a double, holds exactly."""


def loses_nothing(found: T.DataType, wanted: T.DataType) -> bool:
    """Whether every value of `found` is also a value of `wanted`."""
    match found, wanted:
        case T.NullType(), _:
            return True
        case T.ArrayType(), T.ArrayType():
            return loses_nothing(found.elementType, wanted.elementType)
        case T.MapType(), T.MapType():
            return loses_nothing(found.keyType, wanted.keyType) and loses_nothing(
                found.valueType, wanted.valueType
            )
        case T.StructType(), T.StructType():
            return found.names == wanted.names and all(
                loses_nothing(one.dataType, other.dataType)
                for one, other in zip(found.fields, wanted.fields, strict=True)
            )
        case ((T.StringType() | T.CharType() | T.VarcharType()), T.StringType()):
            return True
        case _:
            same = type(found) is type(wanted) and not isinstance(found, T.DecimalType)
            return same or _of_numbers(found, wanted)


def _of_numbers(found: T.DataType, wanted: T.DataType) -> bool:
    digits = _WHOLE.get(type(found))
    match wanted:
        case T.DoubleType():
            return isinstance(found, T.FloatType) or (digits or 99) <= _IN_DOUBLE
        case T.FloatType():
            return (digits or 99) <= _IN_FLOAT
        case T.DecimalType():
            if isinstance(found, T.DecimalType):
                whole = found.precision - found.scale
                return found.scale <= wanted.scale and whole <= wanted.precision - wanted.scale
            return digits is not None and digits <= wanted.precision - wanted.scale
        case _:
            return digits is not None and digits <= _WHOLE.get(type(wanted), 0)


TIMERS = {f"timers by {by}": timer_table(by, pa.schema([])).name for by in KINDS}
"""The tables of timers, by the names that users see."""

_ALSO = "also"
"""A temporary column: the number that places a row together with its key."""

Given = DataFrame | Mapping[str, DataFrame]
"""The state of an operator: values in one DataFrame, or a DataFrame for each state."""


@dataclass(frozen=True)
class OperatorRows:
    """The tables of one operator, filled by a user."""

    uid: str
    layout: StateLayout
    max_parallelism: int

    @property
    def states(self) -> list[str]:
        """The states for which a user can give rows."""
        shown = [*self._columns_by_state, *(t.name for t in self.layout.tables if is_list(t) or _is_map(t))]
        return [*shown, *(name for name, table in TIMERS.items() if table in self.layout.by_name)]

    @property
    def _columns_by_state(self) -> dict[str, str]:
        """Stored columns by the names that users see: states, or aggregates of which a single number is stored."""
        stored = [field.name for field in self.layout.by_name[VALUES].visible]
        if refused_values(self.layout):
            return {}
        found = {name: name for name in stored if not name.startswith("__")}
        for kind in Kind:
            for name in stored:
                prefix, suffix = partial_name("", kind)[:2], partial_name("", kind)[2:]
                if not name.startswith(prefix) or not name.endswith(suffix):
                    continue
                aggregate = name[len(prefix) : -len(suffix)]
                known = [one for one in stored if one in {partial_name(aggregate, other) for other in Kind}]
                if known == [name] and kind not in (Kind.COUNT_DISTINCT, *PICKING):
                    found[aggregate] = name
        return found

    # ── what was given ─────────────────────────────────────────────────────────────────────────

    def tables(self, given: Given) -> dict[str, list[DataFrame]]:
        """The prepared rows of each given table. Values may come in several parts, each with its own columns."""
        if isinstance(given, DataFrame):
            return {VALUES: self._values({"": given})}
        if not isinstance(given, Mapping) or not all(isinstance(one, DataFrame) for one in given.values()):
            raise ConfigError(
                f"operator {self.uid!r}: its state is given as {given!r}; give a DataFrame, or a dictionary with one for each state",
                operator=self.uid,
            )
        for name in given:
            self._check_known(name)
        values = {name: frame for name, frame in given.items() if name in self._columns_by_state}
        found = {VALUES: self._values(values)} if values else {}
        for name, frame in given.items():
            if name not in values:
                table = self._table(TIMERS.get(name, name))
                found[table.layout.name] = [self._rows_of(name, table, frame)]
        return found

    def _table(self, name: str) -> OperatorTable:
        return OperatorTable.of(self.uid, self.layout, name)

    def _check_known(self, name: str) -> None:
        if name in self.states:
            return
        table = self.layout.by_name.get(name)
        if table is not None and table.on_rescale is not OnRescale.BY_KEY:
            why = "is a state of subtasks, of no key, which cannot be written; let the job begin without it"
        elif refused := refused_values(self.layout):
            why = refused
        elif any(partial_name(name, kind) in self.layout.value.names for kind in Kind):
            why = "keeps more than its result, which alone cannot be set; write_savepoint computes it from history={...}"
        else:
            close = did_you_mean(name, self.states)
            why = f"does not exist; there {_are(self.states)}" + (f"; {close}" if close else "")
        raise ConfigError(f"operator {self.uid!r}: the state {name!r} {why}", operator=self.uid, state=name)

    def _values(self, given: Mapping[str, DataFrame]) -> list[DataFrame]:
        """The given values of keys, including nulls."""
        table = self._table(VALUES)
        parts, seen = [], set[str]()
        for name, frame in given.items():
            self.check_keys(frame, name)
            own = [one for one in frame.columns if one not in self.layout.key.names]
            if name and own != [name]:
                raise self._other_columns(name, frame, [name])
            for one in own:
                self._check_known(one)
                if one not in self._columns_by_state or one in seen:
                    raise self._other_columns(name, frame, list(self._columns_by_state))
            seen.update(own)
            columns = {self._columns_by_state[one]: one for one in own}
            if not own:
                raise self._other_columns(name, frame, list(self._columns_by_state))
            parts.append(self.prepared(frame, table, columns))
        return parts

    def _rows_of(self, name: str, table: OperatorTable, frame: DataFrame) -> DataFrame:
        self.check_keys(frame, name)
        if name in TIMERS:
            return self._timers(name, table, frame)
        frame = self._exploded(name, table, frame)
        if not is_list(table.layout):
            sub = f"{name}_key"
            self._check_columns(name, frame, [sub, name])
            return self.prepared(frame, table, {sub: sub, name: name})
        place = f"{name}_position"
        self._check_columns(name, frame, [place, name])
        keys = [F.col(quoted(key)) for key in self.layout.key.names]
        in_order = Window.partitionBy(*keys).orderBy(F.col(quoted(place)))
        numbered = frame.withColumn(place, F.row_number().over(in_order).cast("long") - F.lit(1))
        return self.prepared(numbered, table, {place: place, name: name})

    def _timers(self, name: str, table: OperatorTable, frame: DataFrame) -> DataFrame:
        self._check_columns(name, frame, ["at"])
        if not isinstance(frame.schema["at"].dataType, TimestampType | TimestampNTZType):
            raise ConfigError(
                f"operator {self.uid!r}: the column 'at' of {name!r} is {frame.schema['at'].dataType.simpleString()}, not a timestamp",
                operator=self.uid,
            )
        (stamp,) = table.layout.value.names
        timed = frame.where(F.col("at").isNotNull()).withColumn(
            "at", in_microseconds(TimeColumn("at"), frame)
        )
        return self.prepared(timed, table, {AT: "at", stamp: "at"})

    def _exploded(self, name: str, table: OperatorTable, frame: DataFrame) -> DataFrame:
        """One row for each entry or element of whole maps or arrays."""
        keys = [F.col(quoted(key)) for key in self.layout.key.names]
        kind = frame.schema[name].dataType if name in frame.columns else None
        own = [one for one in frame.columns if one not in self.layout.key.names]
        if own != [name] or not isinstance(kind, ArrayType if is_list(table.layout) else MapType):
            return frame
        if is_list(table.layout):
            return frame.select(*keys, F.posexplode(F.col(quoted(name))).alias(f"{name}_position", name))
        return frame.select(*keys, F.explode(F.col(quoted(name))).alias(f"{name}_key", name))

    # ── columns ────────────────────────────────────────────────────────────────────────────────

    def check_keys(self, frame: DataFrame, name: str) -> None:
        """Refuse rows without the key columns; `name` is their state."""
        missing = [key for key in self.layout.key.names if key not in frame.columns]
        if missing:
            raise ConfigError(
                f"operator {self.uid!r}: the rows {_of(name)}have no column {missing[0]!r}, which is part of the key; they have "
                f"{', '.join(frame.columns)}",
                operator=self.uid,
                column=missing[0],
            )
        check_keys(frame, tuple(self.layout.key.names), self.uid)

    def _check_columns(self, name: str, frame: DataFrame, wanted: Sequence[str]) -> None:
        if sorted(frame.columns) != sorted([*self.layout.key.names, *wanted]):
            raise self._other_columns(name, frame, wanted)

    def _other_columns(self, name: str, frame: DataFrame, wanted: Sequence[str]) -> ConfigError:
        return ConfigError(
            f"operator {self.uid!r}: the rows {_of(name)}have the columns {', '.join(frame.columns)}; they take the key "
            f"({', '.join(self.layout.key.names)}) and {', '.join(wanted)}",
            operator=self.uid,
            columns=tuple(frame.columns),
        )

    def prepared(self, frame: DataFrame, table: OperatorTable, columns: Mapping[str, str]) -> DataFrame:
        """The key and some columns of a table, under their internal names. `columns` maps stored names to the user's."""
        sources = {**{key: key for key in self.layout.key.names}, **columns}
        selected = [
            self._cast(frame, sources[field.name], field, is_identity=plain in table.identity).alias(plain)
            for field, plain in zip(table.fields, table.names, strict=True)
            if field.name in sources
        ]
        return frame.select(*selected)

    def _cast(self, frame: DataFrame, name: str, wanted: pa.Field, *, is_identity: bool) -> Column:
        kind = spark_type(wanted.type)
        cast = safely_cast(frame, name, kind, self.uid)
        return normal(cast, kind) if is_identity else cast

    def placed(self, rows: DataFrame, table: OperatorTable) -> DataFrame:
        """Prepared rows with their sort key. Missing columns become null, missing counts 0.

        Rows from the savepoint keep their second sort number.
        """
        keys, rows = self._hashed(rows, table)
        number = sort_key(keys, self.max_parallelism)
        if (
            SORT_KEY in rows.columns
        ):  # rows from the savepoint: the hash of a key is the same whatever its key group
            before, low = F.col(SORT_KEY), F.lit((1 << GROUP_SHIFT) - 1)
            differs = before.bitwiseAND(low) != number.bitwiseAND(low)
            number = F.when(before.isNotNull() & differs, F.lit(WRONG_HASH).cast("long")).otherwise(number)
        columns = [
            _filled(
                field, F.col(plain) if plain in rows.columns else F.lit(None).cast(spark_type(field.type))
            ).alias(plain)
            for field, plain in zip(table.fields, table.names, strict=True)
        ]
        orders = [F.col(ORDER)] if ORDER in rows.columns else []
        return rows.select(number.alias(SORT_KEY), *orders, *columns)

    def _hashed(self, rows: DataFrame, table: OperatorTable) -> tuple[tuple[str, ...], DataFrame]:
        """The columns that place a row: the key, and the number that the operator adds to it."""
        keys = tuple(table.names[: table.keys])
        also, names = placed_by(self.layout), table.layout.identity.names
        if also is None or len(names) == len(keys) or names[len(keys)] != also.column:
            return keys, rows
        number = F.col(table.names[len(keys)]) + F.lit(also.moved_us)
        return (*keys, _ALSO), rows.withColumn(_ALSO, number)


def joined(parts: Sequence[DataFrame], table: OperatorTable, of: Parts) -> DataFrame:
    """One row per key from parts with different columns.

    A null state is no state, so keys with only nulls are left out. Rows that are one whole, such as those of a lookup, are kept.
    """
    rows = reduce(lambda one, other: one.join(other, on=table.identity, how="outer"), parts)
    return rows.where(has_values(rows, table)) if of.divisible else rows


def has_values(rows: DataFrame, table: OperatorTable) -> Column:
    """Whether a row has any value that is not null."""
    values = [one for one in table.names[len(table.identity) :] if one in rows.columns]
    return reduce(or_, (F.col(one).isNotNull() for one in values), F.lit(not values))


def _filled(field: pa.Field, column: Column) -> Column:
    """The column with 0 instead of null if it is a count."""
    counts = field.name.startswith("__") and field.name.endswith(("_count", "_count_distinct"))
    return F.coalesce(column, F.lit(0).cast("long")) if counts and field.type == pa.int64() else column


def safely_cast(frame: DataFrame, name: str, kind: DataType, uid: str) -> Column:
    """A column of the operator `uid`, cast to another type if no value can be lost."""
    column, found = F.col(quoted(name)), frame.schema[name].dataType
    if not loses_nothing(found, kind):
        raise ConfigError(
            f"operator {uid!r}: the column {name!r} is {found.simpleString()}, the job has {kind.simpleString()}, and not every value of "
            "the one is a value of the other; cast it yourself",
            operator=uid,
            column=name,
            found=found.simpleString(),
            wanted=kind.simpleString(),
        )
    return column if found == kind else column.cast(kind)


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of a type of state."""
    found: DataType = from_arrow_type(kind, prefer_timestamp_ntz=True)
    return found


def is_list(table: TableLayout) -> bool:
    """Whether the table holds elements of lists."""
    return table.on_rescale is OnRescale.BY_KEY and table.identity.names[-1] == f"{table.name}_position"


def _is_map(table: TableLayout) -> bool:
    return table.on_rescale is OnRescale.BY_KEY and table.identity.names[-1] == f"{table.name}_key"


def _of(name: str) -> str:
    return f"of {name!r} " if name else ""


def _are(names: Sequence[str]) -> str:
    if not names:
        return "is none that could be written"
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"
