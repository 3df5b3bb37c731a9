"""One run of a job, without Spark and without threads. In: batches, answers, messages. Out: assignments for tasks, and acknowledgements.

`spark` drives it in production, `testing.simulation` in tests.
"""
