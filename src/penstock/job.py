"""What the user builds: read -> key_by -> process | aggregate -> transform -> write_to. Driver.

Everything that can be checked without data is checked here or in `start`, before Spark runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import start_options
from penstock.config import Checkpointing, Duration, EventTime, OnBadRecord, seconds, whole_number
from penstock.config import on_bad_record as checked_policy
from penstock.dashboard.ui_options import TOKEN_VARIABLE, Ui, UiOptions
from penstock.errors import ConfigError, PenstockError, shown_alone
from penstock.graph import Graph, Source
from penstock.guarantee import Guarantee
from penstock.ids import checked_name
from penstock.job_spec import Uids
from penstock.recovery.restart import RestartStrategy, exponential_delay
from penstock.recovery.restore_options import RestoreOptions
from penstock.start_options import refuse_while_loading
from penstock.state.backends import backend_named
from penstock.state.backends.base import StateBackend
from penstock.state.keys import MAX_KEY_GROUPS
from penstock.status.listeners import Listener, Listeners
from penstock.storage import Storage, open_job_storage, open_storage
from penstock.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.savepoint.restore import GivenSavepoint
    from penstock.spark.job_handle import JobHandle

DEFAULT_MAX_PARALLELISM = 128


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

    def start(
        self,
        *,
        available_now: bool = False,
        restore: int | None = None,
        takeover: bool = False,
        drop_state: tuple[str, ...] = (),
        drop_sources: tuple[str, ...] = (),
        rename: Mapping[str, str] | None = None,
        positions: Mapping[str, object] | None = None,
        drain: bool = False,
        savepoint: str | Path | None = None,
        claim: bool = False,
        ui: str | int | bool | Ui | None = None,
        ui_token: str | None = None,
        ui_read_only: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> JobHandle:
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
        refuse_while_loading("start()")
        from penstock.spark.job_handle import JobHandle
        from penstock.spark.status import StartOptions

        if restore is not None:
            whole_number("restore", restore, minimum=0)
        changes = RestoreOptions.checked(
            drop_state=drop_state,
            drop_sources=drop_sources,
            rename=rename or {},
            positions=positions or {},
        )
        changes.check_names(self._uids())
        if drain and not available_now:
            raise ConfigError(
                f"{start_options.drain()} needs {start_options.available_now()}: only an input that ends has an end of its time"
            )
        try:
            begin = _opened_savepoint(self.storage, savepoint, restore, claim=claim)
            page = _ui_options(ui, ui_token, read_only=ui_read_only)
            return JobHandle.start(
                self,
                StartOptions(
                    available_now, restore, takeover, drain, begin, changes, page, Listeners(listeners)
                ),
            )
        except PenstockError as error:
            failure = shown_alone(error)
        raise failure

    def _uids(self) -> Uids:
        graph = self.graph
        parts = (graph.sources, graph.operators, graph.outputs)
        return Uids(*([one.uid for one in kind] for kind in parts))

    def run(
        self,
        *,
        available_now: bool = False,
        restore: int | None = None,
        takeover: bool = False,
        drop_state: tuple[str, ...] = (),
        drop_sources: tuple[str, ...] = (),
        rename: Mapping[str, str] | None = None,
        positions: Mapping[str, object] | None = None,
        drain: bool = False,
        savepoint: str | Path | None = None,
        claim: bool = False,
        ui: str | int | bool | Ui | None = None,
        ui_token: str | None = None,
        ui_read_only: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> JobHandle:
        """`start`, show how it goes, and wait for the end. Arguments as for `start`.

        Returns the handle of the job that has ended: its `status` says how, its `progress` counts rows, late rows and bad rows.
        Ctrl-C or SIGTERM stops the job with a last checkpoint, and `run` returns. A second one ends it now, without: `run` then
        raises `KeyboardInterrupt`, or `SystemExit` for SIGTERM. Signals reach Python's main thread only: called in another, it takes none.
        """
        refuse_while_loading("run()")
        from penstock.spark.foreground import in_foreground

        def start() -> JobHandle:
            return self.start(
                available_now=available_now,
                restore=restore,
                takeover=takeover,
                drop_state=drop_state,
                drop_sources=drop_sources,
                rename=rename,
                positions=positions,
                drain=drain,
                savepoint=savepoint,
                claim=claim,
                ui=ui,
                ui_token=ui_token,
                ui_read_only=ui_read_only,
                listeners=listeners,
            )

        try:
            return in_foreground(self, start)
        except (PenstockError, KeyboardInterrupt) as error:
            failure = shown_alone(error)
        raise failure


def _ui_options(ui: str | int | bool | Ui | None, token: str | None, *, read_only: bool) -> UiOptions | None:
    """None where no pages are wanted. A token may be in the environment: it is not to be seen among the arguments of a program."""
    if ui is None or ui is False:
        if token is not None or read_only:
            raise ConfigError("ui_token and ui_read_only need ui=: without it the job serves no pages")
        return None
    if isinstance(ui, Ui):
        if token is not None or read_only:
            raise ConfigError("ui=Ui(...) stands beside ui_token or ui_read_only: give them to Ui")
    else:
        ui = Ui(ui, token=token, read_only=read_only)
    token = ui.token or os.environ.get(TOKEN_VARIABLE)
    return UiOptions.checked(
        ui.address, token, read_only=ui.read_only, names=ui.names, savepoints=ui.savepoints
    )


def _opened_savepoint(
    storage: Storage, savepoint: object, restore: int | None, *, claim: bool
) -> GivenSavepoint | None:
    """The savepoint of a start, read and checked before Spark is asked for anything; None where there is nothing to begin with."""
    from penstock.savepoint.manifest import MANIFEST, read_manifest
    from penstock.savepoint.restore import GivenSavepoint, delete_rest_of_claimed, has_claimed

    if savepoint is None:
        if claim:
            raise ConfigError(
                f"{start_options.claim()} needs {start_options.savepoint('DIR')}: there is nothing to claim"
            )
        return None
    if restore is not None:
        raise ConfigError(
            f"{start_options.savepoint(str(savepoint))} and {start_options.restore(restore)} exclude each other: give one of them"
        )
    if not isinstance(savepoint, str | Path):
        raise ConfigError(f"savepoint={savepoint!r} is no folder: give its path", savepoint=savepoint)
    folder = open_storage(savepoint)
    if claim and folder.size(MANIFEST) is None and has_claimed(storage, folder):
        delete_rest_of_claimed(folder)  # what a crash may have left of it
        return None
    return GivenSavepoint(folder, read_manifest(folder), claim)
