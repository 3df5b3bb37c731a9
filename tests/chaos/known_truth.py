"""A log whose content is known, the places of a job's output, and the comparison of the two, row by row."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import penstock as ps
from penstock.checkpoint.metadata import checkpoint_ids, read_metadata
from penstock.state.backends.run_file import fingerprint
from penstock.storage import LocalStorage
from penstock.storage.names import is_temporary

JOB = "chaos"
PARTITIONS = 2
APPS = 6
USERS = 40
MOST_SHOWN = 12


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
    def finish_path(self) -> Path:
        """When this exists no more rows come, and a driver ends when everything is committed."""
        return self.root / "finish"

    def views(self) -> dict[str, tuple[int, int]]:
        with closing(sqlite3.connect(self.database_path)) as database:
            return {app: (pv, users) for app, pv, users in database.execute("select app, pv, users from views")}

    def links(self) -> list[dict[str, object]]:
        if not any(self.files_path.glob("*.parquet")):
            return []
        return ds.dataset(self.files_path, format="parquet").to_table().to_pylist()


@dataclass
class Traffic:
    """Appends random rows in the background and keeps account of them."""

    site: Site
    seed: int
    rows_per_s: int = 200
    apps: Counter[str] = field(default_factory=Counter)
    app_users: Counter[str] = field(default_factory=Counter)
    users: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._log = self.site.log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._flow, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Traffic:
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
        apps = [f"app{self._rng.randrange(APPS)}" for _ in range(rows)]
        users = [self._rng.randrange(USERS) for _ in range(rows)]
        self._log.append(partition, pa.table({"app": apps, "user": pa.array(users, pa.int64())}), sync=False)
        self.apps.update(apps)
        self.users.update(users)
        for app, user in zip(apps, users, strict=True):
            self.app_users[app] += user

    def _flow(self) -> None:
        pause_s = 0.05
        try:
            while not self._stopped.wait(pause_s):
                self.append(self._rng.randint(1, max(1, int(2 * self.rows_per_s * pause_s))))
        except BaseException as error:  # noqa: BLE001 - raised again in stop
            self._failure = error


# ── comparing ──────────────────────────────────────────────────────────────────────────────────


def differences(traffic: Traffic, *, shuffled: bool = False) -> list[str]:
    """Everything that is not as it would be without failures; empty when all is exact."""
    site = traffic.site
    rows = site.links()
    found = _log_differences(traffic) + _chain_differences(rows, traffic.users)
    if shuffled:
        found += _relay_differences(rows)
    else:
        found += _view_differences(site.views(), traffic)
    return found + _staging_leftovers(site) + storage_differences(site)


def assert_exact(traffic: Traffic, *, shuffled: bool = False) -> None:
    found = differences(traffic, shuffled=shuffled)
    shown = "\n  ".join(found[:MOST_SHOWN])
    assert not found, f"{len(found)} differences from the truth of {traffic.rows} rows:\n  {shown}"


def _log_differences(traffic: Traffic) -> list[str]:
    in_log = Counter(traffic.site.log.table()["user"].to_pylist())
    return [] if in_log == traffic.users else ["the log does not hold what was appended to it"]


def _view_differences(views: dict[str, tuple[int, int]], traffic: Traffic) -> list[str]:
    wanted = {app: (count, traffic.app_users[app]) for app, count in traffic.apps.items()}
    return [
        f"SQLite {app}: count and sum {views.get(app)}, expected {wanted.get(app)}"
        for app in sorted(wanted.keys() | views.keys())
        if views.get(app) != wanted.get(app)
    ]


def _chain_differences(rows: list[dict[str, object]], truth: Counter[int]) -> list[str]:
    """Per user: all rows in one chain, each total the sum of the pieces so far, the last one the true count."""
    by_user: defaultdict[object, list[dict[str, object]]] = defaultdict(list)
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
                found.append(f"user {user}: a row says total {row['total']} where the pieces so far are {running}")
                break
    return found


def _relay_differences(rows: list[dict[str, object]]) -> list[str]:
    by_bucket: defaultdict[object, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        by_bucket[row["bucket"]].append(row)
    return [
        text
        for bucket, own in sorted(by_bucket.items())
        for text in _broken_links(f"bucket {bucket}", own, "relay_before", "relay_name")
    ]


def _broken_links(whose: str, rows: list[dict[str, object]], before: str, name: str) -> list[str]:
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
    hidden = site.files_path / "_penstock"
    staged = [path for path in hidden.rglob(f"{JOB}.*") if path.parent.name != "committed"]
    staged += site.root.glob("views.db.penstock/**/*.arrow")
    return [f"staged and forgotten: {path.relative_to(site.root)}" for path in staged]


def storage_differences(site: Site) -> list[str]:
    """Retained checkpoints are whole, and nothing else is there."""
    storage = site.storage
    retained = [read_metadata(storage, number) for number in checkpoint_ids(storage)]
    runs = {run.name: run for one in retained for state in one.operators.values() for h in state.handles for run in h.runs}
    found = [] if 1 <= len(retained) <= 2 else [f"{len(retained)} checkpoints are retained, expected 1 or 2"]
    stored = set(storage.names("state"))
    found += [f"no checkpoint names {name}" for name in sorted(stored - runs.keys())]
    found += [f"a checkpoint names {name}, which is missing" for name in sorted(runs.keys() - stored)]
    found += [
        f"{name} is not what the checkpoint says: {fingerprint(storage.root / name)}"
        for name in sorted(stored & runs.keys())
        if fingerprint(storage.root / name) != (runs[name].size, runs[name].checksum)
    ]
    known = {"job.json"} | {f"chk-{one.checkpoint}/{file}" for one in retained for file in ("_metadata", "_committed")}
    others = [name for name in storage.names() if not name.startswith(("state/", "spark/", "runs/")) and name not in known]
    return found + [f"nobody knows {name}" for name in others]


def temporary_files(site: Site) -> list[str]:
    """Writes into storage that died half-way."""
    return _names(path for path in site.storage.root.rglob(".tmp-*") if is_temporary(path.name))


def _names(paths: Iterable[Path]) -> list[str]:
    return sorted(str(path) for path in paths)
