"""The outputs of an operator besides its results: dead letters, late rows, and the side outputs of its class. Driver and executors.

They are rows of the same Spark output, with a tag. Whatever Spark does with the results (keeps an attempt, drops another, reads them twice)
it does with all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, UserCodeError
from penstock.operators.state.cells import copy_emitted, shown
from penstock.state.ddl import arrow_schema, schema_ddl
from penstock.wording import did_you_mean

if TYPE_CHECKING:
    from penstock.state.ddl import Columns


RESULTS = ""
"""In place of a tag: rows that have none."""
BAD = "__penstock_bad"
"""The tag of dead letters."""
LATE = "__penstock_late"
"""The tag of rows that came too late; they have the columns of the operator's input."""
LATE_RIGHT = "__penstock_late_right"
"""The same for those of its second input."""

Tags = Mapping[str, pa.Schema]
"""Columns after those of the results, in this order. Each is a row of its output, or null; a result has null in all."""
Outputs = Mapping[str, Sequence[pa.RecordBatch]]
"""Rows by tag."""


def side_tags(names: Iterable[str]) -> dict[str, str]:
    """The tags of an operator's side outputs, by name. They are numbered: to Spark, names that differ only in case are one."""
    return {name: f"__penstock_side_{at}" for at, name in enumerate(names)}


def tagged(outputs: Outputs, schema: pa.Schema, tags: Tags) -> list[pa.RecordBatch]:
    """The rows of all outputs in one schema; unchanged where there are no tags. `schema` is that of the results."""
    if not tags:
        return list(outputs.get(RESULTS, ()))
    kinds = {RESULTS: schema, **tags}
    return [_with_tags(batch, own, kinds) for own in kinds for batch in outputs.get(own, ())]


def _with_tags(batch: pa.RecordBatch, own: str, kinds: Tags) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = [*batch.columns] if own == RESULTS else [pa.nulls(rows, field.type) for field in kinds[RESULTS]]
    names = list(kinds[RESULTS].names)
    for tag, schema in kinds.items():
        if tag != RESULTS:
            columns.append(batch.to_struct_array() if tag == own else pa.nulls(rows, pa.struct(list(schema))))
            names.append(tag)
    return pa.RecordBatch.from_arrays(columns, names=names)


def untagged(rows: pa.RecordBatch, tags: Tags) -> dict[str, pa.RecordBatch]:
    """The rows of a tagged batch by tag, as Spark separates them with expressions of its own."""
    apart = {}
    is_result = pa.repeat(pa.scalar(value=True), rows.num_rows)
    for tag in tags:
        own = rows.column(tag)
        is_result = pc.and_(is_result, own.is_null())
        apart[tag] = pa.RecordBatch.from_struct_array(own.filter(own.is_valid()))
    return {RESULTS: rows.drop_columns(list(tags)).filter(is_result), **apart}


# ── side outputs ───────────────────────────────────────────────────────────────────────────────────


class SideOutput:
    """Another output of an operator, declared as a class attribute: `alerts = SideOutput("card string, amount decimal(12,2)")`.

    `process` gives it rows with `ctx.emit("alerts", row)`, `process_batch` columns with `state.context.emit("alerts", columns)`. What
    `process(...)` of a stream returns has them as a stream, `side("alerts")`. The schema is DDL, a `StructType` or a list of columns.
    """

    def __init__(self, schema: Columns) -> None:
        self.ddl = schema_ddl(schema)
        self.schema: pa.Schema = arrow_schema(self.ddl)

    def __repr__(self) -> str:
        return f"SideOutput({self.ddl!r})"


def declared_sides(operator: object) -> dict[str, SideOutput]:
    """The side outputs of an operator's class, in the order of their names."""
    kind = type(operator)
    return {name: found for name in sorted(dir(kind)) if isinstance(found := getattr(kind, name), SideOutput)}


def check_sides(operator: object, base: type, uid: str) -> None:
    """Refuse, before anything starts, a side output that stands where a method should; `base` is the class of Penstock's."""
    for name in declared_sides(operator):
        if hasattr(base, name):
            raise ConfigError(
                f"operator {uid!r}: the side output {name!r} has the name of a method of {base.__name__}; call it something else",
                operator=uid,
                side=name,
            )


def checked_side(there_are: Collection[str], name: object, uid: str, kind: str) -> str:
    """The name of a declared side output, or a refusal that says which there are; `kind` is the class that declares them."""
    if isinstance(name, str) and name in there_are:
        return name
    missing = f"operator {uid!r} has no side output {name!r}"
    if not there_are:
        raise ConfigError(
            f"{missing}: {kind} declares none; write one into the class, such as alerts = "
            "ps.SideOutput('card string, amount long')",
            operator=uid,
        )
    raise ConfigError(f"{missing}; {_listed(name, there_are)}", operator=uid)


def _listed(name: object, there_are: Iterable[str]) -> str:
    known = list(there_are)
    close = did_you_mean(name, known) if isinstance(name, str) else "give the name, as text"
    return f"there are: {', '.join(known) or 'none'}{f'; {close}' if close else ''}"


class SideRows:
    """The rows that the calls of one task emit: first as given, then encoded where the job reads the side output."""

    call = "process()"
    """What user code wrote, for messages."""

    def __init__(self, operator: str, declared: Mapping[str, SideOutput], read: Collection[str] = ()) -> None:
        self.operator = operator
        self.schemas: dict[str, pa.Schema] = {name: one.schema for name, one in declared.items()}
        self._given: dict[str, list[Any]] = {name: [] for name in declared}
        self._batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in read}
        self._closed = False

    def take(self, name: str, given: Any) -> None:
        """Take what user code emits, in one of its calls."""
        rows = self._given.get(name)
        if rows is None:
            raise self._refusal(name, given)
        rows.append(copy_emitted(given))

    def holds(self, rows: int) -> bool:
        """Whether some side output has at least this number of rows that are not encoded."""
        return any(len(given) >= rows for given in self._given.values())

    def withdrawn(self) -> dict[str, list[Any]]:
        """Return the rows emitted since the last call, by name, and forget them."""
        found = {name: rows for name, rows in self._given.items() if rows}
        for name in found:
            self._given[name] = []
        return found

    def keep(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Keep rows of the right types; those of a side output that is not read are dropped."""
        if name in self._batches:
            self._batches[name].extend(batches)

    def batches(self, name: str) -> list[pa.RecordBatch]:
        """The rows of a side output that is read."""
        return self._batches[name]

    def who(self, name: str) -> str:
        """The beginning of a message about what was emitted."""
        return f"operator {self.operator}, side output {name!r}"

    def close(self) -> None:
        """End the calls: a context that user code has kept can emit nothing more."""
        self._given = {}
        self._closed = True

    def _refusal(self, name: str, given: Any) -> UserCodeError:
        if self._closed:
            return UserCodeError(
                f"operator {self.operator}: emit({name!r}, {shown(given)}) after the call of {self.call} had ended: it would be in no "
                "checkpoint; emit inside the call that got the context",
                operator=self.operator,
            )
        return no_such_side(self.operator, name, self._given)


def no_such_side(operator: str, name: object, there_are: Iterable[str]) -> UserCodeError:
    """The error for an unknown name. No other row would do better, so it ends the run also where bad rows are skipped."""
    return UserCodeError(
        f"operator {operator}: emit({name!r}, ...): there is no such side output; {_listed(name, there_are)}",
        operator=operator,
        is_wrong_name=True,
    )
