"""The test kit for users: tests of user code without Spark (`run`, `harness`), of sinks, and storages that fail as planned.

Used by Penstock's own tests and by those of users, on the driver, on executors, or in a simulation.
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
    {
        "kit": ("harness", "run"),
        "operator_harness": ("Harness",),
        "sink_contract": ("SinkContract",),
    },
)
__getattr__, __dir__ = _LATE_NAMES.get, _LATE_NAMES.all
