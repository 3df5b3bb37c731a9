"""Tables of SQL servers. In: Arrow batches in tasks. Out: rows that readers see when the checkpoint is complete, with a proof of commit.

`server_sink`, `server`, `table`, `values` and `record_tables` are shared. For each server, `<name>` has the sink and sends rows,
`<name>_server` has its address, sessions, errors and prepared transactions, `<name>_table` its catalogue and types, `<name>_values`
the form of values.
"""
