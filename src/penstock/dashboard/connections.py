"""Limits what a slow or hostile client may cost: deadlines for sending and for reading, and a bound on connections without a token.

uvicorn itself only ends connections that are quiet between two requests. The dashboard's process.
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
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""So much of what was sent may wait for all clients together: beyond that, who has waited longest is cut off."""
MOST_STRANGERS = 200
"""Connections on which nobody has shown a token yet: when there are more, the oldest is ended. So strangers lock nobody out."""
LET_IN = "penstock.let_in"
"""In the scope of a request that has passed the gate for more than what everybody sees."""


class PatientConnection(H11Protocol):
    """A connection of uvicorn's with two deadlines."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made_at = self.loop.time()
        self._sends = _Deadline(self, REQUEST_S)
        self.reads = _Deadline(self, READING_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` comes as soon as anything waits here
        self._watch_request()
        strangers = [one for one in self._others() if not one.is_let_in]
        if len(strangers) > MOST_STRANGERS:
            min(strangers, key=lambda one: one.made_at).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._sends.stop()
        self.reads.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request has come."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """The client does not read as fast as is sent."""
        super().pause_writing()
        self.reads.start()
        unread = sorted((one for one in self._others() if one.reads.since), key=lambda one: one.reads.since)
        waiting_bytes = sum(one.transport.get_write_buffer_size() for one in unread)
        for one in unread:
            if waiting_bytes <= MOST_UNREAD_BYTES:
                break
            waiting_bytes -= one.transport.get_write_buffer_size()
            one.transport.abort()

    def resume_writing(self) -> None:
        """It has read all."""
        self.reads.stop()
        super().resume_writing()

    @property
    def is_let_in(self) -> bool:
        """Whether the last request on it has passed the gate."""
        return self.scope is not None and bool(self.scope.get(LET_IN))

    def _others(self) -> list[PatientConnection]:
        """All open connections of the server, this one among them."""
        return [
            one
            for one in self.connections
            if isinstance(one, PatientConnection) and not one.transport.is_closing()
        ]

    def _watch_request(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._sends.start()
        else:
            self._sends.stop()


class _Deadline:
    """After which a connection is cut, unless it is stopped before."""

    def __init__(self, connection: PatientConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.since = 0.0
        """When it began; 0 while it does not run."""

    def start(self) -> None:
        """Now, unless it runs already."""
        if self._timer is None:
            self.since = self._connection.loop.time()
            self._timer = self._connection.loop.call_later(self._seconds, self._connection.transport.abort)

    def stop(self) -> None:
        """It was met."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.since = 0.0
