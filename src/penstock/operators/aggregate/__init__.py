"""`aggregate`, and what windows share with it. In: aggregates of a batch, made by Spark, and the state. Out: aggregates of each key.

`operator.py` has the operator, its spec and its task. `columns.py` defines one aggregate and its stored columns, `merge.py` merges two
values of it, `distinct.py` counts distinct values exactly.
"""
