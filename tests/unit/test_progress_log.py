"""Spark's progress log is read and cut back to a checkpoint."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptStateError
from penstock.ids import CheckpointId
from penstock.spark.progress_log import cut_back, positions, read_entry, skip_ahead
from penstock.storage import LocalStorage


def entry(*offsets: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":7,"batchTimestampMs":1}', *offsets])


@pytest.fixture
def storage(tmp_path):
    storage = LocalStorage(tmp_path)
    for batch in range(5):
        storage.put(f"spark/offsets/{batch}", entry(f'{{"0":{batch}}}', str(batch)).encode())
        storage.put(f"spark/offsets/.{batch}.crc", b"crc")
        if batch < 4:
            storage.put(f"spark/commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    storage.put("spark/metadata", b"{}")
    storage.put("spark/sources/0/0", b"seen")
    return storage


def test_positions_are_read_per_source(storage):
    """Every source has its own position; one that has none yet is None."""
    assert positions(read_entry(storage, CheckpointId(3))) == [{"0": 3}, 3]
    assert positions(entry("-", "plain text")) == [None, "plain text"]
    with pytest.raises(CorruptStateError, match="unknown format"):
        positions("v9\n{}")


def test_batches_after_the_checkpoint_are_removed(storage):
    """After a cut the checkpoint's batch is the last one, and done; what sources remember stays."""
    cut_back(storage, CheckpointId(2), read_entry(storage, CheckpointId(2)))
    assert [name for name in storage.names("spark/offsets") if ".crc" not in name][-1] == "spark/offsets/2"
    assert storage.names("spark/commits")[-1] == "spark/commits/2"
    assert "spark/sources/0/0" in storage.names("spark")
    assert "spark/offsets/.4.crc" not in storage.names("spark/offsets")


def test_an_entry_that_spark_has_purged_is_written_again(storage):
    """The checkpoint itself holds the entry, so it can be older than what Spark keeps."""
    text = read_entry(storage, CheckpointId(4))
    storage.delete(storage.names("spark/offsets") + storage.names("spark/commits"))
    cut_back(storage, CheckpointId(4), text)
    assert read_entry(storage, CheckpointId(4)) == text
    assert read_entry(storage, CheckpointId(3)) == text  # Spark asks for it, and refuses to start without it
    assert storage.get("spark/commits/4") == b'v1\n{"nextBatchWatermarkMs":7}'


def test_without_a_checkpoint_the_query_starts_from_the_beginning(storage):
    """Nothing of an attempt that completed no checkpoint is left."""
    cut_back(storage, CheckpointId(-1), "")
    assert storage.names("spark") == []


def test_at_most_once_takes_every_begun_batch_as_done(storage):
    """The batch that was under way is skipped; a source that cannot replay has no position any more."""
    assert skip_ahead(storage, [True, False]) == 4
    assert positions(read_entry(storage, CheckpointId(4))) == [{"0": 4}, None]
    assert positions(read_entry(storage, CheckpointId(3))) == [{"0": 4}, None]  # Spark would fall back on it
    assert "spark/commits/4" in storage.names("spark/commits")
    assert skip_ahead(LocalStorage(storage.root / "none"), [True]) == -1
