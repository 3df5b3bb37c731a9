"""The state of operators. In: the keys of a batch. Out: their values, and after the batch a handle that names the new version.

Called by operators (in tasks) through the backends; handles go to snapshot and checkpoint.
"""
