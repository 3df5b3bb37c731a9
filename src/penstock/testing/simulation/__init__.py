"""A whole job in one process, without Spark: the real coordinator, protocol, recovery and state backends.

In: a workload and a seed. Out: nothing, or a `Violation` that says what no longer held. Everything that happens, crashes
and pauses at any I/O call included, follows from the seed. Called by tests, ours and those of a new backend.
"""

from penstock.testing.simulation.lifeline import Fate, Violation
from penstock.testing.simulation.workload import Intervention, Workload, random_workload
from penstock.testing.simulation.world import World

__all__ = ["Fate", "Intervention", "Violation", "Workload", "World", "random_workload"]
