"""What Prometheus reads: the format, Flink's names, and values that are those of the view. The files in `monitoring/` name what exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import promql_parser
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text
from starlette.applications import Starlette

from builders.asgi_client import AsgiClient
from builders.job_views import NOW, RICH_LIVE, bare_view, rich_view
from penstock.dashboard.flink.terms import DESCRIBED
from penstock.dashboard.metrics import FAMILIES, exposition, metrics_route
from penstock.status.events import Event
from penstock.status.jobs import FoundJob
from penstock.status.live import OperatorLive, SinkLive
from penstock.status.view import JobState, JobView

MONITORING = Path(__file__).parents[2] / "monitoring"
GRAFANA = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
HOSTILE = 'x"} 1\nfake_metric{a="b\\'
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
IN_AN_EXPRESSION = re.compile(r"\b((?:penstock|flink)_\w+)(?:\{([^}]*)\})?")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(views: list[JobView]) -> Series:
    """All that was exposed; fails when one is there twice."""
    found: Series = {}
    for family in plain_text(exposition(views).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(views: list[JobView], name: str, **labels: str) -> float:
    (found,) = [
        value
        for (own, has), value in series(views).items()
        if own == name and labels.items() <= dict(has).items()
    ]
    return found


def test_the_format() -> None:
    """Each family has one type and one help, counters end with _total and nothing else does, names are allowed and all of one family together."""
    lines = exposition([rich_view("a"), rich_view("b"), bare_view("c")]).decode().splitlines()
    types = [line.split()[2:] for line in lines if line.startswith("# TYPE ")]
    helps = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    assert len({name for name, _ in types}) == len(types)
    assert helps == [name for name, _ in types]
    assert all(NAME.fullmatch(name) for name, _ in types)
    assert all((kind == "counter") is name.endswith("_total") for name, kind in types)
    order = [line.split("{")[0].split()[0] for line in lines if not line.startswith("#")]
    together = [name for number, name in enumerate(order) if number == 0 or order[number - 1] != name]
    assert len(together) == len(set(together))


def test_names_of_flink() -> None:
    """The metrics of a job are there under the names and labels of Flink's own reporter."""
    view = rich_view()
    for name in DESCRIBED:
        value([view], f"flink_jobmanager_job_{name}", job_id=view.id, job_name="views")
    assert value([view], "flink_jobmanager_job_numberOfCompletedCheckpoints") == 2
    assert value([view], "flink_jobmanager_job_lastCheckpointRestoreTimestamp") == (NOW - 495) * 1000
    assert value([view, bare_view("over", JobState.FINISHED)], "flink_jobmanager_numRunningJobs") == 1
    operator = "flink_taskmanager_job_task_operator_"
    assert value([view], f"{operator}pendingRecords", operator_name="clicks") == 1000
    assert value([view], f"{operator}numLateRecordsDropped", operator_name="per-page") == 5


def test_values_of_ours() -> None:
    """What is measured is what the view says, in seconds and bytes."""
    views = [rich_view()]
    assert value(views, "penstock_job_state", state="running") == 1
    assert sum(value for (name, _), value in series(views).items() if name == "penstock_job_state") == 1
    assert value(views, "penstock_sink_commits_waiting", sink="out") == 2
    assert value(views, "penstock_sink_waiting_seconds", sink="out") == 12
    assert value(views, "penstock_sink_down", sink="out") == 1
    assert value(views, "penstock_operator_state_files", operator="per-page") == 9
    assert value(views, "penstock_operator_watermark_lag_seconds", operator="per-page") == 70
    assert value(views, "penstock_source_behind_rows", source="clicks") == 1000
    assert value(views, "penstock_merge_seconds_total") == 0.25
    assert value(views, "penstock_rows_done_again_total") == 55
    assert value(views, "penstock_checkpoint_age_seconds") == 4
    assert value(views, "penstock_last_down_seconds") == 11
    assert value(views, "penstock_last_checkpoint_phase_seconds", phase="asynchronous") == 0.7
    assert value(views, "penstock_operator_bad_records_total", operator="per-page") == 2


def test_what_a_dead_run_left_is_not_measured() -> None:
    """While no run is up nothing is read, and nobody knows how far behind the sources are."""
    restarting = msgspec.structs.replace(rich_view(), state=JobState.RESTARTING)
    assert value([restarting], "penstock_rows_per_second") == 0
    assert ("penstock_source_behind_rows" in {name for name, _ in series([restarting])}) is False
    assert value([restarting], "penstock_source_rows_total", source="clicks") > 0


def test_every_family_has_a_value_in_a_rich_view() -> None:
    """No family is only a name."""
    found = {name for name, _ in series([rich_view()])}
    assert {family.name for family in FAMILIES} <= found


def test_the_phases_of_the_last_batch() -> None:
    """Each is a series, in seconds; together they are the duration of the batch."""
    found = {
        phase: value([rich_view()], "penstock_last_batch_phase_seconds", phase=phase)
        for phase in ("look", "plan", "tasks", "state", "barrier", "log", "other")
    }
    assert found["tasks"] == pytest.approx(0.56)
    assert found["state"] == pytest.approx(0.04)
    assert sum(found.values()) == pytest.approx(0.8)


def test_what_is_not_known_is_left_out() -> None:
    """A job of which nothing is known has a state, and no numbers that were never measured."""
    found = series([bare_view()])
    assert {name for name, _ in found if name.startswith("penstock_")} == {
        "penstock_job_state",
        "penstock_job_supervised",
        "penstock_last_look_age_seconds",
        "penstock_run",
        "penstock_restarts_total",
        "penstock_rows_done_again_total",
        "penstock_checkpoint_late",
    }


def test_hostile_names() -> None:
    """Whatever a job or an operator is called, it stays inside of its label, and two that look alike stay two."""
    live = msgspec.structs.replace(RICH_LIVE, sinks={HOSTILE: SinkLive(rows=1), "é\u2028": SinkLive(rows=2)})
    view = msgspec.structs.replace(rich_view(), name=HOSTILE, live=live)
    found = series([view, msgspec.structs.replace(view, id="0" * 32)])
    assert not [name for name, _ in found if name == "fake_metric"]
    mine = {dict(labels)["job_name"] for name, labels in found if name != "flink_jobmanager_numRunningJobs"}
    assert mine == {HOSTILE}
    assert {dict(labels)["sink"] for name, labels in found if name == "penstock_sink_rows_total"} == {
        HOSTILE,
        "é\u2028",
    }


def test_a_record_that_somebody_else_wrote() -> None:
    """A number that is none, and a name that is an operator's and a sink's, cost only their own series."""
    live = msgspec.structs.replace(
        RICH_LIVE, operators={"out": OperatorLive(rows=10**400)}, sinks={"out": SinkLive(rows=7)}
    )
    found = series([msgspec.structs.replace(rich_view(), live=live)])
    assert not [name for name, _ in found if name == "penstock_operator_rows_total"]
    assert [name for name, _ in found if name == "penstock_sink_rows_total"]


class OneJob:
    """Looks at a job that was made by hand."""

    def views(self) -> list[JobView]:
        return [rich_view()]

    def view(self, job: str) -> JobView | None:
        return rich_view()

    def found(self, job: str) -> FoundJob:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("text/plain", plain_text), ("application/openmetrics-text; version=1.0.0", open_metrics)],
)
def test_the_route(accept: str, parse: Any) -> None:
    """A scraper gets the format that it asks for."""
    answer = AsgiClient(Starlette(routes=[metrics_route(OneJob())])).get(
        "/metrics", headers={"accept": accept}
    )
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    names = {sample.name for family in parse(answer.text) for sample in family.samples}
    assert {"penstock_job_state", "penstock_rows_total", "flink_jobmanager_job_uptime"} <= names


def test_the_page_has_every_metric() -> None:
    """The documentation names each metric that exists, and no other."""
    page = (MONITORING.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(penstock_\w+)`", page)) == {family.name for family in FAMILIES}
    assert not [name for name in DESCRIBED if f"`{name}`" not in page]
    assert {rule["alert"] for rule in RULES} == set(re.findall(r"`(Penstock\w+)`", page))


def test_the_page_has_every_event() -> None:
    """The documentation has a line for each kind of event that there is, with its class, and no other."""
    page = (MONITORING.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `([A-Z]\w+)` \| \S", page, re.MULTILINE)
    kinds = {one.__struct_config__.tag: one.__name__ for one in get_args(Event)}
    assert dict(listed) == kinds
    assert len(listed) == len(kinds)


# ── files for Grafana and Prometheus ───────────────────────────────────────────────────────────


def expressions(found: Any) -> Iterator[str]:
    """Every query in the dashboard."""
    if isinstance(found, dict):
        for name, inside in found.items():
            if name in ("expr", "definition") and isinstance(inside, str):
                yield inside
            yield from expressions(inside)
    elif isinstance(found, list):
        for inside in found:
            yield from expressions(inside)


ALL = [*expressions(GRAFANA), *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("expression", ALL)
def test_files_name_only_what_exists(expression: str) -> None:
    """Every metric, label and state in a query is in the exposition of a job of which everything is known; Prometheus can read it."""
    labels: dict[str, set[str]] = {}
    for name, has in series([rich_view()]):
        labels.setdefault(name, set()).update(dict(has))
    used = IN_AN_EXPRESSION.findall(expression)
    assert used
    for name, matchers in used:
        assert name in labels
        for matcher in filter(None, re.split(r",(?=\w+[=!])", matchers)):
            found = re.fullmatch(r'(\w+)(=|!=|=~|!~)"([^"]*)"', matcher)
            assert found is not None, matcher
            assert found[1] in labels[name]
            if found[1] == "state":
                assert set(found[3].split("|")) <= {state.value for state in JobState}
    if not expression.startswith("label_values("):  # which is Grafana's own
        promql_parser.parse(expression)


def test_the_dashboard_is_one() -> None:
    """Each panel has an id of its own, a place inside of the page that no other has, and a query; every metric of ours that alerts use is on it."""
    panels = GRAFANA["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or all(target["expr"] for target in panel["targets"])
    variables = {variable["name"] for variable in GRAFANA["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(panels)))
    assert used <= variables


def test_alert_rules() -> None:
    """Each says when, how bad it is, what happened and what to do; the labels in its words are those of its metric."""
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    labels: dict[str, set[str]] = {}
    for name, has in series([rich_view()]):
        labels.setdefault(name, set()).update(dict(has))
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s"))
        words = json.dumps(rule["annotations"])
        first = IN_AN_EXPRESSION.findall(rule["expr"])[0][0]
        assert set(re.findall(r"\$labels\.(\w+)", words)) <= labels[first]
