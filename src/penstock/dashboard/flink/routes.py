"""The paths of Flink's REST interface, each with and without `/v1`. The dashboard's process.

An error is `{"errors": ["..."]}` with a status of 400 or above. Flink's other form, a `failure-cause` in a COMPLETED answer, contains a
serialized Java object; without one, Flink's client polls forever.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.flink import checkpoints, job_details, operations, vertices
from penstock.dashboard.flink.terms import Json, Refused, job_metrics, job_state, listed, node_of
from penstock.dashboard.savepoint_disposal import dispose
from penstock.dashboard.status_poller import JobViews
from penstock.decoding import decoded
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.ids import SYSTEM_RANDOMNESS, secret_bytes
from penstock.status.jobs import FoundJob
from penstock.status.plan import PlanNode
from penstock.status.view import JobView
from penstock.version import __version__

_log = logging.getLogger(__name__)

PREFIXES = ("/v1", "")
REFRESH_MS = 3000
VERSION = f"Penstock {__version__}"

_KEY_BYTES = 32
_TOKEN_DIGITS = 16

Endpoint = Callable[[Request], Awaitable[Response]]
_T = TypeVar("_T")


def flink_routes(
    jobs: JobViews,
    *,
    read_only: bool = False,
    savepoints: Sequence[str] = (),
) -> list[Route]:
    """All routes of Flink's REST interface. `read_only`: refuse requests to jobs.

    `savepoints`: folders below which savepoints may be made and deleted, see `UiOptions.savepoints`.
    """
    rest = _Rest(jobs, read_only=read_only, savepoints=savepoints)
    return [
        Route(prefix + path, _answering(endpoint), methods=[method])
        for prefix in PREFIXES
        for method, path, endpoint in rest.paths()
    ]


def _answering(endpoint: Endpoint) -> Endpoint:
    """Report errors in the form that Flink's client expects."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refused as refused:
            return _errors(refused.status, str(refused))
        except PenstockError as error:
            return _errors(_status(error), str(error))
        except OSError as error:
            return _errors(500, f"the request failed: {error}")

    return answered


def _status(error: PenstockError) -> int:
    if isinstance(error, ConfigError):
        return 400
    return 503 if isinstance(error, UnavailableError) else 500


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _errors(status: int, text: str) -> Response:
    return _json({"errors": [text]}, status)


async def _body(request: Request, decoder: msgspec.json.Decoder[_T]) -> _T:
    """The decoded body of a request. Without options, Flink's client sends `{}`, others nothing."""
    data = await request.body()  # the gate has bounded it
    try:
        return decoded(decoder, data or b"{}")
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body cannot be decoded: {error}; nothing was done") from error


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 - digits of the largest number
        raise Refused(400, f"{what} is {text[:40]!r}, which is not a number")
    return int(text)


class _Rest:
    """The endpoints of Flink's REST interface."""

    def __init__(self, jobs: JobViews, *, read_only: bool, savepoints: Sequence[str]) -> None:
        self._jobs = jobs
        self._read_only = read_only
        self._savepoints = savepoints
        self._key = secret_bytes(_KEY_BYTES)
        """Signs the ids of disposals, so that the server recognizes them without keeping them."""

    def paths(self) -> list[tuple[str, str, Endpoint]]:
        """The method, path and endpoint of each route."""
        job, node = "/jobs/{job}", "/jobs/{job}/vertices/{vertex}"
        return [
            ("GET", "/overview", self._of_all(lambda views: job_details.cluster_overview(views, VERSION))),
            ("GET", "/config", self._config),
            ("GET", "/jobs", self._of_all(job_details.job_ids)),
            ("GET", "/jobs/overview", self._of_all(job_details.jobs_overview)),
            ("GET", "/applications/overview", self._of_all(job_details.applications)),
            ("GET", "/applications/{job}", self._of_job(job_details.application_detail)),
            ("GET", "/applications/{job}/exceptions", self._exceptions),
            ("POST", "/applications/{job}/cancel", self._cancel),
            ("GET", "/taskmanagers", self._of_all(lambda _: {"taskmanagers": []})),
            ("GET", "/jobmanager/metrics", self._of_all(lambda _: [])),
            ("GET", "/jobmanager/config", self._of_all(lambda _: [])),
            ("GET", job, self._of_job(job_details.job_detail)),
            ("GET", f"{job}/status", self._of_job(lambda view: {"status": job_state(view)})),
            ("GET", f"{job}/plan", self._of_job(lambda view: {"plan": job_details.plan(view)})),
            ("GET", f"{job}/config", self._of_job(job_details.job_config)),
            ("GET", f"{job}/metrics", self._metrics),
            ("GET", f"{job}/exceptions", self._exceptions),
            ("GET", f"{job}/accumulators", self._of_job(lambda _: _NO_ACCUMULATORS)),
            ("GET", f"{job}/jobmanager/config", self._of_job(lambda _: [])),
            ("PATCH", job, self._patch),
            ("GET", f"{job}/checkpoints", self._of_job(checkpoints.checkpointing_statistics)),
            ("GET", f"{job}/checkpoints/config", self._checkpoint_config),
            ("GET", f"{job}/checkpoints/details/{{checkpoint}}", self._checkpoint_details),
            ("GET", f"{job}/checkpoints/details/{{checkpoint}}/subtasks/{{vertex}}", self._subtask_details),
            (
                "POST",
                f"{job}/checkpoints",
                self._asking(operations.CHECKPOINT_REQUESTS, operations.checkpoint),
            ),
            ("GET", f"{job}/checkpoints/{{trigger}}", self._polling(operations.checkpoint_status)),
            (
                "POST",
                f"{job}/savepoints",
                self._asking(
                    operations.SAVEPOINT_REQUESTS, partial(operations.savepoint, savepoints=self._savepoints)
                ),
            ),
            ("GET", f"{job}/savepoints/{{trigger}}", self._polling(operations.savepoint_status)),
            (
                "POST",
                f"{job}/stop",
                self._asking(operations.STOP_REQUESTS, partial(operations.stop, savepoints=self._savepoints)),
            ),
            ("POST", "/savepoint-disposal", self._dispose),
            ("GET", "/savepoint-disposal/{trigger}", self._disposed),
            ("GET", node, self._of_node(vertices.vertex_detail)),
            ("GET", f"{node}/subtasktimes", self._of_node(vertices.subtask_times)),
            ("GET", f"{node}/taskmanagers", self._of_node(vertices.vertex_hosts)),
            ("GET", f"{node}/watermarks", self._of_node(vertices.watermarks)),
            ("GET", f"{node}/backpressure", self._of_node(lambda _, one: vertices.backpressure(one))),
            ("GET", f"{node}/accumulators", self._of_node(vertices.accumulators)),
            ("GET", f"{node}/subtasks/accumulators", self._of_node(vertices.subtask_accumulators)),
            ("GET", f"{node}/metrics", self._vertex_metrics),
            ("GET", f"{node}/subtasks/metrics", self._of_node(lambda _, __: [])),
        ]

    # ── views ──────────────────────────────────────────────────────────────────────────────────

    def _of_all(self, shape: Callable[[list[JobView]], Any]) -> Endpoint:
        async def endpoint(_: Request) -> Response:
            return _json(shape(self._jobs.views()))

        return endpoint

    def _of_job(self, shape: Callable[[JobView], Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return _json(shape(self._view(request)))

        return endpoint

    def _of_node(self, shape: Callable[[JobView, PlanNode], Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return _json(shape(*self._node(request)))

        return endpoint

    def _view(self, request: Request) -> JobView:
        view = self._jobs.view(request.path_params["job"])
        if view is None:
            raise self._no_such_job(request)
        return view

    def _node(self, request: Request) -> tuple[JobView, PlanNode]:
        view = self._view(request)
        vertex = request.path_params["vertex"]
        node = node_of(view, vertex)
        if node is None:
            raise Refused(404, f"job {view.name} has no vertex {vertex[:40]!r}")
        return view, node

    def _no_such_job(self, request: Request) -> Refused:
        job = request.path_params["job"]
        return Refused(
            404, f"there is no job {job[:80]!r}; `flink list -a` and `penstock list` show all jobs"
        )

    async def _config(self, _: Request) -> Response:
        return _json(
            {
                "refresh-interval": REFRESH_MS,
                "timezone-name": "Coordinated Universal Time",
                "timezone-offset": 0,
                "flink-version": VERSION,
                "flink-revision": "",
                "features": {
                    "web-submit": False,
                    "web-cancel": not self._read_only,
                    "web-rescale": False,
                    "web-history": False,
                },
            }
        )

    async def _metrics(self, request: Request) -> Response:
        return _json(listed(job_metrics(self._view(request)), request.query_params.get("get")))

    async def _vertex_metrics(self, request: Request) -> Response:
        values = vertices.vertex_metrics(*self._node(request))
        return _json(listed(values, request.query_params.get("get")))

    async def _exceptions(self, request: Request) -> Response:
        most = _number(request.query_params.get("maxExceptions", str(job_details.MOST)), "maxExceptions")
        return _json(job_details.exceptions(self._view(request), most))

    async def _checkpoint_config(self, request: Request) -> Response:
        found = checkpoints.checkpoint_config(self._view(request))
        if found is None:
            raise Refused(404, "no run of the job has written its settings yet")
        return _json(found)

    async def _checkpoint_details(self, request: Request) -> Response:
        number = _number(request.path_params["checkpoint"], "the checkpoint")
        return _there(checkpoints.checkpoint_details(self._view(request), number), number)

    async def _subtask_details(self, request: Request) -> Response:
        number = _number(request.path_params["checkpoint"], "the checkpoint")
        found = checkpoints.subtask_details(self._view(request), number, request.path_params["vertex"])
        return _there(found, number)

    # ── requests ───────────────────────────────────────────────────────────────────────────────

    def _asking(self, decoder: msgspec.json.Decoder[_T], operation: Callable[..., str]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            body = await _body(request, decoder)
            found = self._asked(request)
            asked = await run_in_threadpool(operation, found, body, by=_by(request), now=SYSTEM_CLOCK.wall())
            return _json({"request-id": asked}, 202)

        return endpoint

    def _polling(self, status: Callable[..., Json]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            view = self._view(request)
            found, trigger = self._jobs.found(view.id), request.path_params["trigger"]
            return _json(await run_in_threadpool(status, found, view, trigger, read_only=self._read_only))

        return endpoint

    async def _patch(self, request: Request) -> Response:
        """`?mode=cancel`, which is the default. Before Flink 1.9, `stop` was a stop without a savepoint."""
        mode = request.query_params.get("mode", "cancel")
        if mode != "cancel":
            raise Refused(
                400,
                f"mode {mode[:40]!r} is not supported, only cancel; POST to .../stop stops a job; nothing was done",
            )
        return await self._cancel(request)

    async def _cancel(self, request: Request) -> Response:
        found = self._asked(request)
        await run_in_threadpool(operations.cancel, found, by=_by(request), now=SYSTEM_CLOCK.wall())
        return _json({}, 202)

    def _asked(self, request: Request) -> FoundJob:
        """The job of a request, unless this server is read-only."""
        self._refuse_if_read_only()
        view = self._view(request)
        return self._jobs.found(view.id)

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise Refused(
                403,
                "this server is read-only; nothing was done; use another server, or the penstock command",
            )

    # ── disposing of savepoints ────────────────────────────────────────────────────────────────

    async def _dispose(self, request: Request) -> Response:
        """Delete the savepoint at once. Errors are answered here, so that polling only reports success."""
        body = await _body(request, operations.DISPOSAL_REQUESTS)
        self._refuse_if_read_only()
        found = [self._jobs.found(view.id) for view in self._jobs.views()]
        await run_in_threadpool(
            dispose, body.path, found, folders=self._savepoints, by=_by(request), now=SYSTEM_CLOCK.wall()
        )
        token = SYSTEM_RANDOMNESS.token(_TOKEN_DIGITS)
        return _json({"request-id": token + self._seal(token)}, 202)

    async def _disposed(self, request: Request) -> Response:
        trigger: str = request.path_params["trigger"]
        token, seal = trigger[:_TOKEN_DIGITS], trigger[_TOKEN_DIGITS:]
        if not hmac.compare_digest(seal.encode(), self._seal(token).encode()):
            raise Refused(404, "this server has not deleted a savepoint with that id since it started")
        return _json(operations.completed({}))

    def _seal(self, token: str) -> str:
        return hmac.new(self._key, token.encode(), hashlib.sha256).hexdigest()[:_TOKEN_DIGITS]


_NO_ACCUMULATORS: Json = {
    "job-accumulators": [],
    "user-task-accumulators": [],
    "serialized-user-task-accumulators": {},
}


def _by(request: Request) -> str:
    """The origin of a request, for the journal and the log."""
    host = request.client.host if request.client is not None else "somewhere"
    return f"Flink's REST interface, from {host}"


def _there(found: Json | None, number: int) -> Response:
    if found is None:
        raise Refused(404, f"checkpoint {number}, or that part of it, is unknown")
    return _json(found)
