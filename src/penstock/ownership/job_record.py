"""`job.json`: which job a storage belongs to, and what must not change while the job lives. Driver."""

from __future__ import annotations

import msgspec

from penstock.decoding import decoded
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import LONGEST_NAME, SYSTEM_RANDOMNESS
from penstock.ownership.claim import JOB_FILE, Claim
from penstock.storage import Storage


class JobRecord(msgspec.Struct, frozen=True):
    """What stays the same for the whole life of a job."""

    job: str
    max_parallelism: int
    identity: str = ""
    """Drawn at the first start: two jobs of the same name, each with its own storage, may write to one target."""
    format: int = 2

    @property
    def owner(self) -> str:
        """The name under which sinks keep the transactions of this job and of no other."""
        return f"{self.job[: LONGEST_NAME - len(self.identity) - 1]}-{self.identity}"


_JOB_RECORDS = msgspec.json.Decoder(JobRecord)


def read_job_record(storage: Storage) -> JobRecord:
    """The record of the job in this storage; raises `FileNotFoundError` if no job ever ran there."""
    try:
        return decoded(_JOB_RECORDS, storage.get(JOB_FILE))
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{JOB_FILE} in {storage.uri} is not readable: {error}") from error


def job_record_of(storage: Storage, record: JobRecord, *, may_have_other_groups: bool = False) -> JobRecord:
    """The stored record, or before the first start one with a new identity; refuses a job that does not match it. Writes nothing.

    `may_have_other_groups`: the job starts from a savepoint, which may change `max_parallelism`; see `record_key_groups`.
    """
    if storage.size(JOB_FILE) is None:
        return msgspec.structs.replace(record, identity=SYSTEM_RANDOMNESS.token(8))
    known = read_job_record(storage)
    if (known.job, known.format) != (record.job, record.format):
        raise ConfigError(
            f"{storage.uri} belongs to the job {known.job!r} (format {known.format}), this is {record.job!r} (format "
            f"{record.format}); give every job a storage of its own",
            job=record.job,
            expected=known.job,
        )
    if known.max_parallelism != record.max_parallelism and not may_have_other_groups:
        raise ConfigError(
            f"max_parallelism={record.max_parallelism} but the job in {storage.uri} was started with "
            f"{known.max_parallelism}; key groups would no longer match: set it back, or stop the job with a savepoint and start it from "
            "that, which may change it",
            setting="max_parallelism",
            value=record.max_parallelism,
            expected=known.max_parallelism,
        )
    return known


def keep_job_record(storage: Storage, record: JobRecord) -> None:
    """Write `job.json` at the first start, right before the claim: nothing is refused any more, and the file is never deleted.

    Another first start at the same time has drawn another identity. Later starts look only for transactions of the identity in the file,
    so the second start is refused.
    """
    if storage.create(JOB_FILE, msgspec.json.encode(record)):
        return
    known = read_job_record(storage)
    if (known.job, known.identity) != (record.job, record.identity):
        raise ConfigError(
            f"another start has just begun a job in {storage.uri}, for the first time as this one; nothing was changed. See whether it "
            "runs: `penstock status`; if it does not, start the job again",
            job=record.job,
            expected=known.job,
        )


def check_job_record(storage: Storage, record: JobRecord) -> JobRecord:
    """Check the record of a job and write it."""
    found = job_record_of(storage, record)
    keep_job_record(storage, found)
    return found


def record_key_groups(mine: Claim, max_parallelism: int) -> None:
    """Record that the job resumed with another number of key groups. Until then a start without the savepoint is refused.

    A run that was replaced meanwhile writes nothing: the number may have changed again.
    """
    storage = mine.storage
    if storage.size(JOB_FILE) is None:
        return  # a job without a record has none that could be wrong
    known = read_job_record(storage)
    if known.max_parallelism != max_parallelism:
        changed = msgspec.structs.replace(known, max_parallelism=max_parallelism)
        mine.check()
        storage.put(JOB_FILE, msgspec.json.encode(changed))
