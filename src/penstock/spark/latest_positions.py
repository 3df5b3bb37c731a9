"""Where sources end now, for who wants to go on there: of Kafka and `PartitionedLog`, which can be asked. Driver."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock import start_options
from penstock.errors import ConfigError, UnavailableError
from penstock.graph import Source
from penstock.recovery.restore_options import LATEST
from penstock.sources.partitioned_log import PartitionedLog
from penstock.spark.inspection import source_kind, streaming_leaves
from penstock.spark.log_source import FORMAT as LOG

KAFKA = "kafka"


@dataclass
class LatestPositions:
    """Of the sources of a job. Each is asked once: all runs of a start mean the same moment."""

    session: SparkSession
    sources: Sequence[Source]
    _known: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, uid: str) -> list[str]:
        """One position for each streaming source in it, as Spark writes it."""
        if uid not in self._known:
            source = next(one for one in self.sources if one.uid == uid)
            self._known[uid] = [self._end(uid, leaf) for leaf in streaming_leaves(source.frame)]
        return self._known[uid]

    def _end(self, uid: str, leaf: Any) -> str:
        kind = source_kind(leaf)
        if kind == LOG:
            ends = PartitionedLog(dict(leaf.extraOptions().asCaseSensitiveMap())["path"]).end_offsets()
            return json.dumps({str(partition): end for partition, end in ends.items()}, separators=(",", ":"))
        if kind == KAFKA:
            return self._end_of_stream(uid, leaf)
        raise ConfigError(
            f"{start_options.positions(uid, LATEST)}: a source of the kind {kind} cannot be asked where it ends; only Kafka and "
            "PartitionedLog can be asked. Give its position instead, as a checkpoint shows it",
            uid=uid,
            kind=kind,
        )

    def _end_of_stream(self, uid: str, leaf: Any) -> str:
        """Spark's own reader of the source is asked, as the query would ask it, in a folder of its own: it notes where it begins."""
        java = self.session.sparkContext._jvm
        assert java is not None
        with tempfile.TemporaryDirectory(prefix="penstock-latest-") as notes:
            try:
                scan = leaf.table().newScanBuilder(leaf.extraOptions()).build()
                stream = scan.toMicroBatchStream(f"file://{notes}/0")
                try:
                    everything = java.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
                    return str(stream.latestOffset(stream.initialOffset(), everything).json())
                finally:
                    stream.stop()
            except Py4JError as error:
                raise UnavailableError(
                    f"source {uid!r} could not be asked where it ends now: {str(error).splitlines()[0]}",
                    source=uid,
                ) from error
