"""One run of a job, without Spark and without threads. In: batches, answers, messages. Out: what tasks get, and acknowledgements.

`spark` drives it in production, `testing.simulation` in tests.
"""
