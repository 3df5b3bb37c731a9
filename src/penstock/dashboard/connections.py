"""How long a client may take: connections on which nothing comes, or from which nobody reads, are ended. The dashboard's process.

uvicorn itself ends only connections that are quiet between two requests. It also writes head and body of an answer one by one, which is
most of what a small answer costs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""So long a client may take to send a request, its body included."""
READING_S = 20.0
"""So long a client may leave unread what was sent to it."""


class PatientConnection(H11Protocol):
    """A connection of uvicorn's with two deadlines."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._sends = _Deadline(self, REQUEST_S)
        self._reads = _Deadline(self, READING_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.transport = _JoinedWrites(transport, self.loop)  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=0)  # `pause_writing` comes as soon as anything waits here
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._sends.stop()
        self._reads.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request has come."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """The client does not read as fast as is sent."""
        super().pause_writing()
        self._reads.start()

    def resume_writing(self) -> None:
        """It has read all."""
        self._reads.stop()
        super().resume_writing()

    def _watch_request(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._sends.start()
        else:
            self._sends.stop()


class _JoinedWrites:
    """A transport that sends at once what is written in one step of the loop: head and body of an answer are one call of the system."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """See `asyncio.Transport.write`."""
        if data:
            if not self._parts:
                self._loop.call_soon(self._flush)
            self._parts.append(data)

    def close(self) -> None:
        """See `asyncio.Transport.close`; what was written goes before."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class _Deadline:
    """After which a connection is cut, unless it is stopped before."""

    def __init__(self, connection: PatientConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Now, unless it runs already."""
        if self._timer is None:
            self._timer = self._connection.loop.call_later(self._seconds, self._connection.transport.abort)

    def stop(self) -> None:
        """It was met."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
