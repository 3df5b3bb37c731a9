"""Savepoints: a job's state, positions and time as a folder of tables that belongs to the user. Driver and executors.

`make` and `create` turn a completed checkpoint into a folder. `restore` starts a job from a folder, and `table_files` loads its tables into
the job's own backend and parallelism. People read savepoints through `penstock.spark.saved_state` and the command line.
"""
