"""Which tests each command runs: `make check`, `make test`, `make test-all`, `make chaos`.

Each command runs what the one before it runs, and more. `LATER` is the only place where a test is moved to a later command;
CONTRIBUTING.md has the same table. Without `--tier`, pytest runs all it is asked for, as `make test-all` would.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import NamedTuple

import pytest

from services import dealing

SLOW_S = 2.0
"""A unit test module that took longer, in `seconds.json`, is not in `make check`."""
SERVERS = frozenset(
    (
        "spark",
        "postgres_server",
        "mariadb_server",
        "redis_server",
        "s3_server",
        "hdfs_server",
        "kafka",
        "flink",
        "chromium",
    )
)
"""Fixtures that start a program; tests with one of them are not in `make check`."""


class Tier(IntEnum):
    """A command that runs tests."""

    CHECK = 0
    TEST = 1
    ALL = 2
    CHAOS = 3

    @property
    def command(self) -> str:
        return {Tier.ALL: "make test-all"}.get(self, f"make {self.name.lower()}")


MARKERS = {Tier.TEST: "slow", Tier.ALL: "full", Tier.CHAOS: "chaos_long"}
"""The marker of a test, by the first command that runs it."""


class Moved(NamedTuple):
    """Tests that only a later command runs: modules, tests, or single cases of them."""

    tier: Tier
    what: str
    names: tuple[str, ...]


LATER = (
    Moved(
        Tier.ALL,
        "Flink's own client and pages, which need 329 MB",
        (
            "tests/spark/test_flink_client.py",
            "tests/dashboard/test_flink_pages.py",
        ),
    ),
    Moved(
        Tier.ALL,
        "a job on the oldest Spark, which needs half a GB",
        ("tests/spark/test_oldest_spark.py",),
    ),
    Moved(
        Tier.ALL,
        "what terminals show after mistakes, a process for each",
        ("tests/spark/test_screens.py",),
    ),
    Moved(
        Tier.ALL,
        "a browser against the real server, and pages of jobs in every kind of trouble",
        (
            "tests/dashboard/test_server_in_a_browser.py",
            "tests/dashboard/test_browser.py::test_pages_of_every_kind_of_job",
        ),
    ),
    Moved(
        Tier.ALL,
        "the demonstration in the weaker modes, whose promises `tests/spark/test_modes.py` shows too",
        (
            "tests/spark/test_demo.py::test_at_least_once",
            "tests/spark/test_demo.py::test_at_most_once",
        ),
    ),
    Moved(
        Tier.ALL,
        "kills of executors, of a supervised job, of jobs with timers, over savepoints, and with sinks that block",
        (
            "tests/chaos/test_executor_kills.py",
            "tests/chaos/test_keep_alive.py::test_what_dies_comes_back_and_the_truth_is_kept",
            "tests/chaos/test_timed_kills.py",
            "tests/chaos/test_savepoint_chain.py::test_two_places",
            "tests/chaos/test_blocked_sink.py",
            "tests/chaos/test_worker_kills.py::test_lost_local_files",
            "tests/chaos/test_zombies.py::test_a_live_driver_is_taken_over",
        ),
    ),
    Moved(
        Tier.ALL,
        "Kafka: the contract with raw bytes, commits in doubt while settings or topics change, requests that come late, brokers killed in a commit",
        (
            "tests/contract/test_kafka_sink.py::TestKafkaBytes",
            "tests/contract/test_kafka_crashes.py::test_a_request_that_comes_in_the_next_transaction",
            "tests/contract/test_kafka_crashes.py::test_a_topic_of_commits_made_anew_while_a_commit_is_in_doubt",
            "tests/contract/test_kafka_crashes.py::test_broker_killed_in_the_middle_of_a_commit",
            "tests/contract/test_kafka_crashes.py::test_settings_that_change_while_a_commit_is_in_doubt",
        ),
    ),
    Moved(
        Tier.ALL,
        "Kafka in jobs: topics that are deleted, event time by partition, positions by choice",
        (
            "tests/spark/test_kafka.py::test_a_source_topic_that_was_deleted",
            "tests/spark/test_kafka.py::test_event_time_by_partition",
            "tests/spark/test_kafka.py::test_positions_by_choice",
        ),
    ),
    Moved(
        Tier.ALL,
        "requests and signals in other moments: of a dead driver, of one whose Java dies, while Spark starts",
        (
            "tests/spark/test_requests_to_jobs.py::test_the_next_run_goes_on_with_what_a_dead_one_was_asked_for",
            "tests/spark/test_json_log.py::test_the_death_of_the_jvm_is_told_in_json",
            "tests/spark/test_signals.py::test_a_signal_while_spark_starts[15]",
        ),
    ),
    Moved(
        Tier.ALL,
        "windows in jobs, whose results `tests/spark/test_nexmark.py` compares too, event time after silence, windows after a join",
        (
            "tests/spark/test_window_jobs.py::test_windows_are_sparks_own[sliding]",
            "tests/spark/test_window_jobs.py::test_windows_of_windows_and_the_first_of_each",
            "tests/spark/test_window_jobs.py::test_windows_are_sparks_own[session]",
            "tests/spark/test_window_jobs.py::test_windows_are_sparks_own[tumbling]",
            "tests/spark/test_window_jobs.py::test_late_rows_update_or_come_out[tumbling]",
            "tests/spark/test_event_time_jobs.py::test_newest_times_are_those_of_the_rows",
            "tests/spark/test_event_time_jobs.py::test_rows_in_order_are_in_time_after_any_silence",
            "tests/spark/test_join_jobs.py::test_the_time_of_a_result_moves_what_is_behind",
        ),
    ),
    Moved(
        Tier.ALL,
        "jobs on slow or absent storage, and with a sink that stays down",
        (
            "tests/spark/test_several_sinks.py::test_one_of_them_is_down",
            "tests/spark/test_slow_storage.py::test_a_checkpoint_that_cannot_finish_in_time_is_given_up_and_cleaned_away",
            "tests/spark/test_slow_storage.py::test_storage_that_is_away_for_a_while_costs_a_restart",
            "tests/spark/test_slow_storage.py::test_storage_that_takes_its_time_with_each_file",
            "tests/spark/test_slow_storage.py::test_too_many_late_checkpoints_send_the_job_back",
            "tests/spark/test_several_sinks.py::test_batches_wait_when_too_many_commits_do",
        ),
    ),
    Moved(
        Tier.ALL,
        "changes of jobs on the other backends, and savepoints in rarer uses",
        (
            "tests/spark/test_sources_by_uid.py::test_everything_renamed[memory]",
            "tests/spark/test_sources_by_uid.py::test_everything_renamed[rocksdb]",
            "tests/spark/test_sources_by_uid.py::test_at_most_once_sources_are_matched_too",
            "tests/spark/test_kinds_of_state.py::test_random_steps_see_what_plain_python_sees[rocksdb]",
            "tests/spark/test_golden_jobs.py::test_a_savepoint_of_an_earlier_version",
            "tests/spark/test_write_savepoints.py::test_other_key_groups",
            "tests/spark/test_write_savepoints.py::test_rows_keep_their_order",
            "tests/spark/test_savepoint_jobs.py::test_another_mode",
            "tests/spark/test_savepoint_jobs.py::test_of_a_running_job_at_most_once",
            "tests/spark/test_savepoint_jobs.py::test_claimed",
            "tests/spark/test_savepoint_jobs.py::test_what_is_dropped_is_dropped_once",
        ),
    ),
    Moved(
        Tier.ALL,
        "the README's first screen, typed into an environment of its own",
        ("tests/docs/test_five_minutes.py::test_the_first_screen_of_the_readme",),
    ),
    Moved(
        Tier.ALL,
        "savepoints read and written by Spark: windows, rows, lists, timers, some keys, other time zones",
        (
            "tests/spark/test_read_savepoints.py::test_internal_columns",
            "tests/spark/test_read_savepoints.py::test_names_that_are_not_there",
            "tests/spark/test_read_savepoints.py::test_only_some_keys",
            "tests/spark/test_read_savepoints.py::test_keys_read_only_their_files",
            "tests/spark/test_read_savepoints.py::test_a_file_that_is_missing",
            "tests/spark/test_read_savepoints.py::test_a_frame_outlives_the_object_it_was_made_of",
            "tests/spark/test_read_savepoints.py::test_keys_of_windows",
            "tests/spark/test_read_savepoints.py::test_keys_of_any_type",
            "tests/spark/test_read_savepoints.py::test_keys_in_other_time_zones",
            "tests/spark/test_read_savepoints.py::test_keys_without_a_time_zone",
            "tests/spark/test_read_savepoints.py::test_windows",
            "tests/spark/test_read_savepoints.py::test_rows_of_the_stream",
            "tests/spark/test_read_savepoints.py::test_lists_of_subtasks",
            "tests/spark/test_write_savepoints.py::test_what_a_lookup_knows_is_written",
            "tests/spark/test_write_savepoints.py::test_timers_are_written",
            "tests/spark/test_write_savepoints.py::test_wrong_use",
        ),
    ),
    Moved(
        Tier.ALL,
        "positions by choice, and more sinks in jobs: Redis, upserts, constraints, a sink of a user",
        (
            "tests/spark/test_sources_by_uid.py::test_positions_by_choice",
            "tests/spark/test_sources_by_uid.py::test_a_position_set_by_choice_is_kept_when_the_run_fails",
            "tests/spark/test_sources_by_uid.py::test_one_frame_read_twice",
            "tests/spark/test_other_sinks.py::test_a_sink_of_a_user_that_does_not_wait_for_checkpoints",
            "tests/spark/test_other_sinks.py::test_redis_ends_up_right",
            "tests/spark/test_other_sinks.py::test_a_table_ends_up_right",
            "tests/spark/test_sql_servers.py::test_a_row_that_breaks_a_constraint",
        ),
    ),
    Moved(
        Tier.ALL,
        "picked values, distinct counts, first rows, hostile rows in tumbling windows, late rows of session windows, plans that are left, in jobs",
        (
            *(
                f"tests/spark/test_batch_plans.py::test_a_transform_that_leaves_the_plan[{what}-True]"
                for what in ("rdd", "checkpoint", "observe", "action", "sort")
            ),
            "tests/spark/test_count_distinct_jobs.py::test_counts_are_those_of_one_group_by",
            "tests/spark/test_top_jobs.py::test_the_first_rows_are_those_of_row_number",
            "tests/spark/test_hostile_aggregates.py::test_aggregates_of_hostile_rows[at least once, tumbling, skip]",
            "tests/spark/test_picked_values.py::test_picked_values_are_those_of_one_group_by",
            "tests/spark/test_window_jobs.py::test_late_rows_update_or_come_out[session]",
        ),
    ),
    Moved(
        Tier.CHAOS,
        "a chain of savepoints on every backend, and drivers that are frozen at random",
        (
            "tests/chaos/test_savepoint_chain.py::test_every_backend_and_several_parallelisms",
            "tests/chaos/test_zombies.py::test_a_stopped_driver_wakes_up_fenced",
        ),
    ),
    Moved(
        Tier.CHAOS,
        "installing into an empty environment, and making the archive of Spark's classes",
        (
            "tests/docs/test_five_minutes.py::test_the_first_screen_in_an_empty_environment",
            "tests/unit/test_class_archive.py::test_java_starts_with_the_archive_that_was_made",
        ),
    ),
    Moved(
        Tier.CHAOS,
        "thousands of seeds of the simulation",
        ("tests/protocol/test_random_seeds.py::test_many_seeds",),
    ),
    Moved(
        Tier.CHAOS,
        "a checkpoint of an earlier version on the other backends",
        (
            "tests/spark/test_golden_jobs.py::test_a_checkpoint_of_an_earlier_version[memory]",
            "tests/spark/test_golden_jobs.py::test_a_checkpoint_of_an_earlier_version[rocksdb]",
        ),
    ),
)

_PERCENT = {Tier.CHECK: 10, Tier.TEST: 20, Tier.ALL: 100, Tier.CHAOS: 100}
_FEW = {Tier.CHECK: 2, Tier.TEST: 5, Tier.ALL: 5, Tier.CHAOS: 5}
_current = Tier.ALL
left: dict[str, int] = {}
"""How many tests this run leaves to which later command, and what they are."""


def use(name: str | None) -> None:
    """From now on `share` counts for this command."""
    global _current  # noqa: PLW0603 - test modules ask when they are imported
    _current = Tier.ALL if name is None else Tier[name.upper()]


def share(most: int) -> int:
    """How many random cases the current command tries: `most` in `make test-all`, fewer before it."""
    return max(min(most, _FEW[_current]), most * _PERCENT[_current] // 100)


def everything() -> bool:
    """Whether the current command tries every case that can be counted, such as a crash at every call."""
    return _current >= Tier.ALL


def mark(item: pytest.Item) -> None:
    """Give a test the marker of the first command that runs it."""
    moved = _moved(item.nodeid)
    if moved is not None:
        item.add_marker(MARKERS[moved.tier])
    elif item.get_closest_marker("spark") or _is_slow(item.nodeid) or _needs_a_server(item):
        item.add_marker(MARKERS[Tier.TEST])


def leave_out(config: pytest.Config, items: list[pytest.Item], name: str) -> None:
    """Deselect what only later commands run, and count it in `left`."""
    kept, dropped = [], []
    for item in items:
        first = next(
            (tier for tier, marker in MARKERS.items() if item.get_closest_marker(marker)), Tier.CHECK
        )
        if first <= Tier[name.upper()]:
            kept.append(item)
        else:
            dropped.append(item)
            moved = _moved(item.nodeid)
            what = moved.what if moved else "tests with Spark or a server, and slow unit tests"
            left[f"{first.command}: {what}"] = left.get(f"{first.command}: {what}", 0) + 1
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def _needs_a_server(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and not SERVERS.isdisjoint(item.fixturenames)


def _moved(test: str) -> Moved | None:
    return next((moved for moved in LATER if any(_within(test, name) for name in moved.names)), None)


def _within(test: str, name: str) -> bool:
    """Whether a test is the one of this name, or one of its cases, or in the module of this name."""
    return test == name or test.startswith((f"{name}::", f"{name}["))


@functools.cache
def _slow_modules() -> frozenset[str]:
    return frozenset(scope for scope, seconds in dealing.measured_s().items() if seconds > SLOW_S)


def _is_slow(test: str) -> bool:
    return test.startswith("tests/unit/") and test.partition("::")[0] in _slow_modules()
