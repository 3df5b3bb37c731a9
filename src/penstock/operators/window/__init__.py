"""`window`: aggregates or own code over windows of each key. In: rows of a batch, or their aggregates. Out: windows that close.

`operator.py` has the operator, `kinds.py` the windows and the class that users extend, `base.py` what all kinds share. Aggregates:
`time.py` (tumbling and sliding, with `distinct.py` and `early.py`), `session.py`, `count.py`. Own code: `calls.py` calls it,
`time_rows.py`, `session_rows.py` and `count.py` keep the rows.
"""
