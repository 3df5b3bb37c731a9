"""What the user builds: read -> key_by -> process | aggregate -> transform -> write_to. Driver.

Everything that can be checked without data is checked here or in `start`, before Spark runs anything.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, cast

from penstock.config import Checkpointing, Duration, EventTime, OnBadRecord, seconds, whole_number
from penstock.config import on_bad_record as checked_policy
from penstock.errors import ConfigError, PenstockError, shown_alone
from penstock.graph import Graph, Source
from penstock.guarantee import Guarantee
from penstock.ids import checked_name
from penstock.recovery.restart import RestartStrategy, exponential_delay
from penstock.start_options import StartOptions, refuse_while_loading
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateBackend
from penstock.state.keys import MAX_KEY_GROUPS
from penstock.storage import Storage, open_job_storage
from penstock.streams import Stream

if TYPE_CHECKING:
    from types import FunctionType

    from pyspark.sql import DataFrame

    from penstock.spark.job_handle import JobHandle

DEFAULT_MAX_PARALLELISM = 128
_P = ParamSpec("_P")


def _takes(
    options: Callable[_P, StartOptions],
) -> Callable[[Callable[[Job, StartOptions], JobHandle]], Callable[Concatenate[Job, _P], JobHandle]]:
    """Make a method with options one that has the fields of `StartOptions` as its keyword arguments."""

    def decorated(
        method: Callable[[Job, StartOptions], JobHandle],
    ) -> Callable[Concatenate[Job, _P], JobHandle]:
        @functools.wraps(method)
        def called(job: Job, /, *args: _P.args, **given: _P.kwargs) -> JobHandle:
            refuse_while_loading(f"{method.__name__}()")
            try:
                return method(job, options(*args, **given))
            except (PenstockError, KeyboardInterrupt) as error:
                failure = shown_alone(error)
            raise failure

        own, fields = inspect.signature(method), inspect.signature(options)
        shown = own.replace(parameters=[own.parameters["self"], *fields.parameters.values()])
        function = cast("FunctionType", called)
        function.__signature__ = shown  # type: ignore[attr-defined]
        function.__code__ = function.__code__.replace(co_name=method.__name__)  # for the user's tracebacks
        return called

    return decorated


class Job:
    """A streaming job with checkpoints. The name and the storage are its identity: the same two go on where it stopped.

    `storage` is a path or URI below which the job gets a folder of its own, or a `Storage` whose root is the job's.
    `on_bad_record`: what becomes of a row that an operator or sink cannot take, "fail" or "skip"; each may say otherwise.
    `show_rows`: False keeps values of rows out of messages about failures: errors, the job's journal, its pages and its log.
    """

    def __init__(
        self,
        name: str,
        *,
        storage: str | Path | Storage,
        backend: str | StateBackend = "filesystem",
        parallelism: int = 2,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        checkpoint: Checkpointing | None = None,
        restart: RestartStrategy | None = None,
        trigger: Duration | None = None,
        local_dir: str | Path | None = None,
        local_recovery: bool = True,
        on_bad_record: OnBadRecord | str = "fail",
        show_rows: bool = True,
    ) -> None:
        self.name = checked_name("job name", name)
        self.storage = storage if isinstance(storage, Storage) else open_job_storage(storage, name)
        self.backend = backend if isinstance(backend, StateBackend) else backend_named(backend)
        self.max_parallelism = whole_number(
            "max_parallelism", max_parallelism, minimum=1, maximum=MAX_KEY_GROUPS
        )
        self.parallelism = whole_number("parallelism", parallelism, minimum=1)
        if parallelism > max_parallelism:
            raise ConfigError(
                f"parallelism={parallelism} is more than max_parallelism={max_parallelism}: there are only that many key groups to "
                "share out; lower parallelism, or choose a larger max_parallelism (later it can be changed only with a savepoint)",
                parallelism=parallelism,
                max_parallelism=max_parallelism,
            )
        self.checkpoint = checkpoint or Checkpointing()
        self.restart = restart or exponential_delay()
        self.trigger_s = None if trigger is None else seconds("trigger", trigger)
        self.local_dir = None if local_dir is None else Path(local_dir)
        self.local_recovery = local_recovery
        if not isinstance(show_rows, bool):
            raise ConfigError(f"show_rows={show_rows!r} is neither True nor False", show_rows=show_rows)
        self.show_rows = show_rows
        self.graph = Graph(on_bad_record=checked_policy(on_bad_record))

    def read(
        self,
        frame: DataFrame,
        *,
        uid: str,
        replayable: bool | None = None,
        event_time: str | EventTime | None = None,
        out_of_order: Duration = "10s",
        idle_after: Duration | None = "1min",
        max_ahead: Duration | None = "1d",
        partition_by: str | Sequence[str] | None = None,
        bad_event_time: str = "late",
        when_all_idle: str = "wait",
    ) -> Stream:
        """Add a source: any streaming DataFrame, with whatever stateless SQL is already in it.

        `replayable` states whether the source can deliver the same records again; Penstock knows it of Spark's own sources.
        `event_time`: the timestamp column with the time of a row, or an `EventTime` that has it together with the options beside it here,
        and explains them.
        """
        if not getattr(frame, "isStreaming", False):
            raise ConfigError(f"source {uid!r} is not a streaming DataFrame: use spark.readStream", uid=uid)
        from penstock.spark.event_times import checked_time

        checked = self.graph.new_uid("source", uid)
        with self.graph.saying_where(uid):
            options = EventTime.of(
                checked,
                event_time,
                out_of_order=out_of_order,
                idle_after=idle_after,
                max_ahead=max_ahead,
                partition_by=partition_by,
                bad_event_time=bad_event_time,
                when_all_idle=when_all_idle,
            )
            time = checked_time(options, frame, checked)
        source = Source(checked, frame, replayable, time)
        self.graph.sources.append(source)
        return Stream(self.graph, source)

    def guarantee(self) -> Guarantee:
        """The end-to-end guarantee of the job as it is now, and what limits it.

        Raises `ConfigError` for a mode that cannot be kept, and for a source that `start` would refuse.
        """
        from penstock.spark.inspection import guarantee_of

        return guarantee_of(self)

    @_takes(StartOptions)
    def start(self, options: StartOptions) -> JobHandle:
        """Start the job in the background, from its newest checkpoint if it has one.

        `available_now`: end when the input known now is done. `restore`: go on from this retained checkpoint instead of the newest.
        `takeover`: fence off a run that seems to be alive. `drop_state`: uids of operators whose stored state may be lost,
        or single states of theirs, as "views.seen".
        `drop_sources`: uids of sources that the job no longer has and whose positions may be lost. `rename`: new uids by old ones, of
        sources, operators and sinks. `positions`: where sources go on by choice, each "start", "latest" or a position as a checkpoint shows
        it; done once, also where the same start is repeated.
        `drain`, with `available_now`: when the input is done, event time comes to its end: all windows close, all its timers fire.
        `savepoint`: begin with the savepoint in this folder; a job that has begun with it goes on from its newest checkpoint. `claim`: the
        savepoint becomes the job's own, and its folder is deleted.
        `ui`: serve the job's pages at this address of the machine, such as "127.0.0.1:8090"; True: at the first free port from 8090 on; a
        `Ui` has the address together with its options.
        Opening it needs the token (`ui_token`, or PENSTOCK_UI_TOKEN); by default, and only where other machines do not reach it, one
        is made, which the log shows with the address. `ui_read_only`: the pages offer no actions.
        `listeners`: objects that receive the events of the job, see `Listener`.
        """
        from penstock.spark.job_handle import JobHandle

        return JobHandle.start(self, options)

    @_takes(StartOptions)
    def run(self, options: StartOptions) -> JobHandle:
        """`start`, show how it goes, and wait for the end. Arguments as for `start`.

        Returns the handle of the job that has ended: its `status` says how, its `progress` counts rows, late rows and bad rows.
        Ctrl-C or SIGTERM stops the job with a last checkpoint, and `run` returns. A second one ends it now, without: `run` then
        raises `KeyboardInterrupt`, or `SystemExit` for SIGTERM. Signals reach Python's main thread only: called in another, it takes none.
        """
        from penstock.spark.foreground import in_foreground
        from penstock.spark.job_handle import JobHandle

        return in_foreground(self, lambda: JobHandle.start(self, options))
