"""The shipped test kit: tests of own code without Spark (`run`, `harness`), of sinks, and real implementations that fail on plan.

Called by tests, ours and users', wherever the real thing runs: driver, executors, or a simulation.
"""

from typing import TYPE_CHECKING

from penstock.lazy_imports import LateNames

if TYPE_CHECKING:
    from penstock.testing.kit import harness, run
    from penstock.testing.operator_harness import Harness
    from penstock.testing.sink_contract import SinkContract

__all__ = ["Harness", "SinkContract", "harness", "run"]

_LATE_NAMES = LateNames(
    __name__,
    {"Harness": "operator_harness", "SinkContract": "sink_contract", "harness": "kit", "run": "kit"},
)
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
