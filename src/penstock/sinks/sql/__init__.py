"""Tables of SQL servers. In: Arrow batches in tasks. Out: rows that readers see when the checkpoint is complete, with a proof of it.

A server is a dialect in a folder below, and says what differs: `server` (address, sessions), `errors` (what they mean), `two_phase` (what
waits for its commit), `table` (catalogue, types), `writing` with `values` and `exactness` (how rows are sent, and which it would change).
"""
