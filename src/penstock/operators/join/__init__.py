"""`join` and `lookup`: rows of two streams with the same key. In: rows of two inputs, and the state of a subtask. Out: results.

`spec.py` has the operator, the spec and the task of a join, `interval.py` the work of a batch and the stored rows, `input_rows.py` the rows
of one input. `lookup.py` is all of `lookup`.
"""
