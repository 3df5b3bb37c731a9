"""Jobs in storage for tests of the dashboard, and its server as a process, spoken to over sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from builders.plan_settings import plan_settings
from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.ui_options import Ui, UiOptions, address_of
from penstock.dashboard.web_server import ServerProcess, bind, make_server, start_server_process
from penstock.ids import NO_CHECKPOINT
from penstock.ownership.claim import claim, record_descent
from penstock.ownership.heartbeat import beat, beating
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.ownership.runs import RunOutcome, end_of, record_end
from penstock.status.events import CheckpointCompleted, Event, RunFailed, RunStarted
from penstock.status.journal import Budget, segment_name, write_live, write_plan
from penstock.status.live import Progress, SourceLive
from penstock.status.plan import Plan, PlanNode
from penstock.storage import LocalStorage
from services.patience import PATIENCE_S

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using `httpx`")  # its successor is not needed for what is tested here
    from starlette.testclient import TestClient

__all__ = ["TestClient"]

TOKEN = "a-token-of-thirty-two-characters"
HOSTILE = "<script>alert('x')</script>"

SETTINGS = plan_settings()


class StoredJob:
    """A job whose run is this process: alive inside of `running`, dead without."""

    def __init__(self, place: Path, name: str = "views") -> None:
        self.place = place
        self.name = name
        self.storage = LocalStorage(place / name)
        self.events: list[Event] = []
        check_job_record(self.storage, JobRecord(name, 128))
        self.now = time.time()
        owner = claim(self.storage, self.now - 600)  # and no heartbeat since: nobody waits for one so long
        self.run = owner.run
        record_descent(owner, NO_CHECKPOINT)
        nodes = (PlanNode(uid="clicks", kind="source", what=HOSTILE),)
        write_plan(
            self.storage,
            self.run,
            Plan(
                job=name, nodes=nodes, settings=SETTINGS, guarantee="exactly-once", reason="all can go back"
            ),
        )
        self.tell(RunStarted(at=self.now - 60, run=self.run, host="here", pid=os.getpid()))
        self.live()

    def tell(self, *events: Event) -> None:
        self.events += events
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in self.events)
        self.storage.put(segment_name(self.now, "0" * 16, Budget.RUNS, 1), lines)

    def live(self, **changes: Any) -> None:
        usual: dict[str, Any] = {
            "run": self.run,
            "at": time.time(),
            "status": "running",
            "started_at": self.now - 60,
            "batch": 7,
            "rows_per_s": 120.5,
            "sources": {"clicks": SourceLive(rows=70, behind=30)},
        }
        write_live(self.storage, Progress(**{**usual, **changes}))

    def complete(self, checkpoint: int) -> None:
        at = self.now - 30 + checkpoint
        self.tell(
            CheckpointCompleted(
                at=at,
                run=self.run,
                checkpoint=checkpoint,
                triggered_at=at - 1,
                barrier_at=at - 0.5,
                stored_at=at - 0.1,
                duration_ms=1000.0,
                batch_ms=500.0,
                alignment_ms=1.0,
                sync_ms=2.0,
                async_ms=300.0,
                complete_ms=4.0,
                state_bytes=1000,
                new_bytes=10,
                transactions=1,
            )
        )

    def fail(self) -> None:
        self.tell(
            RunFailed(
                at=self.now - 5,
                run=self.run,
                error="ValueError",
                why=HOSTILE,
                strategy="none",
                restarts=False,
            )
        )

    def end(self) -> None:
        record_end(self.storage, end_of(self.run, RunOutcome.STOPPED, self.now))
        beat(self.storage, self.run, self.now, ended=True)

    @contextmanager
    def running(self) -> Iterator[StoredJob]:
        with beating(self.storage, self.run, SYSTEM_CLOCK):
            while not self.storage.names("runs") or self.storage.size(f"runs/{self.run}.alive") is None:
                time.sleep(0.01)
            yield self


def ui_options(ui: str | int = "127.0.0.1:8090", token: str | None = None, **options: Any) -> UiOptions:
    """Those of a server that asks for this token, or for none: most tests are about something else."""
    return msgspec.structs.replace(
        UiOptions.of(Ui(ui, token=token, **options)), token=token, token_is_made=False
    )


@contextmanager
def served(job: StoredJob, **options: Any) -> Iterator[ServerProcess]:
    """The real server for a job, as a child process; without a token, unless one is given."""
    beside = start_server_process(job.storage, job.name, ui_options("127.0.0.1:0", **options))
    try:
        assert get(beside, "/healthz")[0] == 200  # the socket is open at once, and answers when it can
        yield beside
    finally:
        beside.close()


class InThread:
    """The real server in a thread of this process: its limits can be made small."""

    def __init__(self, place: Path, options: UiOptions) -> None:
        self._listening = bind(options)
        self.address = address_of(options.host, self._listening.getsockname()[1])
        self._server = make_server([str(place)], options, self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()

    @property
    def connections(self) -> list[Any]:
        """Those that are open."""
        return list(self._server.server_state.connections)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


Server = ServerProcess | InThread


def port_of(beside: Server) -> int:
    return int(beside.address.rpartition(":")[2])


def connect(beside: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(beside)), timeout=PATIENCE_S)


def rest_of(client: socket.socket) -> bytes:
    """Everything that comes until the server lets go."""
    came = b""
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            came += part
    return came


def raw(beside: Server, text: str) -> tuple[int, bytes]:
    """Send bytes as they are; the status and everything that came back until the server closed."""
    with connect(beside) as client:
        client.sendall(text.encode("latin-1"))
        answer = rest_of(client)
    return (int(answer.split(b" ", 2)[1]) if answer else 0), answer


def get(beside: Server, path: str, *headers: str) -> tuple[int, Any]:
    """A request of a program; the status and the JSON."""
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port_of(beside)}", "Connection: close", *headers]
    status, answer = raw(beside, "\r\n".join([*lines, "", ""]))
    body = answer.partition(b"\r\n\r\n")[2]
    return status, (json.loads(body) if body.startswith((b"{", b"[")) else body)
