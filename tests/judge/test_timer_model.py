"""The model of timers that other tests use is Flink's timer service."""

from __future__ import annotations

from flink_scripts import play_timers
from hypothesis import given, settings

from builders.time_models import Alarm, Timers
from builders.time_scripts import KEYS, command_batches
from services.flink import Flink
from services.tiers import share


@given(script=command_batches(10))
@settings(max_examples=share(50))
def test_timers(flink: Flink, script: list) -> None:
    """Timers that are set, deleted, set twice, set for a moment that has passed, and set again when they fire."""
    model = Timers()
    expected = [by_key(model.batch(*batch)) for batch in script]
    assert [by_key(batch) for batch in play_timers(flink, script)] == expected


def by_key(alarms: list[Alarm]) -> dict[str, list[Alarm]]:
    """Those of one key stay in their order."""
    return {key: [alarm for alarm in alarms if alarm.key == key] for key in KEYS}
