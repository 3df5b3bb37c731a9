"""The way back. In: what storage and the sinks hold after a failure. Out: a restore point, and nothing of what came after it.

`start_run` calls `restore` once for each run, before Spark's query starts. Decisions (`restore_plan`, `state_plan`, `restart`) are pure.
"""
