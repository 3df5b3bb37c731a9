"""A log whose content is known, the places of a job's output, and the comparison of the two, row by row."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.dataset as ds

import penstock as ps
from penstock.checkpoint.metadata import name_of
from penstock.checkpoint.model import Completed
from penstock.checkpoint.state_columns import stored_layout
from penstock.job import DEFAULT_MAX_PARALLELISM
from penstock.job_spec import JobSpec
from penstock.ownership.claim import read_descents
from penstock.ownership.job_record import JobRecord, check_job_record
from penstock.recovery.history import read_history
from penstock.recovery.restore import restore
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.backends import backend_named
from penstock.state.handle import FileRef
from penstock.state.local_files import fingerprint
from penstock.storage import LocalStorage, Storage

JOB = "chaos"
PARTITIONS = 2
APPS = 6
USERS = 40
MOST_SHOWN = 12
POISON = "poison"
"""An app on which user code raises."""
REFUSED = "refused"
"""An app that the table of views does not take."""
BAD_SHARE = 0.04


@dataclass
class Site:
    """Everything of one chaos run below `root`."""

    root: Path

    @property
    def log(self) -> ps.sources.PartitionedLog:
        return ps.sources.PartitionedLog(self.root / "log", "app string, user long", PARTITIONS)

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.root / "store" / JOB)

    @property
    def local_dir(self) -> Path:
        return self.root / "local"

    @property
    def database_path(self) -> Path:
        return self.root / "views.db"

    @property
    def files_path(self) -> Path:
        return self.root / "links"

    @property
    def letters_path(self) -> Path:
        return self.root / "letters"

    @property
    def echoes_path(self) -> Path:
        return self.root / "echoes"

    @property
    def finish_path(self) -> Path:
        """When this exists no more rows come, and a driver ends when everything is committed."""
        return self.root / "finish"

    def views_sink(self, busy_timeout: str = "10s") -> ps.sinks.SQLite:
        return ps.sinks.SQLite(
            self.database_path, table="views", mode="upsert", key=["app"], busy_timeout=busy_timeout
        )

    def links_sink(self) -> ps.sinks.Files:
        return ps.sinks.Files(self.files_path, format="parquet")

    def letters_sink(self) -> ps.sinks.Files:
        return ps.sinks.Files(self.letters_path, format="parquet")

    def echoes_sink(self) -> ps.sinks.Files:
        return ps.sinks.Files(self.echoes_path, format="parquet")

    def make_views_table(self) -> None:
        """One that refuses some rows."""
        with closing(sqlite3.connect(self.database_path)) as database:
            database.execute(
                f"create table views (app text primary key check (app <> '{REFUSED}'), pv integer, users integer)"
            )

    def letters(self, operator: str) -> list[dict[str, Any]]:
        """The rows that an operator or sink could not take."""
        return [json.loads(one["row"]) for one in _parquet(self.letters_path) if one["operator"] == operator]

    def rows(self) -> dict[str, dict[str, Any]]:
        """The input by position."""
        return {position(row): row for row in self.log.table().to_pylist()}

    def views(self) -> dict[str, tuple[int, int]]:
        with closing(sqlite3.connect(self.database_path)) as database:
            return {
                app: (pv, users) for app, pv, users in database.execute("select app, pv, users from views")
            }

    def links(self) -> list[dict[str, Any]]:
        return _parquet(self.files_path)

    def echoes(self) -> list[dict[str, Any]]:
        return _parquet(self.echoes_path)


def _parquet(folder: Path) -> list[dict[str, Any]]:
    if not any(folder.glob("*.parquet")):
        return []
    return ds.dataset(folder, format="parquet").to_table().to_pylist()


def position(row: dict[str, Any]) -> str:
    return f"{row['partition']}:{row['offset']}"


@dataclass
class Traffic:
    """Appends random rows in the background and keeps account of them."""

    site: Site
    seed: int
    rows_per_s: int = 200
    bad_share: float = BAD_SHARE
    """How many of the rows cannot be taken by some part of the job."""
    apps: Counter[str | None] = field(default_factory=Counter)
    app_users: Counter[str | None] = field(default_factory=Counter)
    users: Counter[int | None] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._log = self.site.log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._flow, daemon=True)
        self._failure: BaseException | None = None
        self.site.make_views_table()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def rows(self) -> int:
        return self.users.total()

    def stop(self) -> None:
        """No more rows after this; what is in the log is what was counted here."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        assert self._failure is None, f"the traffic stopped by itself: {self._failure!r}"

    def append(self, rows: int) -> None:
        partition = self._rng.randrange(PARTITIONS)
        given = [self._row() for _ in range(rows)]
        apps, users = [app for app, _ in given], [user for _, user in given]
        table = pa.table({"app": pa.array(apps, pa.string()), "user": pa.array(users, pa.int64())})
        self._log.append(partition, table, sync=False)
        self.apps.update(apps)
        self.users.update(users)
        for app, user in zip(apps, users, strict=True):
            self.app_users[app] += user or 0

    def _row(self) -> tuple[str | None, int | None]:
        app, user = f"app{self._rng.randrange(APPS)}", self._rng.randrange(USERS)
        if self._rng.random() >= self.bad_share:
            return app, user
        return self._rng.choice([(None, user), (app, None), (POISON, user), (REFUSED, user)])

    def _flow(self) -> None:
        pause_s = 0.05
        try:
            while not self._stopped.wait(pause_s):
                self.append(self._rng.randint(1, max(1, int(2 * self.rows_per_s * pause_s))))
        except BaseException as error:  # noqa: BLE001 - raised again in stop
            self._failure = error


# ── comparing ──────────────────────────────────────────────────────────────────────────────────


def assert_exact(traffic: Traffic, *, shuffled: bool = False) -> None:
    """All outputs are what they would be without failures, row by row, and the checkpoints are whole."""
    site = traffic.site
    rows = site.links()
    given, bad = site.rows(), Counter(map(position, site.letters("links")))
    users = Counter(row["user"] for at, row in given.items() if at not in bad)
    found = _log_differences(traffic) + _chain_differences(rows, users)
    found += _link_differences(rows, bad, given)
    if shuffled:
        found += _relay_differences(rows)
    else:
        found += _echo_differences(rows, site.echoes()) + _view_differences(site, traffic, given)
    _report(traffic, found + _broken_checkpoints(site))


def assert_nothing_left(traffic: Traffic) -> None:
    """Storage holds what retained checkpoints name, sinks hold what was committed, and nothing else is there."""
    _report(traffic, _staging_leftovers(traffic.site) + _storage_leftovers(traffic.site))


def assert_nothing_left_after_recovery(traffic: Traffic, *, shuffled: bool = False) -> None:
    """As above, once another run has taken the job over: what a worker or a zombie stored that nobody was told of goes then."""
    site = traffic.site
    sinks: dict[str, TwoPhaseCommitSink] = {"links-out": site.links_sink()}
    if not shuffled:
        sinks |= {
            "views-out": site.views_sink(),
            "letters-out": site.letters_sink(),
            "echoes-out": site.echoes_sink(),
        }
    record = check_job_record(site.storage, JobRecord(JOB, DEFAULT_MAX_PARALLELISM))
    restore(_as_stored(site.storage, record, sinks), now=time.time())
    assert_nothing_left(traffic)


def _as_stored(storage: Storage, record: JobRecord, sinks: Mapping[str, TwoPhaseCommitSink]) -> JobSpec:
    """A job with the operators and sources of its newest checkpoint."""
    newest = read_history(storage, read_descents(storage)).whole[-1]
    return JobSpec(
        name=record.job,
        owner=record.owner,
        storage=storage,
        backend=backend_named("filesystem"),
        checkpoint=ps.Checkpointing(),
        parallelism=newest.parallelism,
        max_parallelism=newest.max_parallelism,
        working_folder=Path("unused"),
        local_recovery=False,
        layouts={uid: stored_layout(one.columns) for uid, one in newest.operators.items()},
        upstream={},
        sinks=sinks,
        streams={uid: len(own) for uid, own in newest.barrier.numbers.items()},
        numbers=newest.barrier.numbers,
    )


def _report(traffic: Traffic, found: list[str]) -> None:
    shown = "\n  ".join(found[:MOST_SHOWN])
    assert not found, f"{len(found)} differences from the truth of {traffic.rows} rows:\n  {shown}"


def _log_differences(traffic: Traffic) -> list[str]:
    in_log = Counter(traffic.site.log.table()["user"].to_pylist())
    return [] if in_log == traffic.users else ["the log does not hold what was appended to it"]


def _link_differences(
    rows: list[dict[str, Any]], bad: Counter[str], given: dict[str, dict[str, Any]]
) -> list[str]:
    """Every row of the input is in one of the links or in one dead letter, and those that must be bad are."""
    linked = Counter(at for row in rows for at in row["rows"])
    found = [
        f"row {at}: in {linked[at]} links and {bad[at]} dead letters"
        for at in sorted(given.keys() | linked.keys() | bad.keys())
        if linked[at] + bad[at] != (at in given)
    ]
    return found + [
        f"row {at} is linked, although it is {row}"
        for at, row in given.items()
        if linked[at] and (row["user"] is None or row["app"] == POISON)
    ]


def _echo_differences(rows: list[dict[str, Any]], echoes: list[dict[str, Any]]) -> list[str]:
    """The side output has every link once, under the name that only the attempt knows which gave both."""
    linked = Counter((row["user"], row["name"]) for row in rows)
    echoed = Counter((row["user"], row["name"]) for row in echoes)
    found = [f"link {one}: {count} without an echo" for one, count in (linked - echoed).items()]
    return found + [f"echo {one}: {count} without a link" for one, count in (echoed - linked).items()]


def _view_differences(site: Site, traffic: Traffic, given: dict[str, dict[str, Any]]) -> list[str]:
    """Counts by app, those that the table refuses among the dead letters, and every row without an app in one of them."""
    views: dict[Any, Any] = dict(site.views())
    wanted = {app: (count, traffic.app_users[app]) for app, count in traffic.apps.items() if app is not None}
    refused = [(row["pv"], row["users"]) for row in site.letters("views-out")]
    if refused:
        views[REFUSED] = max(refused)
    found = [f"a dead letter of views-out came twice: {refused}"] if len(set(refused)) < len(refused) else []
    found += [
        f"{app}: count and sum {views.get(app)}, expected {wanted.get(app)}"
        for app in sorted(wanted.keys() | views.keys())
        if views.get(app) != wanted.get(app)
    ]
    without_app = Counter(at for at, row in given.items() if row["app"] is None)
    letters = Counter(map(position, site.letters("views")))
    if letters != without_app:
        found.append(f"rows without an app: lost {without_app - letters}, too many {letters - without_app}")
    return found


def _chain_differences(rows: list[dict[str, Any]], truth: Counter[Any]) -> list[str]:
    """Per user: all rows in one chain, each total the sum of the pieces so far, the last one the true count."""
    by_user: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_user[row["user"]].append(row)
    found: list[str] = []
    for user in sorted(truth.keys() | by_user.keys()):
        own = by_user[user]
        pieces = sum(row["piece"] for row in own)
        if pieces != truth[user]:
            found.append(f"user {user}: the pieces add up to {pieces}, expected {truth[user]}")
        found += _broken_links(f"user {user}", own, "before", "name")
        running = 0
        for row in sorted(own, key=lambda row: row["total"]):
            running += row["piece"]
            if row["total"] != running:
                found.append(
                    f"user {user}: a row says total {row['total']} where the pieces so far are {running}"
                )
                break
    return found


def _relay_differences(rows: list[dict[str, Any]]) -> list[str]:
    by_bucket: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_bucket[row["bucket"]].append(row)
    return [
        text
        for bucket, own in sorted(by_bucket.items())
        for text in _broken_links(f"bucket {bucket}", own, "relay_before", "relay_name")
    ]


def _broken_links(whose: str, rows: list[dict[str, Any]], before: str, name: str) -> list[str]:
    """Walk from the row that has nothing before it; every row must be met once."""
    following = Counter(row[before] for row in rows)
    forks = [f"{whose}: {count} rows follow {link!r}" for link, count in following.items() if count > 1]
    next_of = {row[before]: row for row in rows}
    link, met = "", 0
    while link in next_of and met <= len(rows):
        link, met = next_of[link][name], met + 1
    if met != len(rows):
        forks.append(f"{whose}: the chain has {met} of {len(rows)} rows, it ends after {link!r}")
    return forks


# ── what may be left ───────────────────────────────────────────────────────────────────────────


def _staging_leftovers(site: Site) -> list[str]:
    hidden = [folder / "_penstock" for folder in (site.files_path, site.letters_path, site.echoes_path)]
    found = (path for folder in hidden for path in folder.rglob(f"{JOB}-*.*"))
    staged = [path for path in found if path.parent.name != "committed"]
    staged += site.root.glob("views.db.penstock/**/*.arrow")
    return [f"staged and forgotten: {path.relative_to(site.root)}" for path in staged]


def _retained(site: Site) -> list[Completed]:
    """The checkpoints of the job's history: what a zombie writes late counts for nothing, and goes with the next recovery."""
    history = read_history(site.storage, read_descents(site.storage))
    assert not history.broken
    return history.whole


def _named_files(site: Site) -> dict[str, FileRef]:
    """The state files that checkpoints name."""
    states = [state for one in _retained(site) for state in one.operators.values()]
    return {ref.name: ref for state in states for handle in state.handles for ref in handle.refs}


def _broken_checkpoints(site: Site) -> list[str]:
    count = len(_retained(site))
    found = [] if 1 <= count <= 2 else [f"{count} checkpoints are retained, expected 1 or 2"]
    root = site.storage.root
    for name, ref in sorted(_named_files(site).items()):
        if not (root / name).exists():
            found.append(f"a checkpoint names {name}, which is missing")
        elif fingerprint(root / name) != (ref.size, ref.checksum):
            found.append(f"{name} is not what the checkpoint says: {fingerprint(root / name)}")
    return found


def _storage_leftovers(site: Site) -> list[str]:
    storage = site.storage
    unnamed = set(storage.names("state")) - _named_files(site).keys()
    known = {"job.json", *(name for one in _retained(site) for name in name_of(one).files)}
    folders = ("state/", "spark/", "runs/", "begun/", "events/")
    unknown = {name for name in storage.names() if not name.startswith(folders)} - known
    return [f"no checkpoint names {name}" for name in sorted(unnamed)] + [
        f"nobody knows {name}" for name in sorted(unknown)
    ]
