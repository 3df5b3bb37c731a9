"""How a value looks when it comes back from state: a struct is a dictionary, a moment has a zone. Executors.

What is set is given this form at once. Otherwise code would see a tuple in the batch that stored it, and a dictionary in the next:
whether it works would depend on where a batch ends.
"""

from __future__ import annotations

import struct
from datetime import datetime
from types import NoneType
from typing import Any

import pyarrow as pa

from penstock.operators.encoding import CANNOT_ENCODE, encoded, usual_types
from penstock.operators.python_values import python_values

_FLOAT = struct.Struct("f")


class StoredForm:
    """That of one type. Values whose type is among the `usual` ones have it already."""

    __slots__ = ("_fields", "_kind", "usual")

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._fields = [field.name for field in kind] if pa.types.is_struct(kind) else []
        self.usual = usual_types(kind) | {NoneType}

    def of(self, value: Any) -> Any:
        """The value in this form. One that does not fit stays as it is: it is refused, with its name, when it is encoded."""
        kind = self._kind
        if (
            type(value) is datetime
            and pa.types.is_timestamp(kind)
            and (value.tzinfo is None) == (kind.tz is None)
        ):
            return value
        if type(value) is tuple and self._fields and len(value) == len(self._fields):
            return dict(zip(self._fields, value, strict=True))
        try:
            if type(value) is float and pa.types.is_float32(kind):
                return _FLOAT.unpack(_FLOAT.pack(value))[0]
            return python_values(encoded([value], kind))[0]
        except (*CANNOT_ENCODE, struct.error):
            return value
