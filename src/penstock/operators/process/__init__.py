"""Own code: `KeyedProcess`, `KeyedCoProcess`, `BatchProcess` and `Process`. In: rows of a subtask, and its state. Out: results.

`operator.py` has the operator and what is refused before the start, `task.py` its spec and task. `keyed.py`, `co.py`, `columns.py` and
`unkeyed.py` are what users extend; `run_keyed.py`, `run_tolerant.py` and `run_columns.py` call it.
"""
