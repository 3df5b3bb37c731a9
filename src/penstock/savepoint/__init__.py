"""8 Savepoints: a job's state, positions and time as a folder of tables that belongs to the user. Driver and executors.

A completed checkpoint enters `create`, a folder leaves it. A folder enters `load`, state of a job's own backend and parallelism leaves it.
The engine adopts one at a start; people look into them through `penstock.spark.saved_state` and the command line.
"""
