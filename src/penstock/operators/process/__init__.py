"""Own code: `KeyedProcess`, `KeyedCoProcess`, `BatchProcess` and `Process`. In: rows of a subtask, and its state. Out: results.

`operator.py` has the operator and its checks before the start, `task.py` its spec and task. `keyed.py`, `co.py`, `columns.py` and
`unkeyed.py` have the classes that users extend; `run_keyed.py` and `run_tolerant.py` call them key by key.
"""
