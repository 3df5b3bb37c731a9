"""Nothing that a sink stages may be refusable at commit for its content alone: every sink, with values that break sinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hostile_targets
import hostile_values as values
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import sinks
from penstock.errors import ConfigError
from penstock.sinks import TwoPhaseCommitSink


@pytest.mark.parametrize("kind", hostile_targets.ALL)
def test_a_value_is_refused_in_the_task_or_committed_as_it_is(
    kind: type[hostile_targets.Target], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever a row holds, the task refuses it while the job can go back, or the commit succeeds and a reader finds it unchanged.

    A task that may leave rows out refuses the same rows, and commits all others.
    """
    target = kind(tmp_path, request)
    plain = [(column, values.PLAIN[column]) for column in target.columns]
    edges = values.edges(target.columns)
    taken = target.taken([*plain, *edges])
    if not target.one_by_one:
        assert list(map(repr, target.sifted([*plain, *edges]))) == list(map(repr, taken))
    assert [
        one for one in plain if one not in taken and one[0] not in hostile_targets.NO_FORM.get(kind, ())
    ] == []

    @settings(max_examples=3, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def at_random(data: st.DataObject) -> None:
        target.taken(data.draw(values.any_values(target.columns)))

    at_random()


@pytest.mark.parametrize("column", ["named", "deep"])
@pytest.mark.parametrize(
    "sink",
    [
        lambda folder, _: sinks.Files(folder / "out", "csv"),
        lambda folder, column: sinks.Files(folder / "out", partition_by=[column]),
        lambda folder, column: sinks.DeltaLake(folder / "out", partition_by=[column]),
        lambda folder, column: sinks.SQLite(folder / "out.db", "results", mode="upsert", key=[column]),
    ],
    ids=["CSV", "folder", "folder of Delta Lake", "key of a table"],
)
def test_a_map_without_a_form_is_refused_by_name(
    sink: Callable[[Path, str], TwoPhaseCommitSink], column: str, tmp_path: Path
) -> None:
    """Before the query starts, also where the map is in a struct or an array; nothing is left behind."""
    schema = values.SCHEMA.field("id"), values.SCHEMA.field("real"), values.SCHEMA.field(column)
    with pytest.raises(ConfigError, match=f"'{column}'.*map<"):
        sink(tmp_path, column).validate(pa.schema(schema))
    assert list(tmp_path.iterdir()) == []
