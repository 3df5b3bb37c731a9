"""One run of a job, whoever drives it: Spark, or the simulation. In: batches, answers, messages. Out: what tasks are told, and events.

Imports no PySpark. `start` brings a run up, `run` plans batches and takes acknowledgements, `subtask` and `sink_writer` do the work.
"""
