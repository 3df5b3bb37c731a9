"""Own code in columns, in a running job: pandas, polars and Arrow, over restarts, with the state of the keyed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ledger import Count, Ledger, fail_for_good

import penstock as ps

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path)


class ArrowCount(ps.BatchProcess):
    count = ps.ValueState("long", default=0)

    def process_batch(self, keys, batch, state):
        state["count"] = pc.add(state["count"], pa.array(np.bincount(batch.key_index)))
        return keys.to_arrow().append_column("n", state["count"])


class KeyedUsers(ps.KeyedProcess):
    """Counts by user in a map, and has all users in a list; the result is the sum of what the map has, as long as the list says."""

    count = ps.ValueState("long", default=0)
    by_user = ps.MapState("long", "long")
    users = ps.ListState("long")

    def process(self, key, rows, ctx):
        for row in rows:
            self.by_user[row.user] = self.by_user.get(row.user, 0) + 1
            self.users.append(row.user)
        total = sum(self.by_user.values())
        assert total == len(self.users)
        yield key, total


class UsersInColumns(ps.BatchProcess):
    """The same for all keys at once."""

    count = ps.ValueState("long", default=0)
    by_user = ps.MapState("long", "long")
    users = ps.ListState("long")

    def process_batch(self, keys, batch, state):
        rows = pa.table({"key": batch.key_index, "user": batch["user"]})
        added = rows.group_by(["key", "user"]).aggregate([([], "count_all")])
        before = state["by_user"].get(added["key"], added["user"])
        counts = pc.add(pc.fill_null(before, 0), added["count_all"].combine_chunks())
        state["by_user"].put(added["key"], added["user"], counts)
        state["users"].append(batch.key_index, batch["user"])
        entries = state["by_user"].rows().to_pandas()
        totals = entries.groupby("key_index")["value"].sum()
        assert (totals == state["users"].rows().to_pandas().groupby("key_index").size()).all()
        return keys.to_pandas().assign(n=totals)


class PandasCount(ArrowCount):
    def process_batch(self, keys, batch, state):
        counts = batch.to_pandas().groupby(batch.key_index).size()
        state["count"] = state["count"].to_pandas() + counts
        return keys.to_pandas().assign(n=state["count"].to_pandas())


class PolarsCount(ArrowCount):
    def process_batch(self, keys, batch, state):
        import polars as pl

        counts = batch.to_polars().group_by("app").len()
        before = keys.to_polars().with_columns(count=pl.Series(state["count"]))
        after = before.join(counts, on="app", maintain_order="left")
        state["count"] = after["count"] + after["len"]
        yield after.select("app", n=pl.col("count") + pl.col("len"))


def run(spark, ledger: Ledger, operator: Any, **settings: Any) -> ps.Job:
    job = ledger.job(**settings)
    clicks = job.read(ledger.log.read(spark, rows_per_batch=300), uid="clicks")
    counted = clicks.key_by("app").process(operator, schema="app string, n long", uid="counted")
    counted.write_to(ledger.sqlite(), uid="out")
    job.run(available_now=True)
    return job


def test_every_form_goes_on_with_the_state_of_the_one_before(spark, ledger):
    """A job counts on when its operator changes from key by key to Arrow, pandas, polars and back, at another parallelism too."""
    for operator, parallelism in (
        (Count(), 2),
        (ArrowCount(), 2),
        (PandasCount(), 3),
        (PolarsCount(), 2),
        (Count(), 1),
    ):
        ledger.fill(400)
        run(spark, ledger, operator, parallelism=parallelism)
        assert ledger.counts() == ledger.truth()


def test_maps_and_lists_go_on_in_either_form(spark, ledger):
    """The same with a map and a list: what was put key by key is there in columns, and the other way round."""
    for operator, parallelism in ((UsersInColumns(), 2), (KeyedUsers(), 3), (UsersInColumns(), 2)):
        ledger.fill(400)
        run(spark, ledger, operator, parallelism=parallelism)
        assert ledger.counts() == ledger.truth()


def test_a_failure_brings_the_job_back_to_its_checkpoint(spark, ledger, tmp_path):
    """After an exception in process_batch the state is that of the checkpoint, and no count is off."""
    ledger.fill(600)
    marker = tmp_path / "failed"

    class FailsOnce(ArrowCount):
        def process_batch(self, keys, batch, state):
            result = super().process_batch(keys, batch, state)
            if state.context.checkpoint == 2 and not marker.exists():
                fail_for_good(marker)
            return result

    run(spark, ledger, FailsOnce(), restart=ps.fixed_delay(attempts=2, delay="10ms"))
    assert marker.exists()
    assert ledger.counts() == ledger.truth()


def test_rows_of_a_key_come_in_order(spark, ledger):
    """With `order_by` the rows of every key are in that order."""
    ledger.fill(300)

    class InOrder(ps.BatchProcess):
        def process_batch(self, keys, batch, state):
            users = batch["user"].to_numpy()
            same_key = np.diff(batch.key_index) == 0
            assert same_key.any()
            assert (np.diff(users)[same_key] <= 0).all()
            return {"app": keys["app"], "n": np.maximum.reduceat(users, batch.starts)}

    job = ledger.job()
    clicks = job.read(ledger.log.read(spark), uid="clicks")
    ordered = clicks.key_by("app").process(
        InOrder(), schema="app string, n long", uid="o", order_by="user desc"
    )
    ordered.write_to(ledger.sqlite(), uid="out")
    job.run(available_now=True)
    assert len(ledger.counts()) == 5


def test_what_is_no_operator_is_refused(spark, ledger):
    """A class instead of an instance, a function, or an order that is none, is refused before anything starts."""
    clicks = ledger.job().read(ledger.log.read(spark), uid="clicks")
    for wrong in (ArrowCount, lambda keys, batch, state: None):
        with pytest.raises(ps.ConfigError, match="an instance of a KeyedProcess or BatchProcess subclass"):
            clicks.key_by("app").process(wrong, schema="app string, n long", uid="o")
    with pytest.raises(ps.ConfigError, match=r"order_by='user descending'.*asc or desc"):
        clicks.key_by("app").process(
            ArrowCount(), schema="app string, n long", uid="o", order_by="user descending"
        )
