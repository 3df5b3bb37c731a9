"""A sink that cannot commit for a while."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import pytest
from chaos_job import build_job
from known_truth import Traffic
from test_worker_kills import end, finish, wait_for, wait_for_checkpoints

from services.patience import PATIENCE_S

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def test_commits_wait_for_a_locked_database(spark, site, seed, caplog):
    """While another program locks the database, commits are retried and checkpoints go on; then every row is there once."""
    caplog.set_level(logging.DEBUG, logger="penstock.checkpoint")
    with Traffic(site, seed) as traffic:
        handle = build_job(site, spark, busy_timeout="100ms").start()
        try:
            wait_for("the first commit", handle, lambda: site.database_path.exists() and _has_views(site))
            with closing(
                sqlite3.connect(site.database_path, timeout=PATIENCE_S, isolation_level=None)
            ) as other:
                other.execute("BEGIN EXCLUSIVE")
                visible = site.views()
                wait_for("three failed commits", handle, lambda: caplog.text.count("next try in") >= 3)
                wait_for_checkpoints(site, handle, 3)
                assert site.views() == visible
                other.execute("ROLLBACK")
            wait_for("the commits that waited", handle, lambda: site.views() != visible)
            finish(site, handle, traffic)
        finally:
            end(handle)
    assert handle.progress.restarts == 0


def _has_views(site) -> bool:
    try:
        return bool(site.views())
    except sqlite3.OperationalError:  # no table yet
        return False
