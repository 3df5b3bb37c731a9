"""`window`: aggregates or own code over windows of each key. In: rows of a batch, or their aggregates. Out: results of windows that close.

`operator.py` has the operator, `kinds.py` the windows, the class that users extend, and what all kinds share. Aggregates: `aggregates.py`
has what windows of time share, `time.py` tumbling and sliding windows, `session.py` sessions. Own code: `own_code.py` calls it, and has the
rows of tumbling and sliding windows; `session_rows.py` has those of sessions. `count.py` has count windows for both.
"""
