"""`aggregate`, and what windows share with it. In: what Spark has aggregated in a batch, and the state. Out: new aggregates of each key.

`operator.py` has the operator, its spec and its task. `columns.py` says what one aggregate is and how it is stored, `merge.py` merges two
values of it, `distinct.py` counts distinct values exactly.
"""
