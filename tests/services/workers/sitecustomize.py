"""Read by every Python that Spark starts in tests: the kind that it starts with each query is handed to `quick_source_runners`."""

import os
import sys

ADDRESS = "PENSTOCK_QUICK_SOURCE_RUNNERS"
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"

if ADDRESS in os.environ and sys.orig_argv[-2:] == ["-m", RUNNER]:
    from quick_source_runners import hand_over

    hand_over(os.environ[ADDRESS])
