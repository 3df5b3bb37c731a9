"""What a job was told about checkpoints and restarts, for plans that tests make."""

from __future__ import annotations

from typing import Any

from penstock.status.plan import PlanSettings


def plan_settings(**changes: Any) -> PlanSettings:
    """Settings of a plain job, with these changes."""
    usual: dict[str, Any] = {
        "mode": "exactly-once",
        "interval_s": 10.0,
        "timeout_s": 600.0,
        "min_pause_s": 0.0,
        "max_concurrent": 1,
        "tolerable_failures": 0,
        "retained": 1,
        "on_cancel": "retain-on-cancellation",
        "restart": "no_restart()",
    }
    return PlanSettings(**{**usual, **changes})
