"""What a simulated job is: its input, its settings, and how much may go wrong."""

from __future__ import annotations

import random

import msgspec

from penstock.config import Checkpointing, Mode

MAX_PARALLELISM = 8


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One job of two counting operators, each with a sink, and the trouble it gets into."""

    checkpoint: Checkpointing
    backend: str = "filesystem"
    partitions: int = 2
    records: int = 24
    keys: int = 5
    batch_size: int = 6
    in_sequence: bool = True
    """The second operator counts what the first one emits; otherwise both read the source."""
    emits_once: bool = False
    """The operators emit a key when they first see it, and never again: output that is lost once is lost for good."""
    parallelisms: tuple[int, ...] = (2,)
    """Of the first run, the second, ...; the last one stays."""
    troubled_runs: int = 0
    """How many runs, from the first, crash, stand still or get errors; the ones after them do not."""
    flakiness: float = 0.0
    """How likely an I/O call of a troubled run fails."""
    mischief: float = 0.0
    """How likely, in a troubled run, Spark drops an attempt, a worker loses an upload, a machine its files."""
    upload_pace: float = 3.0
    """How soon uploads are performed, as a weight among everything that may happen next. A batch has 8."""
    commit_pace: float = 4.0
    """The same for what a sink does on the driver."""

    @property
    def mode(self) -> Mode:
        """The mode of the job."""
        return self.checkpoint.delivery_mode

    def parallelism(self, run: int) -> int:
        """Of the run with this index, from 0."""
        return self.parallelisms[min(run, len(self.parallelisms) - 1)]


def random_workload(seed: int) -> Workload:
    """A workload that follows from the seed."""
    rng = random.Random(f"workload {seed}")  # noqa: S311 - replayable on purpose
    checkpoint = Checkpointing(
        interval=f"{rng.choice([1, 2, 5, 10])}s",
        mode=rng.choices(list(Mode), weights=[4, 1, 1])[0],
        timeout=f"{rng.choice([20, 60])}s",
        min_pause=f"{rng.choice([0, 0, 3])}s",
        max_concurrent=rng.choice([1, 1, 2, 3]),
        tolerable_failures=rng.choice([0, 1, 3]),
        retained=rng.choice([1, 1, 2, 3]),
    )
    drawn = Workload(
        checkpoint=checkpoint,
        backend=rng.choice(["filesystem", "filesystem", "memory"]),
        partitions=rng.randint(1, 3),
        records=rng.randint(5, 60),
        keys=rng.randint(1, 8),
        batch_size=rng.randint(2, 12),
        in_sequence=rng.choice([True, False]),
        parallelisms=tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 4))),
        troubled_runs=rng.randint(0, 5),
        flakiness=rng.choice([0.0, 0.0, 0.01, 0.05]),
        mischief=rng.choice([0.0, 0.02, 0.1]),
        emits_once=rng.choice([True, False]),
        upload_pace=rng.choice([3.0, 3.0, 0.5]),
        commit_pace=rng.choice([4.0, 4.0, 0.2]),
    )
    if drawn.emits_once:  # which tells little when every key is seen in the first batch
        return msgspec.structs.replace(drawn, keys=rng.choice([drawn.keys, drawn.records]))
    return drawn
