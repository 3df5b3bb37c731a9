"""State that own code declares in its class. In: the rows that a state backend holds. Out: what user code reads and sets.

`declarations.py` has what every kind of state shares, `*_state.py` one kind each with what stands in its place in a task. `cells.py` and
`table_cells.py` serve calls key by key, `table_rows.py` and `batch_tables.py` many keys at once.
"""
