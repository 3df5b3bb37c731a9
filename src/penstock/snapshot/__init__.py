"""From a frozen version to a durable one.

In: state handles that a task froze. Out: files in storage and an acknowledgement at the coordinator. The upload runs in a background
thread of the Python worker, after its task has ended, while later batches are processed.
"""
