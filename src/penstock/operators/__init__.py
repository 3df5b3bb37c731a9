"""Operators: what happens to records between a source and a sink, and the state that user code may use.

Enters: the rows of one batch, by key, and the state of those keys as it was at the barrier before.
Leaves: output rows and the state at the new barrier. Called by the tasks that `penstock.spark` runs.
"""
