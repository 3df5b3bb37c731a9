"""The shipped test kit. In: a plan of faults or inputs. Out: real implementations that follow it.

Called by tests, ours and users', wherever the real thing runs: driver, executors, or a simulation.
"""
