"""Where state lives while the job works: memory, filesystem (rocksdb to come). One interface, one test suite over all.

In: key batches and values. Out: values, and a state handle after each batch. Called by operators inside Spark tasks.
"""
