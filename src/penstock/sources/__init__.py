"""Where records come from, and the position in them.

In: records appended by producers. Out: streaming DataFrames with a position that can be read again from.
Called by the job's author; read by Spark on driver (which range) and executors (the rows of it).
"""

from penstock.sources.partitioned_log import PartitionedLog

__all__ = ["PartitionedLog"]
