"""Everything that touches Spark. In: a job. Out: a running query, and its batches handed to the coordinator.

The only package that imports pyspark. Called by job, command line and sources, on the driver; its task side
runs on executors.
"""

from pyspark import __version__ as _version

from penstock.spark.versions import refuse_untested

refuse_untested(_version)
