"""`join` and `lookup`: rows of two streams side by side. In: rows of two inputs, and the state of a subtask. Out: results.

`operator.py` has `Join` and what is refused before the start, `spec.py` its spec and task, `interval.py` the work of a batch. `inputs.py`
has one of the two inputs, `pairs.py` its rows beside those of the other, `state.py` what is kept of it. `lookup.py` is all of `lookup`.
"""
