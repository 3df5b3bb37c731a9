"""What the command line shows of jobs, running or not: every command on real storages, with files as jobs write them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from builders.calling_penstock import Penstock, caller
from builders.stored_jobs import PLAN, SeenJob, died, failed, healthy, late
from penstock.cli import watch
from penstock.cli.console import plain_console
from penstock.cli.job_arguments import within
from penstock.cli.status_screen import exit_code, status_json
from penstock.cli.watch import WatchScreen, event_line
from penstock.clock import SYSTEM_CLOCK
from penstock.dashboard.metrics import exposition
from penstock.errors import UnavailableError
from penstock.ownership.runs import RunOutcome
from penstock.status import events as told
from penstock.status.health import Tone, verdict
from penstock.status.job_watcher import JobWatcher
from penstock.status.jobs import find_jobs, job_id
from penstock.status.journal import read_plan, write_plan
from penstock.status.live import BatchLive, SinkLive, SourceLive
from penstock.status.view import JobState, JobView


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return caller(monkeypatch, capsys)


@pytest.fixture
def now() -> float:
    return SYSTEM_CLOCK.wall()


def cells(shown: str, job: str) -> list[str]:
    """The first line of a table that begins with this."""
    line = next(line for line in shown.splitlines() if line.startswith(f"{job} "))
    return line.split()


def view_of(place: Path, now: float) -> JobView:
    [found] = find_jobs([str(place)])
    return JobWatcher(found).look(now)


# ── list ───────────────────────────────────────────────────────────────────────────────────────────


def test_all_jobs_of_several_storages(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """Every job is a line, with its state, checkpoint and age, rate, run, restarts, guarantee, id and pages; a late one is marked."""
    healthy(tmp_path / "one", now)
    late(tmp_path / "one", now)
    failed(tmp_path / "two", now)
    shown = penstock("list", tmp_path / "one", tmp_path / "two")
    assert shown.code == 0
    assert "\x1b" not in shown.out
    views = cells(shown.out, "views")
    assert views[:5] == ["views", "running", "1", "h", "41"]
    assert views[7:] == ["52,310", "0", "2", "1", "exactly-once", job_id("views"), "http://127.0.0.1:8090"]
    assert "late" in cells(shown.out, "orders")
    assert cells(shown.out, "invoices")[1] == "failed"
    assert cells(shown.out, "invoices")[-1] == "-", "a job that does not run has no pages"


def test_jobs_as_json(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """The JSON has a list with an object a job, whose names carry their units."""
    healthy(tmp_path, now)
    late(tmp_path, now)
    orders, views = penstock("list", tmp_path, "--json").json
    assert 3 < views.pop("checkpoint_age_s") < 60
    assert views.pop("since") == pytest.approx(now - 3670)
    assert views == {
        "name": "views",
        "id": job_id("views"),
        "storage": (tmp_path / "views").as_uri(),
        "state": "running",
        "needs_attention": False,
        "run": 2,
        "checkpoint": 41,
        "late": False,
        "rows_per_s": 52_310.0,
        "behind": 0,
        "caught_up": "yes",
        "restarts": 1,
        "guarantee": "exactly-once",
        "ui": "http://127.0.0.1:8090",
    }
    assert (orders["late"], orders["behind"], orders["caught_up"]) == (True, None, "no")


def test_a_storage_without_jobs(penstock: Penstock, tmp_path: Path) -> None:
    """It is no failure, and what may be wrong is said where it is in no program's way."""
    assert penstock("list", tmp_path, "--json").json == []
    shown = penstock("list", tmp_path)
    assert (shown.code, shown.out) == (0, "")
    assert "is it the storage given to Job(storage=...)?" in shown.err


@pytest.mark.parametrize(
    "command",
    ["list", "list HERE", "status", "status JOB", "watch", "failures", "checkpoints JOB", "runs", "stop JOB", f"status {job_id('views')}"],
)  # fmt: skip
def test_a_storage_that_is_not_there(
    penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No command takes it for a storage without jobs: the argument is wrong, and the error names the folder."""
    monkeypatch.setattr(watch, "watch", lambda *_, **__: None)  # it would watch for ever
    name, *more = command.split()
    first = [tmp_path] if "HERE" in more else []
    behind = [word for word in more if word != "HERE"]
    shown = penstock(name, *first, tmp_path / "no where", *behind)
    assert (shown.code, shown.out) == (2, "")
    assert f"the folder {(tmp_path / 'no where').as_uri()} does not exist" in shown.err


# ── status ─────────────────────────────────────────────────────────────────────────────────────────


def restarting(place: Path, now: float) -> SeenJob:
    job = healthy(place, now)
    job.live(now, status="restarting", failure="broker away", failed_in_a_row=1, next_try_at=now + 60)
    return job


def restarting_again(place: Path, now: float) -> SeenJob:
    job = healthy(place, now)
    job.live(
        now,
        status="restarting",
        failure="broker away",
        failed_in_a_row=8,
        down_since=now - 3690,
        next_try_at=now + 60,
    )
    return job


def with_a_sink_down(place: Path, now: float) -> SeenJob:
    job = healthy(place, now)
    job.live(now, sinks={"topic": SinkLive(waiting=3, waiting_since=now - 90, down="broker away")})
    return job


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (healthy, 0, "caught up     yes"),
        (restarting, 0, "WARNING broker away.\n  It restarts from its last checkpoint in "),
        (
            restarting_again,
            3,
            "NEEDS ATTENTION broker away. Down for 1 h 1 min, 8 failures in a row.\n  It restarts from its last checkpoint in ",
        ),
        (late, 3, "NEEDS ATTENTION No checkpoint was completed for 2 min"),
        (
            with_a_sink_down,
            3,
            "NEEDS ATTENTION The sink topic does not take commits: broker away. 3 transactions (",
        ),
        (failed, 3, "NEEDS ATTENTION The job has failed for good: UserCodeError: division by [zero]"),
        (died, 3, "NEEDS ATTENTION Its process (pid "),
    ],
)
def test_what_needs_somebody_is_the_exit_code(
    penstock: Penstock,
    tmp_path: Path,
    now: float,
    *,
    make: Callable[[Path, float], SeenJob],
    code: int,
    said: str,
) -> None:
    """Code 0 for a job that is well or comes back by itself, 3 for one at which a person must look; the screen says why and what to do."""
    job = make(tmp_path, now)
    shown = penstock("status", job.place, job.name)
    assert shown.code == code
    assert said in shown.out


def test_one_screen_has_all_of_a_job(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """State, checkpoint, last failure with its cost, graph with what each part does: nothing that an operator asks for is elsewhere."""
    healthy(tmp_path, now)
    shown = penstock("status", tmp_path, "views").out
    for said in (
        "views  running for 1 h 1 min, run 2 on ",
        "of state (39.1 KB new), 1 of 4 given up",
        "ConnectionRefusedError: [Errno 111]; so UnavailableError: the broker",
        "continued from checkpoint 38, nothing was processed for 13 s, 1,234 rows were processed again",
        "└─ counts  aggregate by app",
        "│  └─ topic  kafka",
        "└─ joined  as above",
        "97.7 KB in 3 files, watermark ",
        "5 late rows",
        "rows partly aggregated",
        "nothing waits",
        "http://127.0.0.1:8090",
    ):
        assert " ".join(said.split()) in " ".join(shown.split()), said


@pytest.mark.parametrize(
    ("looked_at", "batches", "shown"),
    [(0.0, 1, False), (1.0, 1, True), (0.0, 0, True)],
    ids=["Spark has not counted yet", "Spark has counted", "before the first batch"],
)
def test_rows_are_shown_when_they_are_counted(
    penstock: Penstock, tmp_path: Path, now: float, *, looked_at: float, batches: int, shown: bool
) -> None:
    """After a batch `0 rows in` is a count; before Spark has counted, nothing is said of rows."""
    source = SourceLive(looked_at=looked_at)
    healthy(tmp_path, now).live(now, batches=batches, rows_in=0, sources={"clicks": source})
    screen = penstock("status", tmp_path, "views").out
    assert ("0 rows in " in screen) is shown
    assert f"{batches} batch" in screen


def test_where_the_time_of_batches_goes(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """One line has the median of each phase, the commit that runs beside the next batch, and why batches are planned anew."""
    phases_ms = {"latestOffset": 12.0, "plan": 8.0, "tasks": 310.0, "state": 25.0, "walCommit": 70.0}
    slow = BatchLive(409, now, 100, 9.0, phases_ms={"tasks": 8000.0, "state": 900.0})
    usual = [BatchLive(batch, now, 100, 0.43, phases_ms=phases_ms) for batch in (412, 411, 410)]
    job = healthy(tmp_path, now)
    job.live(now, recent_batches=(*usual, slow), planned_anew="a transform runs an action")
    screen = " ".join(penstock("status", tmp_path, "views").out.split())
    assert (
        "batch 430 ms: look 12 ms, plan 8 ms, tasks 310 ms (state 25 ms), log 70 ms, other 30 ms (median of 4 batches); commit"
        in screen
    )
    assert " ms, beside the next batch; every batch is planned anew: a transform runs an action" in screen
    job.live(now, recent_batches=usual[:1])
    screen = penstock("status", tmp_path, "views").out
    assert "(median of 1 batch)" in screen
    assert "anew" not in screen
    found = penstock("status", tmp_path, "views", "--json").json["live"]
    assert found["recent_batches"][0][-1]["tasks"] == 310.0
    assert found["planned_anew"] == ""


def test_status_as_json(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """The JSON is the view of the job that pages show, of its history the newest, with what follows from it."""
    died(tmp_path, now, "views").end(RunOutcome.FAILED, now - 650, ValueError("x"))
    shown = penstock("status", tmp_path, "views", "--json")
    found = shown.json
    assert (shown.code, found["exit_code"], found["state"]) == (3, 3, "failed")
    assert found["checkpoints"][0]["checkpoint"] == 3
    assert found["plan"]["nodes"][0]["uid"] == "clicks"
    assert found["caught_up"] == "no"
    assert found["caught_up_why"] == "77 rows in no checkpoint yet"
    assert found["needs"][0]["advice"].endswith("The job continues from checkpoint 3.")


def test_a_job_that_was_stopped_needs_nobody(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """What somebody wanted is exit code 0, and whether it is caught up cannot be known any more."""
    job = SeenJob(tmp_path, started_at=now - 3800)
    job.complete(1, now - 3700)
    job.live(now - 3691)
    job.end(RunOutcome.STOPPED, now - 3690)
    shown = penstock("status", tmp_path, "views")
    assert shown.code == 0
    assert "views  stopped 1 h 1 min ago" in shown.out
    assert "unknown: the job does not run (stopped)" in shown.out


def cancelled_with_a_sink_down(place: Path, now: float) -> SeenJob:
    """A job whose sink `table` did not take commits when it was cancelled."""
    job = SeenJob(place, started_at=now - 3800)
    job.complete(1, now - 3700, committed=False)
    job.tell(told.SinkDown(at=now - 3695, run=job.run, sink="table", why="no route to host", waiting=1))
    job.live(now - 3691, status="cancelled")
    job.end(RunOutcome.CANCELLED, now - 3690)
    return job


def test_what_a_cancelled_job_has_not_committed_needs_a_person(
    penstock: Penstock, tmp_path: Path, now: float
) -> None:
    """Transactions that the last checkpoint promised and a sink did not take are named, with what follows, what to do, and exit code 3."""
    cancelled_with_a_sink_down(tmp_path, now)
    shown = penstock("status", tmp_path, "views")
    assert shown.code == 3
    screen = " ".join(shown.out.split())
    for said in (
        "NEEDS ATTENTION 1 transaction (7 rows) of the sink table waits for a commit",
        "no route to host",
        "Readers do not see these rows.",
        "start the job again: it commits them first",
        "down, 1 transaction waits (7 rows)",
        "no: 1 transaction of table to commit",
    ):
        assert said in screen, said


def test_pages_and_metrics_show_what_a_cancelled_job_has_not_committed(tmp_path: Path, now: float) -> None:
    """The verdict of the pages is bad and says it, and the metrics have what the alert rules look for."""
    cancelled_with_a_sink_down(tmp_path, now)
    view = view_of(tmp_path, now)
    judged = verdict(view)
    assert judged.tone is Tone.BAD
    assert "of the sink table waits for a commit" in judged.detail
    assert "Nothing is wrong" not in judged.detail
    metrics = exposition([view]).decode()
    for name, value in (("commits_waiting", 1), ("rows_waiting", 7), ("down", 1)):
        assert re.search(
            rf'^penstock_sink_{name}{{.*sink="table".*}} {value}(\.0)?$', metrics, re.MULTILINE
        ), name


def test_what_is_committed_does_not_wait(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """A run that began from the checkpoint has committed what it promised, also if it was cancelled before a checkpoint of its own."""
    job = cancelled_with_a_sink_down(tmp_path, now)
    job.begin(now - 3680, restored_from=1)
    job.live(now - 3671)
    job.end(RunOutcome.CANCELLED, now - 3670)
    shown = penstock("status", tmp_path, "views")
    assert shown.code == 0
    assert "wait for" not in shown.out


def test_a_commit_that_nobody_confirmed_may_wait(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """If no sink was seen to refuse commits, the status says that they may wait: the driver may have died right after the commit."""
    job = SeenJob(tmp_path, started_at=now - 3800)
    job.complete(1, now - 3700, committed=False)
    job.live(now - 3691)
    job.end(RunOutcome.CANCELLED, now - 3690)
    shown = penstock("status", tmp_path, "views")
    assert shown.code == 3
    assert "1 transaction (7 rows) of the sink table may still wait for a commit" in " ".join(
        shown.out.split()
    )


@pytest.mark.parametrize("arguments", [("views",), ("nobody",), ()])
def test_a_job_that_cannot_be_seen(penstock: Penstock, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Code 2, with what to give instead."""
    SeenJob(tmp_path / "other", "orders", started_at=1.0)
    shown = penstock("status", tmp_path / "other", *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert "there are: orders" in shown.err


def test_a_job_whose_files_nobody_can_read() -> None:
    """It could not be seen: code 2, not 3, for the job may be well."""
    unseen = JobView(
        id="", name="v", storage="", place="", state=JobState.UNREADABLE, now=1.0, unreadable=("no",)
    )
    assert exit_code(unseen) == 2
    assert status_json(unseen)["needs"][0]["text"] == "The job's files cannot be read: no."


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.DIED])
def test_a_supervisor_is_somebody(state: JobState) -> None:
    """A job that its supervisor starts again needs nobody else."""
    down = JobView(id="", name="v", storage="", place="", state=state, now=1.0, supervised=True)
    assert exit_code(down) == 0
    assert "Its supervisor starts it again" in status_json(down)["needs"][0]["advice"]


def test_text_of_others_does_nothing_to_the_terminal(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """Control characters in errors are shown as what they are, and square brackets are no markup."""
    job = healthy(tmp_path, now)
    evil = "\x1b[2J\x1b]0;owned\x07[red]x[/red]"
    job.tell(
        told.RunFailed(
            at=now - 1,
            run=job.run,
            error="E",
            why=evil,
            notes=(evil,),
            trace=evil,
            strategy="s",
            restarts=True,
        )
    )
    for command in (("status",), ("failures", "-v"), ("checkpoints",)):
        shown = penstock(command[0], tmp_path, "views", *command[1:])
        assert "\x1b" not in shown.out
        assert "\x07" not in shown.out
    assert "[red]x[/red]" in penstock("failures", tmp_path, "views").out


def test_nothing_that_lies_in_a_storage_is_obeyed(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """Neither what a job says of itself: its graph, its machine, its pages, what it does now; nor what is in an error of the command."""
    job, evil = healthy(tmp_path, now), "\x1b[2J\x1b]0;owned\x07"
    nodes = tuple(msgspec.structs.replace(node, what=evil) for node in PLAN.nodes)
    plan = msgspec.structs.replace(PLAN, nodes=nodes, guarantee=evil, limited_by=evil)
    write_plan(job.storage, job.run, plan)
    job.live(now, doing=evil, ui=evil, failure=evil)
    record = msgspec.json.decode(job.storage.get(f"runs/{job.run}.json"))
    job.storage.put(f"runs/{job.run}.json", msgspec.json.encode({**record, "host": evil}))
    job.tell(told.SavepointMade(at=now, run=job.run, checkpoint=41, folder=evil, took_s=1.0))
    for command in (("list",), ("status", "views"), ("checkpoints", "views", "-v"), ("runs", "views")):
        shown = penstock(command[0], tmp_path, *command[1:])
        assert shown.code == 0
        assert "]0;own" in shown.out or command[0] == "checkpoints"
        assert not {"\x1b", "\x07"} & {*shown.out, *shown.err}
    refused = penstock("run", f"{evil}.py")
    assert "owned" in refused.err
    assert not {"\x1b", "\x07"} & set(refused.err)
    assert "\x1b" not in event_line(told.RunStarted(at=now, run=1, host=evil, pid=1, restored_from=1))
    console = plain_console(width=200)
    with console.capture() as shown_live:
        console.print(WatchScreen(one=True).rendered([view_of(tmp_path, now)], console.size))
    assert "owned" in shown_live.get()
    assert "\x1b" not in shown_live.get()


@pytest.mark.parametrize("at", [1e300, -1e300, 1e12])
def test_moments_that_no_calendar_has(penstock: Penstock, tmp_path: Path, now: float, at: float) -> None:
    """A file of a storage may be damaged: the rest is shown all the same."""
    job = healthy(tmp_path, now)
    job.begin(at)
    job.complete(43, at)
    job.tell(told.RunFailed(at=at, run=job.run, error="E", why="w", strategy="s", restarts=True))
    for command in ("failures", "checkpoints", "runs"):
        for options in ((), ("--json",)):
            assert penstock(command, tmp_path, "views", *options).code == 0
    assert penstock("status", tmp_path, "views").code in (0, 3)


def test_nor_does_what_a_job_is_said_to_be(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """Whoever reaches the storage can write plans and live records too, with moments that no calendar has."""
    job = healthy(tmp_path, now)
    evil = "\x1b]0;owned\x07"
    plan = read_plan(job.storage, job.run)
    assert plan is not None
    nodes = tuple(msgspec.structs.replace(node, what=evil, promise=evil) for node in plan.nodes)
    evil_plan = msgspec.structs.replace(
        plan, nodes=nodes, guarantee=evil, limited_by=evil, reason=evil, program=evil
    )
    write_plan(job.storage, job.run, evil_plan)
    job.live(now, ui=evil, failure=evil, doing=evil, batch_at=1e300, checkpoint_at=1e300, started_at=-1e300)
    job.tell(told.Asked(at=1e200, run=job.run, what=evil, by=evil))
    for command in (("list",), ("status", "views"), ("failures", "views"), ("checkpoints", "views")):
        shown = penstock(command[0], tmp_path, *command[1:])
        assert not {"\x1b", "\x07"} & set(shown.out)


# ── failures, checkpoints, runs ────────────────────────────────────────────────────────────────────


def test_failures_with_what_they_cost(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """The root cause first, then what was decided, and what it cost; the JSON has all fields."""
    healthy(tmp_path, now)
    lines = penstock("failures", tmp_path, "views").out.splitlines()
    assert lines[0].endswith("UTC  run 1, 1 h 1 min ago")
    assert lines[1:] == [
        "  ConnectionRefusedError: [Errno 111]; so UnavailableError: the broker 10.0.0.7:9092 does not answer",
        "  decided by exponential_delay(): attempt 1",
        "  continued from checkpoint 38, nothing was processed for 13 s, 1,234 rows were processed again",
    ]
    (one,) = penstock("failures", tmp_path, "views", "--json").json
    assert (one["error"], one["restored_from"], one["rows_again"]) == ("UnavailableError", 38, 1234)
    assert one["down_s"] == pytest.approx(13.0)


def test_a_failure_that_came_again_is_listed_once(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """With how often it came and what it cost in all; `-v` and the JSON have each of them."""
    job = healthy(tmp_path, now)
    usual = next(event for event in job.events if isinstance(event, told.RunFailed))
    job.tell(
        *(
            msgspec.structs.replace(usual, at=usual.at + n, why=f"the broker 10.0.0.{n} does not answer")
            for n in (2, 9)
        )
    )
    lines = penstock("failures", tmp_path, "views").out.splitlines()
    assert len(lines) == 5
    assert lines[4].startswith("  3 times since ")
    assert lines[4].endswith("3,702 rows were processed again (-v shows each)")
    assert penstock("failures", tmp_path, "views", "-v").out.count(" UTC  run 1, ") == 3
    assert len(penstock("failures", tmp_path, "views", "--json").json) == 3


def test_a_job_without_failures(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """It says so."""
    late(tmp_path, now)
    assert penstock("failures", tmp_path, "orders").out == "job orders has no known failure\n"


def test_checkpoints_that_are_gone(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """Behind the table of those in storage comes what became of the others, as many as somebody wants."""
    healthy(tmp_path, now)
    in_storage, _, gone = penstock("checkpoints", tmp_path, "views").out.partition("not in storage")
    assert " 41 │" in in_storage
    assert " 40 │" not in in_storage
    assert [number for number in (38, 39, 40, 41) if f" {number} │" in gone] == [38, 39, 40]
    assert "2 of 8 subtasks did not acknowledge" in " ".join(gone.replace("│", " ").split())
    found = penstock("checkpoints", tmp_path, "views", "--json", "--last", 2).json
    assert [(one["checkpoint"], one["usable"]) for one in found] == [(39, False), (40, False), (41, True)]
    assert found[0]["reason"] == "was not complete in time: 2 of 8 subtasks did not acknowledge"
    assert found[1]["reason"] == "it was subsumed"
    assert penstock("checkpoints", tmp_path, "views", "--last", -1).code == 2


@pytest.mark.parametrize("command", ["status", "failures", "checkpoints", "runs"])
def test_the_folder_of_a_job_is_enough(penstock: Penstock, tmp_path: Path, now: float, command: str) -> None:
    """Storage and name, the job's own folder, and its id are the same job."""
    healthy(tmp_path, now)
    by_name = penstock(command, tmp_path, "views")
    assert by_name.code == 0, by_name.err
    assert penstock(command, tmp_path / "views").out.splitlines()[0] == by_name.out.splitlines()[0]
    assert penstock(command, tmp_path, job_id("views")).code == 0
    refused = penstock(command, tmp_path)
    assert refused.code == 2
    assert refused.err.startswith("penstock: ")


ASKED = ("trigger", "savepoint", "stop", "cancel")


@pytest.mark.parametrize("command", ["status", "failures", "checkpoints", "runs", "inspect", "watch", *ASKED])
def test_every_command_says_what_to_do_next(
    penstock: Penstock, tmp_path: Path, now: float, command: str
) -> None:
    """A wrong name is code 2, and one line that says which jobs there are."""
    failed(tmp_path, now)
    shown = penstock(command, tmp_path, "invoice")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("penstock: ")
    assert "there are: invoices" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["trigger", "stop", "cancel"])
def test_asking_a_job_that_does_not_run(penstock: Penstock, tmp_path: Path, now: float, command: str) -> None:
    """It is refused at once, with the command that says more."""
    failed(tmp_path, now)
    shown = penstock(command, tmp_path / "invoices", "--json")
    assert (shown.code, shown.out) == (2, "")
    assert (
        "is over: failed; nothing was asked for, nothing was done. `penstock runs` lists its runs"
        in shown.err
    )


def test_how_far_sources_are_behind_may_be_unknown(penstock: Penstock, tmp_path: Path, now: float) -> None:
    """A source that cannot say it makes the answer unknown, and is named."""
    job = healthy(tmp_path, now)
    job.live(now, sources={"clicks": SourceLive(behind=0), "shops": SourceLive()})
    assert (
        "unknown: it is unknown how far behind source shops is" in penstock("status", tmp_path / "views").out
    )


def test_status_gives_up_on_a_storage_that_hangs() -> None:
    """It says so, with how long it has waited."""
    going_on = threading.Event()
    try:
        with pytest.raises(
            UnavailableError, match=r"/mnt/x has not answered for 10 ms, so the state of the job is unknown"
        ):
            within(0.01, "/mnt/x", going_on.wait)
    finally:
        going_on.set()
    assert within(60.0, "/mnt/x", lambda: 7) == 7
    with pytest.raises(KeyError):
        within(60.0, "/mnt/x", lambda: {"a": 1}["missing"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_by_a_signal_takes_its_request_back(
    tmp_path: Path, now: float, number: signal.Signals
) -> None:
    """`timeout` and a closed terminal leave nothing that the job would do later; the exit code names the signal."""
    job = healthy(tmp_path, now)
    command = [
        sys.executable,
        "-c",
        "from penstock.cli import main; main()",
        "cancel",
        str(tmp_path),
        "views",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "asked run 2 to cancel\n"
        process.send_signal(number)
        said = process.stderr.read()
    assert (process.returncode, said) == (128 + number, "the request is withdrawn: nothing was done\n")
    assert job.storage.names("requests") == []
