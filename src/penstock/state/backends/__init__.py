"""Where state lives while the job works: memory, filesystem, rocksdb. One interface, one test suite over all.

In: key batches and values. Out: values, and a state handle after each batch. Called by operators inside Spark
tasks.
"""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.state.backends.base import OpenState, StateBackend, StateLayout, Workplace
from penstock.state.backends.file_backends import FilesystemBackend, MemoryBackend
from penstock.state.backends.rocksdb import RocksdbBackend

_BACKENDS: dict[str, type[StateBackend]] = {
    backend.name: backend for backend in (FilesystemBackend, MemoryBackend, RocksdbBackend)
}


def backend_named(name: str) -> StateBackend:
    """The backend of this name, with its usual settings."""
    backend = _BACKENDS.get(name) if isinstance(name, str) else None
    if backend is None:
        allowed = ", ".join(repr(known) for known in _BACKENDS)
        raise ConfigError(
            f"backend {name!r} is not known: allowed are {allowed}", value=name, allowed=tuple(_BACKENDS)
        )
    return backend()


__all__ = [
    "FilesystemBackend",
    "MemoryBackend",
    "OpenState",
    "RocksdbBackend",
    "StateBackend",
    "StateLayout",
    "Workplace",
    "backend_named",
]
