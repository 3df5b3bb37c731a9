"""The columns of state as the metadata records them, and what becomes of state whose time to live is another one now. Pure; driver.

A time to live that is new holds from now on. One that is longer now, or was switched off, must not bring back what had expired: all state
of the operator is written anew without it before the first batch, as after a change of parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa

from penstock.checkpoint.completed import OperatorColumns, StoredLifetime, TableColumns
from penstock.errors import CorruptStateError
from penstock.ids import SubtaskId
from penstock.state.backends.base import (
    VALUES,
    OnRescale,
    StateLayout,
    TableLayout,
    visible,
    with_stamps,
)
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import LONG_AGO_US, Lifetime, Measure
from penstock.state.types import spark_type

SwitchedOn = Mapping[str, Mapping[str, int]]
"""For each operator, for each column of stamps, the moment at which the time to live was switched on."""


_Stored = Mapping[str, StoredLifetime]
"""By column of stamps."""


def columns_of(layout: StateLayout, switched_on_us: Mapping[str, int] | None = None) -> OperatorColumns:
    """The columns of an operator's state as the metadata records them."""
    since = switched_on_us or {}
    tables = {
        table.name: TableColumns(
            _described(table.identity),
            _described(table.visible),
            _exactly(table.identity, table.visible),
            table.ordered,
            table.by_time,
            table.on_rescale.value,
        )
        for table in layout.tables
    }
    lifetimes = {
        lifetime.stamp: StoredLifetime(
            table.name,
            lifetime.columns,
            lifetime.ttl_us,
            since.get(lifetime.stamp, 0),
            lifetime.measure.value,
        )
        for table in layout.by_name.values()
        for lifetime in table.lifetimes
    }
    value = visible(layout.value, layout.lifetimes)
    exactly = _exactly(layout.key, value)
    return OperatorColumns(_described(layout.key), _described(value), tables, lifetimes, exactly)


def stored_layout(columns: OperatorColumns) -> StateLayout:
    """The layout of state as a checkpoint records it, with the times to live that it had. Without the job: for those who read state."""
    try:
        return _stored_layout(columns)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
    ) as error:  # Arrow says `OSError` about bytes that make no sense
        why = f"the columns of state by ({', '.join(columns.key)}) cannot be read: {error}"
        raise CorruptStateError(
            f"{why}; nothing was changed; restore an older checkpoint, or take another copy of the savepoint",
            why=why,
        ) from error


def _stored_layout(columns: OperatorColumns) -> StateLayout:
    key, value = _columns(columns.schema, len(columns.key))
    tables = tuple(
        TableLayout(
            name,
            *_columns(table.schema, len(table.identity)),
            ordered=table.ordered,
            by_time=table.by_time,
            on_rescale=OnRescale(table.on_rescale),
        )
        for name, table in columns.tables.items()
    )
    layout = _with_lifetimes(StateLayout(key, value, tables), columns.lifetimes)
    for table in layout.by_name.values():
        for lifetime in table.lifetimes:
            if not {*lifetime.columns} <= {*table.value.names}:
                raise ValueError(
                    f"a time to live is of {lifetime.columns}, the columns are {table.value.names}"
                )
    return layout


def _exactly(identity: pa.Schema, value: pa.Schema) -> bytes:
    data: bytes = pa.schema([*identity, *value]).remove_metadata().serialize().to_pybytes()
    return data


def _columns(schema: bytes, identity: int) -> tuple[pa.Schema, pa.Schema]:
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    _described(found)  # names, also those inside of structs, are decoded only here
    fields = list(found)
    return pa.schema(fields[:identity]), pa.schema(fields[identity:])


def _described(schema: pa.Schema) -> dict[str, str]:
    return {field.name: spark_type(field.type) for field in schema}


@dataclass(frozen=True)
class Lifetimes:
    """The times to live of the job as it is now, beside those of the checkpoint."""

    layouts: Mapping[str, StateLayout]
    stored: Mapping[str, _Stored]
    now_us: int
    watermarks_us: Mapping[str, int] = field(default_factory=dict)
    """By operator, as the checkpoint says; those that are not named have none."""

    @property
    def switched_on(self) -> SwitchedOn:
        """Since when each holds: as the checkpoint says, or from now on."""
        return {
            uid: {
                stamp: known[stamp].switched_on_us if stamp in known else self._now_by(uid, one)
                for stamp, one in columns_of(layout).lifetimes.items()
            }
            for uid, layout in self.layouts.items()
            for known in (self.stored.get(uid, {}),)
        }

    def _now_by(self, uid: str, lifetime: StoredLifetime) -> int:
        """What is stored without a stamp counts from now on; an operator without stored state has none of that, nor are there timers."""
        if Measure(lifetime.measure) is Measure.CLOCK:
            return self.now_us
        if Measure(lifetime.measure) is Measure.FIRED:
            return LONG_AGO_US
        return self.watermarks_us.get(uid, LONG_AGO_US) if uid in self.stored else LONG_AGO_US

    @property
    def brings_back(self) -> frozenset[str]:
        """Operators in whose state values would be seen again that have expired."""
        return frozenset(
            uid
            for uid, layout in self.layouts.items()
            for now in (columns_of(layout).lifetimes,)
            if any(
                stamp not in now or now[stamp].ttl_us > before.ttl_us
                for stamp, before in self.stored.get(uid, {}).items()
            )
        )

    @property
    def former(self) -> tuple[dict[str, StateLayout], SwitchedOn]:
        """The layouts of the job with the times to live of the checkpoint, and since when these hold."""
        layouts = {
            uid: _with_lifetimes(layout, self.stored.get(uid, {})) for uid, layout in self.layouts.items()
        }
        since = {
            uid: {stamp: one.switched_on_us for stamp, one in known.items()}
            for uid, known in self.stored.items()
        }
        return layouts, since

    def fading(self, handles: Mapping[SubtaskId, StateHandle]) -> dict[SubtaskId, StateHandle]:
        """The handles; files of state with a time to live that is new, or another one, fade when it has passed once."""
        return {subtask: self._fading(handle) for subtask, handle in handles.items()}

    def _fading(self, handle: StateHandle) -> StateHandle:
        uid = handle.subtask.uid
        before = {stamp: one.ttl_us for stamp, one in self.stored.get(uid, {}).items()}
        now = columns_of(self.layouts[uid]).lifetimes
        changed = [one for stamp, one in now.items() if before.get(stamp) != one.ttl_us]
        by_event = [one.ttl_us for one in changed if Measure(one.measure) is Measure.WATERMARK]
        by_clock = [one.ttl_us for one in changed if Measure(one.measure) is not Measure.WATERMARK]
        moments: dict[str, int] = {}
        if by_clock:
            moments["fades"] = self.now_us + min(by_clock)
        if by_event and uid in self.watermarks_us:
            moments["fades_event"] = self.watermarks_us[uid] + min(by_event)
        refs = tuple(msgspec.structs.replace(ref, **moments) for ref in handle.refs)
        return msgspec.structs.replace(handle, refs=refs)


def _with_lifetimes(layout: StateLayout, stored: _Stored) -> StateLayout:
    values = _of_table(layout.by_name[VALUES], stored)
    tables = tuple(_of_table(table, stored) for table in layout.tables)
    return replace(layout, value=values.value, tables=tables, lifetimes=values.lifetimes)


def _of_table(table: TableLayout, stored: _Stored) -> TableLayout:
    lifetimes = tuple(
        Lifetime(one.columns, stamp, one.ttl_us, Measure(one.measure))
        for stamp, one in stored.items()
        if one.table == table.name
    )
    return replace(table, value=with_stamps(table.visible, lifetimes), lifetimes=lifetimes)
