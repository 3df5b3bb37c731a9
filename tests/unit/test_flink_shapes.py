"""What a view looks like in Flink's shapes: each field that its client and its pages need is there, with a value that is true."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from builders.job_views import NOW, RICH_PLAN, bare_view, rich_view
from penstock.dashboard.flink import checkpoints, job_details, vertices
from penstock.dashboard.flink.terms import (
    DESCRIBED,
    JOB_STATES,
    job_metrics,
    job_state,
    listed,
    nodes,
    vertex_id,
)
from penstock.status.view import JobState, JobView

VIEWS = [
    rich_view(),
    *(bare_view("bare", state) for state in JobState),
    msgspec.structs.replace(rich_view(), live=None),
]


def vertex_shapes(view: JobView) -> list[Any]:
    shapes = (
        vertices.vertex_detail,
        vertices.subtask_times,
        vertices.vertex_hosts,
        vertices.watermarks,
        vertices.vertex_metrics,
        vertices.accumulators,
        vertices.subtask_accumulators,
    )
    return [shape(view, node) for node in nodes(view) for shape in shapes]


def everything(view: JobView) -> list[Any]:
    return [
        job_details.jobs_overview([view]),
        job_details.job_detail(view),
        job_details.job_config(view),
        job_details.applications([view]),
        job_details.application_detail(view),
        job_details.cluster_overview([view], "x"),
        checkpoints.checkpointing_statistics(view),
        checkpoints.checkpoint_config(view),
        job_details.exceptions(view),
        job_metrics(view),
        *vertex_shapes(view),
    ]


def numbers(found: Any) -> list[Any]:
    """Every value of a field that Flink's client reads into a Java number."""
    if isinstance(found, dict):
        own = [
            value
            for name, value in found.items()
            if name.endswith(("-time", "duration", "_size", "_timestamp"))
        ]
        return own + [one for value in found.values() for one in numbers(value)]
    return [one for value in found for one in numbers(value)] if isinstance(found, list) else []


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.name}-{view.state}")
def test_whatever_is_known_is_shown(view: JobView) -> None:
    """Of any job, also of one of which nothing is known, there is an answer in JSON, and what Flink reads as a number is one."""
    for shape in everything(view):
        assert json.loads(msgspec.json.encode(shape)) == json.loads(json.dumps(shape))
        assert all(isinstance(one, int | float | dict) for one in numbers(shape))


@pytest.mark.parametrize(
    ("state", "supervised", "shown"),
    [
        (JobState.RUNNING, False, "RUNNING"),
        (JobState.STOPPING, False, "RUNNING"),
        (JobState.RESTARTING, False, "RESTARTING"),
        (JobState.STOPPED, False, "FINISHED"),
        (JobState.CANCELLED, False, "CANCELED"),
        (JobState.DIED, False, "FAILED"),
        (JobState.DIED, True, "RESTARTING"),
        (JobState.NEW, False, "CREATED"),
    ],
)
def test_states(state: JobState, supervised: bool, shown: str) -> None:
    """A job is in the state that Flink's people would expect; one that died and is started again by its supervisor restarts."""
    view = rich_view(state=state, supervised=supervised)
    assert job_state(view) == shown
    over = shown in ("FINISHED", "CANCELED", "FAILED")
    item = job_details.overview_item(view)
    assert (item["end-time"] == -1) is not over
    assert item["tasks"]["total"] == 4
    assert {job_state(rich_view(state=one)) for one in JobState} <= set(JOB_STATES)


def test_the_graph() -> None:
    """Vertices are those of the plan, connected as it says, and a text with angle brackets cannot become a tag."""
    view = rich_view()
    plan = job_details.plan(view)
    ids = {node.uid: vertex_id(view, node.uid) for node in RICH_PLAN.nodes}
    assert [node["id"] for node in plan["nodes"]] == list(ids.values())
    assert [[one["id"] for one in node["inputs"]] for node in plan["nodes"]] == [
        [],
        [ids["clicks"]],
        [ids["per-page"]],
    ]
    assert plan["nodes"][0]["description"] == "clicks: kafka &lt;clicks&gt;"
    assert all(len(one) == 32 for one in ids.values())
    rows = [
        (one["metrics"]["read-records"], one["metrics"]["write-records"])
        for one in job_details.job_detail(view)["vertices"]
    ]
    assert rows == [(0, 123_456), (123_000, 4000), (4000, 0)]


def test_checkpoints() -> None:
    """History, counts, the newest of each kind, and the subtasks of one, with what they measured."""
    view = rich_view()
    found = checkpoints.checkpointing_statistics(view)
    assert found["counts"] == {"restored": 1, "total": 4, "in_progress": 1, "completed": 2, "failed": 1}
    assert [(one["id"], one["status"]) for one in found["history"]] == [
        (41, "IN_PROGRESS"),
        (40, "COMPLETED"),
        (40, "FAILED"),
        (39, "COMPLETED"),
    ]
    latest = found["latest"]
    assert latest["completed"]["external_path"] == f"{view.storage}/chk-40-r2"
    assert (latest["savepoint"]["id"], latest["savepoint"]["external_path"]) == (39, "/data/savepoints/39-a")
    assert "per-page-1" in latest["failed"]["failure_message"]
    assert latest["restored"] == {
        "id": 39,
        "restore_timestamp": round((NOW - 495) * 1000),
        "is_savepoint": False,
        "external_path": f"{view.storage}/chk-39-r1",
    }
    vertex = vertex_id(view, "per-page")
    details = checkpoints.checkpoint_details(view, 40)
    assert details is not None
    assert set(details["tasks"]) == {
        vertex_id(view, node.uid) for node in RICH_PLAN.nodes
    }  # Flink's pages look for each
    assert details["tasks"][vertex]["num_acknowledged_subtasks"] == 2
    subtasks = checkpoints.subtask_details(view, 40, vertex)
    assert subtasks is not None
    assert [one["checkpoint"] for one in subtasks["subtasks"]] == [
        {"sync": 10, "async": 100},
        {"sync": 20, "async": 700},
    ]
    assert subtasks["summary"]["checkpoint_duration"]["async"]["max"] == 700
    assert checkpoints.subtask_details(view, 40, "0" * 32) is None
    assert checkpoints.checkpoint_details(view, 7) is None


def test_checkpoint_settings() -> None:
    """Durations are milliseconds, and the mode is in lower case, as Flink's server writes it."""
    found = checkpoints.checkpoint_config(rich_view())
    assert found is not None
    assert (found["mode"], found["interval"], found["timeout"]) == ("exactly_once", 10_000, 600_000)
    assert found["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    assert checkpoints.checkpoint_config(bare_view()) is None


def test_exceptions() -> None:
    """A failure is told root cause first, with what was decided and what it cost; more than are asked for are not shown."""
    found = job_details.exceptions(rich_view())
    (entry,) = found["exceptionHistory"]["entries"]
    assert entry["exceptionName"] == "UserCodeError"
    assert entry["stacktrace"].startswith("ZeroDivisionError: division by zero\n")
    for part in ("tried again after 1 s", "checkpoint 39", "11.0 s", "55", "Traceback"):
        assert part in entry["stacktrace"]
    none = job_details.exceptions(rich_view(), most=0)["exceptionHistory"]
    assert none == {"entries": [], "truncated": True}


def test_metrics() -> None:
    """Metrics have Flink's names; a call without names lists them, and one with names has the values of those that exist."""
    values = job_metrics(rich_view())
    assert list(values) == list(DESCRIBED)
    assert values["numRestarts"] == 1
    assert values["lastCheckpointDuration"] == 1500
    assert values["uptime"] == 497_000
    assert job_metrics(bare_view())["lastCheckpointId"] == -1
    assert {"id": "uptime"} in listed(values, None)
    assert listed(values, "numRestarts, nothing") == [{"id": "numRestarts", "value": "1"}]
    down = job_metrics(rich_view(state=JobState.RESTARTING))
    assert (down["uptime"], down["downtime"]) == (0, 500_000)


def test_vertices() -> None:
    """A subtask is on the host and has the rows that it said in the newest checkpoint."""
    view = rich_view()
    node = RICH_PLAN.nodes[1]
    found = vertices.vertex_detail(view, node)
    assert [(one["host"], one["metrics"]["read-records"]) for one in found["subtasks"]] == [
        ("worker-1", 250),
        ("worker-2", 250),
    ]
    assert found["aggregated"]["metrics"]["read-records"]["sum"] == 500
    assert vertices.watermarks(view, node)[0]["value"] == str(round((NOW - 70) * 1000))
    assert vertices.watermarks(view, RICH_PLAN.nodes[2]) == []
    assert vertices.vertex_metrics(view, RICH_PLAN.nodes[0])["0.pendingRecords"] == 1000
