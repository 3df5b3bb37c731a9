"""Signals that come while a job in the foreground is starting."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path
from typing import cast

import pytest

import penstock as ps
from penstock.spark.foreground import STOPPING, STOPPING_AFTER_START, in_foreground
from penstock.spark.job_handle import JobHandle
from penstock.status.live import Progress, Status


class Started:
    """As much of a running job as signals meet."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.progress = Progress(run=1, at=0.0, status="running", checkpoint=7)
        self.status = Status.RUNNING

    def wait(self, timeout: float) -> bool:
        return "stop" in self.did

    def stop(self, *, wait: bool) -> None:
        self.did.append("stop")

    def abandon(self, timeout: float) -> bool:
        self.did.append("abandon")
        return True


def started_with(tmp_path: Path, *numbers: signal.Signals) -> Started:
    """What was done with a job while whose start these signals came."""
    job, handle = ps.Job("job", storage=tmp_path), Started()

    def start() -> JobHandle:
        for number in numbers:
            signal.raise_signal(number)
        handle.did.append("started")
        return cast("JobHandle", handle)

    try:
        in_foreground(job, start)
    except (KeyboardInterrupt, SystemExit) as error:
        handle.did.append(type(error).__name__)
    return handle


def test_one_signal_while_the_job_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is stopped in good order as soon as it has started. A start may hang: the signal and what follows are said at once."""
    assert started_with(tmp_path, signal.SIGTERM).did == ["started", "stop"]
    assert caplog.messages == [
        STOPPING_AFTER_START % "SIGTERM",
        STOPPING,
    ]


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "SystemExit")]
)
def test_two_signals_while_the_job_starts(
    tmp_path: Path, number: signal.Signals, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not left running with nobody who knows it: it is ended when it has started, and then the signal's exception comes."""
    assert started_with(tmp_path, number, number).did == ["started", "abandon", raised]
    assert caplog.messages[1:] == [
        "ended now, without a last checkpoint; the next start goes back to checkpoint 7"
    ]


def test_three_signals_while_the_job_starts(tmp_path: Path) -> None:
    """A start that hangs can be left."""
    assert started_with(tmp_path, *[signal.SIGINT] * 3).did == ["KeyboardInterrupt"]


def test_an_interrupt_is_shown_with_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two signals are wanted: where in Penstock the second one came is of no use to anybody."""
    handle = Started()

    def start(*_: object) -> JobHandle:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return cast("JobHandle", handle)

    monkeypatch.setattr(JobHandle, "start", start)
    with pytest.raises(KeyboardInterrupt) as raised:
        ps.Job("job", storage=tmp_path).run()
    assert handle.did == ["abandon"]
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:] == ["run"]
    assert raised.value.__suppress_context__
