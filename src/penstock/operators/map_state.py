"""`MapState`: many entries for a key, each a row of its own. Driver (declared)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.operators.batch_tables import BatchMap
from penstock.operators.map_cell import MapCell
from penstock.operators.states import TableState
from penstock.operators.time_to_live import TTL
from penstock.state.backends.base import TableLayout, with_stamps
from penstock.state.ddl import arrow_type, type_ddl

if TYPE_CHECKING:
    from penstock.state.ddl import Type


class MapState(TableState):
    """A dictionary per key, declared as a class attribute: `by_shop = MapState("string", "long")`, used as `self.by_shop["x"] = 1`.

    Each entry is kept for itself: to touch one of a million costs what one costs. Entries whose keys are numbers (decimals up to 18
    digits), dates or moments come in the order of these, others in no promised order. A list that stands in an entry may be changed
    where it is, if it was looked up by its key: `self.seen[day].append(user)`.
    A time to live holds for each entry by itself.
    The classic mistake: `len()` of a map with very many entries, which has to walk through them.
    """

    instead = "[...] = ..."
    cell = MapCell
    columns = BatchMap

    def __init__(self, key_type: Type, value_type: Type, *, ttl: TTL | None = None) -> None:
        super().__init__(ttl)
        self.key_ddl, self.value_ddl = map_types(key_type, value_type, type(self).__name__)

    @override
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        sub, value = self._fields(name)
        lifetimes = self.lifetimes(name)
        values = with_stamps(pa.schema([value]), lifetimes)
        return TableLayout(name, pa.schema([*key, sub]), values, lifetimes=lifetimes)

    def _fields(self, name: str) -> tuple[pa.Field, pa.Field]:
        return pa.field(f"{name}_key", arrow_type(self.key_ddl)), pa.field(name, arrow_type(self.value_ddl))

    @override
    def make_cell(self, name: str) -> MapCell:
        return MapCell(name, *self._fields(name), self.ttl)

    def __getitem__(self, key: Any) -> Any:
        """The value of an entry."""
        raise self._outside()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an entry."""
        raise self._outside()

    if TYPE_CHECKING:

        @overload
        def __get__(self, operator: None, owner: type) -> MapState: ...
        @overload
        def __get__(self, operator: object, owner: type) -> MapCell: ...
        def __get__(self, operator: object, owner: type) -> MapState | MapCell: ...


def map_types(key_type: Type, value_type: Type, state: str) -> tuple[str, str]:
    """The DDL of the types of a map; keys by which no entry can be found are refused. `state` says which kind of state it is."""
    key_ddl, value_ddl = type_ddl(key_type), type_ddl(value_type)
    if pa.types.is_nested(arrow_type(key_ddl)):
        raise ConfigError(
            f"the keys of a {state} cannot be {key_ddl}: entries are found by a number, a text, bytes, a date or a moment; "
            "make a text of it",
            type=key_ddl,
        )
    return key_ddl, value_ddl
