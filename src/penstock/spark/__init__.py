"""Everything that touches Spark. In: a job. Out: a running query, whose batches go to the coordinator.

The only package that imports pyspark. Job, command line and sources call it on the driver; its tasks run on executors.
"""

from pyspark import __version__ as _version

from penstock.spark.versions import refuse_untested

refuse_untested(_version)
