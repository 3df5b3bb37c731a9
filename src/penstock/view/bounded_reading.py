"""A job's storage for those who only look: no file is read that is larger than any of ours. Wherever somebody looks.

Whoever reaches the storage may have put a file there that would fill the memory. State is not read so: see `view.state`.
"""

from __future__ import annotations

from penstock.errors import CorruptStateError
from penstock.storage.forwarding import ForwardingStorage
from penstock.wording import size

LARGEST_METADATA_BYTES = 128 * 1024 * 1024
"""That of a checkpoint is the largest of the files that are read whole, and has some megabytes at most."""


class BoundedReading(ForwardingStorage):
    """The same storage, in which `get` refuses."""

    def get(self, name: str) -> bytes:
        """See `Storage.get`."""
        found = self.size(name) or 0
        if found > LARGEST_METADATA_BYTES:
            raise CorruptStateError(
                f"{name} has {size(found)}: no file of ours that is read whole has so much; it was not read",
                file=name,
            )
        return super().get(name)
