"""Durable files. In: names relative to the job's root and bytes. Out: the same bytes after any crash.

Called by snapshot (state files), checkpoint (metadata) and ownership (claims), on driver and executors.
"""

from penstock.storage.base import Storage
from penstock.storage.hdfs import HdfsStorage
from penstock.storage.local import LocalStorage
from penstock.storage.object import ObjectStorage
from penstock.storage.open import open_job_storage, open_storage

__all__ = ["HdfsStorage", "LocalStorage", "ObjectStorage", "Storage", "open_job_storage", "open_storage"]
