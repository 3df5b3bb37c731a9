"""The way back. In: what storage and the sinks hold after a failure. Out: a restore point, and nothing of what came after it.

Called by the spark package before a query starts, once per attempt. Decisions (plan, restart, rescale) are pure.
"""
