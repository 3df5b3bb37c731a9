"""State as bytes, under the user's own encoding: `RawState`. Driver (declared) and executors (run).

Penstock stores the bytes and never looks into them. They are decoded when user code first reads the object, and the
object is encoded when the call is over, with all changes made in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from penstock.errors import BadRecordError, ConfigError, IncompatibleStateError, PenstockError
from penstock.operators.state.cells import UNCHANGING, ColumnCell, shown
from penstock.operators.state.declarations import ColumnState, check_takes
from penstock.operators.state.ttl import TTL

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]

_BYTES = (bytes, bytearray, memoryview)


class RawState(ColumnState):
    """An object per key, stored as bytes: `model = RawState(encode=Model.dumps, decode=Model.loads)`, used as `self.model.value`.

    The object may be changed in place. Without `encode` and `decode` the value is bytes. `default` is an object, too: it is encoded when
    the state is declared, and every key that reads it decodes one of its own. `None` means that there is no value.
    The classic mistake: `pickle`. What it wrote is read only as long as the classes stay what and where they are, and anyone who can write
    to the storage can run code in the job.
    """

    def __init__(
        self,
        *,
        encode: Encode | None = None,
        decode: Decode | None = None,
        default: Any = None,
        ttl: TTL | None = None,
    ) -> None:
        if (encode is None) != (decode is None):
            given, missing = ("encode", "decode") if decode is None else ("decode", "encode")
            raise ConfigError(f"RawState has {given}, but no {missing}: give both, or none for plain bytes")
        if encode is not None:
            check_takes(encode, 1, "encode", "an object")
            check_takes(decode, 1, "decode", "bytes")
        self.encode: Encode = encode or _same
        self.decode: Decode = decode or _same
        super().__init__("binary", default, ttl=ttl)

    def _checked_default(self, default: Any) -> bytes | None:
        if default is None:
            return None
        try:
            data = self.encode(default)
            if isinstance(data, _BYTES):
                data = bytes(data)
                self.decode(data)
                return data
        except Exception as error:
            raise ConfigError(
                f"default={shown(default)} cannot be encoded and decoded: {type(error).__name__}: {error}"
            ) from error
        made = f"of default={shown(default)} encode makes {shown(data)}, which is not bytes"
        plain = f"default={shown(default)} is not bytes; give encode and decode for other objects"
        raise ConfigError(plain if self.encode is _same else made)

    @override
    def make_cell(self, name: str) -> RawCell:
        return self._kind(RawCell)(
            name, self.encode, self.decode, self.default, assigning_touches=self.ttl is not None
        )

    @property
    def value(self) -> Any:
        """The object of the key, or the default."""
        raise self._outside()

    @value.setter
    def value(self, value: Any) -> None:
        raise ConfigError(f"state {self.name!r} can be used only inside process(), not to set {value!r}")


def _same(data: Any) -> Any:
    return data


class RawCell(ColumnCell):
    """In place of a `RawState`. Between two calls it holds only bytes."""

    __slots__ = (
        "_assigning_touches",
        "_decode",
        "_default",
        "_encode",
        "_held",
        "_is_held",
        "_is_set",
    )

    members = "a raw state has .value and .clear()"
    instead = ".value = ..."
    declared_as = "RawState"

    def __init__(
        self,
        name: str,
        encode: Encode,
        decode: Decode,
        default: bytes | None,
        *,
        assigning_touches: bool = False,
    ) -> None:
        super().__init__(name)
        self._assigning_touches = assigning_touches
        self.ends = True
        self._encode = encode
        self._decode = decode
        self._default = default
        self._let_go()

    @override
    def _let_go(self) -> None:
        self._held: Any = None
        self._is_held = False
        self._is_set = False

    def clear(self) -> None:
        """Forget the object of the key."""
        super().clear()
        self._let_go()

    @property
    def value(self) -> Any:
        """The object of the key, or one of the default; decoded at the first look."""
        if not self._is_held:
            self._held = self._decoded()
            self._is_held = True
        return self._held

    @value.setter
    def value(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._held = value
            self._is_held = self._is_set = True

    @override
    def end_call(self) -> None:
        """User code may have changed an object that it read; it is written only if its bytes have changed."""
        if not self._is_held:
            return
        if self._is_set or type(self._held) not in UNCHANGING:
            self._take(self._encoded())
        self._let_go()

    def _take(self, data: bytes) -> None:
        index = self.at
        before = self.values[index]
        if before is None and not self._is_set:
            before = self._default
        if data != before or (self._is_set and self._assigning_touches):
            self.values[index] = data
            self.dirty[index] = 1

    def _decoded(self) -> Any:
        data = self.values[self.at]
        data = self._default if data is None else data
        if data is None:
            return None
        try:
            return self._decode(data)
        except (OSError, MemoryError, PenstockError):
            raise
        except Exception as error:
            # not about the row: no row makes this key readable, so nothing is skipped for it
            raise IncompatibleStateError(
                f"{self._where()}: decode failed on {len(data)} bytes of the state {self.name!r}: {type(error).__name__}: {error}; give "
                f"a decode that reads what earlier runs wrote, or allow the loss with drop_state=({self._keys.operator!r},)",
                **self._facts(),
            ).with_traceback(error.__traceback__) from error

    def _encoded(self) -> bytes:
        try:
            data = self._encode(self._held)
        except (OSError, MemoryError, PenstockError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"{self._where()}: encode failed on {shown(self._held)} for the state {self.name!r}: {type(error).__name__}: {error}",
                **self._facts(),
            ).with_traceback(error.__traceback__) from error
        if not isinstance(data, _BYTES):
            by = "was set to" if self._encode is _same else "has an encode that gave"
            raise BadRecordError(
                f"{self._where()}: the state {self.name!r} {by} {shown(data)}; a raw state is stored as bytes",
                **self._facts(),
            )
        return bytes(data)

    def _where(self) -> str:
        return f"operator {self._keys.operator}, key {shown(self._keys.key(self.at))}"

    def _facts(self) -> dict[str, object]:
        return {
            "operator": self._keys.operator,
            "key": self._keys.key(self.at),
            "state": self.name,
        }
