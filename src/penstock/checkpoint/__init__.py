"""The protocol that makes positions, state and output one thing.

In: what subtasks acknowledge after each batch. Out: completed checkpoints, commits, and deletions of files that nothing names any more.
`protocol` decides (pure), `coordinator` performs. `run` makes one coordinator for each run, and calls it on the driver.
"""
