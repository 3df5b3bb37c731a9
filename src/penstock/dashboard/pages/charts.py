"""What the charts of a page draw, as the JSON that their element carries. Pure; `static/charts.js` draws it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.dashboard.pages.phases import rates
from penstock.status.view import CheckpointStatus, CheckpointView, JobView

MOST_POINTS = 300


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line; `tone` names its colour in the style sheet."""

    label: str
    tone: str
    values: list[float]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Values over moments, in seconds since the epoch. `unit`: `ms`, `bytes` or `rows/s`."""

    unit: str
    x: list[float]
    series: list[Series]

    @property
    def as_json(self) -> str:
        """For an attribute."""
        return msgspec.json.encode(self).decode()


def rates_chart(view: JobView) -> Chart:
    """Rows a second, as far as the journal goes back."""
    points = rates(view.checkpoints, MOST_POINTS)
    return Chart(
        unit="rows/s",
        x=[round(point.at, 1) for point in points],
        series=[
            Series(label="rows a second", tone="accent", values=[round(point.value, 2) for point in points])
        ],
    )


def batch_rates_chart(view: JobView) -> Chart:
    """How fast rows came and how fast they were processed, batch by batch."""
    found = view.live.recent_batches[::-1] if view.live else ()
    return Chart(
        unit="rows/s",
        x=[round(one.at, 1) for one in found],
        series=[
            Series(label="input", tone="accent", values=[round(one.input_per_s, 2) for one in found]),
            Series(label="processing", tone="warm", values=[round(one.processed_per_s, 2) for one in found]),
        ],
    )


def durations_chart(view: JobView) -> Chart:
    """How long checkpoints took, and how long nobody saw their output after that."""
    completed = _completed(view)
    return Chart(
        unit="ms",
        x=[one.completed_at for one in completed],
        series=[
            Series(label="duration", tone="accent", values=[round(one.duration_ms, 1) for one in completed]),
            Series(label="commit", tone="warm", values=[round(one.commit_ms, 1) for one in completed]),
        ],
    )


def sizes_chart(view: JobView) -> Chart:
    """How large they were."""
    completed = _completed(view)
    return Chart(
        unit="bytes",
        x=[one.completed_at for one in completed],
        series=[
            Series(label="full", tone="accent", values=[float(one.state_bytes) for one in completed]),
            Series(label="new", tone="warm", values=[float(one.new_bytes) for one in completed]),
        ],
    )


def _completed(view: JobView) -> Sequence[CheckpointView]:
    """The oldest first, each moment once: two runs may say the same."""
    newest = [one for one in view.checkpoints if one.status is CheckpointStatus.COMPLETED][:MOST_POINTS]
    by_moment = {one.completed_at: one for one in newest}
    return [by_moment[at] for at in sorted(by_moment)]
