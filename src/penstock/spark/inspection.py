"""Inspects the DataFrames, own code and sinks of a job before it starts: sources, state that Spark would keep, pickling. Driver."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from penstock.errors import ConfigError
from penstock.graph import Graph, Source
from penstock.guarantee import Guarantee, SinkFacts, SourceFacts, derive

if TYPE_CHECKING:
    from penstock.job import Job


STATEFUL = {
    "Aggregate": "groupBy().agg()",
    "Deduplicate": "dropDuplicates() or distinct()",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark()",
    "Distinct": "distinct()",
    "FlatMapGroupsWithState": "flatMapGroupsWithState()",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState()",
    "TransformWithState": "transformWithState()",
    "TransformWithStateInPySpark": "transformWithState()",
    "TransformWithStateInPandas": "transformWithStateInPandas()",
    "GlobalLimit": "limit()",
    "LocalLimit": "limit()",
}

_ONCE = "dedupe(on=..., within=...)"
_INSTEAD = {
    "Deduplicate": _ONCE,
    "DeduplicateWithinWatermark": _ONCE,
    "Distinct": _ONCE,
    "Join": "left.join(right, on=..., within=...), or lookup()",
}
_OTHERWISE = "key_by().aggregate(), key_by().window() or key_by().process()"

UNREPLAYABLE = ("socket",)

CLEANS = "cleanSource"


@dataclass(frozen=True)
class Leaf:
    """A streaming source in a plan."""

    kind: str

    @property
    def replayable(self) -> bool:
        """Whether it can go back to a position."""
        return not any(word in self.kind.lower() for word in UNREPLAYABLE)


def leaves(frame: DataFrame) -> list[Leaf]:
    """The streaming sources of a DataFrame, in the order in which Spark records their positions."""
    return [Leaf(source_kind(node)) for node in streaming_leaves(frame)]


def stream_numbers(sources: Sequence[Source]) -> dict[str, tuple[int, ...]]:
    """The numbers under which Spark's query knows the streaming sources in each source of the job.

    Spark numbers them in the order of the plan. If two sources of the job share a DataFrame, Spark reads it once.
    """
    known: list[Any] = []

    def number(leaf: Any) -> int:
        for at, other in enumerate(known):
            if leaf.equals(other):
                return at
        known.append(leaf)
        return len(known) - 1

    return {source.uid: tuple(number(leaf) for leaf in streaming_leaves(source.frame)) for source in sources}


def streaming_leaves(frame: DataFrame) -> list[Any]:
    """The streaming sources of a DataFrame as nodes of Spark's plan, in the order of `leaves`."""
    return [node for node in _walk(_analyzed(frame)) if node.isStreaming() and node.children().isEmpty()]


def source_kind(leaf: Any) -> str:
    """Spark's name for the kind of source; the class of the leaf if it has none."""
    try:
        return str(leaf.sourceName())
    except Exception:  # noqa: BLE001 - py4j raises exceptions of its own
        return str(leaf.getClass().getSimpleName())


def leaf_options(frame: DataFrame) -> list[Mapping[str, str]]:
    """The options of each streaming source, in the order of `leaves`; empty for sources of Spark's first interface."""
    return [_options(node) for node in streaming_leaves(frame)]


def _options(leaf: Any) -> Mapping[str, str]:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return {}
    return dict(leaf.extraOptions().asCaseSensitiveMap())


def referenced_columns(frame: DataFrame) -> frozenset[str]:
    """The columns that the optimised plan of a DataFrame uses."""
    found: set[str] = set()
    for node in _walk(frame._jdf.queryExecution().optimizedPlan()):
        names = node.references().iterator()
        while names.hasNext():
            found.add(str(names.next().name()))
    return frozenset(found)


def kept_columns(frame: DataFrame) -> tuple[str, frozenset[str]]:
    """The kind of its streaming source, and the unchanged columns of that source; ('', none) if there are several sources."""
    found = streaming_leaves(frame)
    if len(found) != 1:
        return "", frozenset()
    given, kept = _columns(found[0]), _columns(_analyzed(frame))
    return source_kind(found[0]), frozenset(name for name, of in kept.items() if given.get(name) == of)


def _columns(node: Any) -> dict[str, int]:
    """The ids of columns by name. A column keeps its id as long as it is not computed anew."""
    columns = node.output()
    every = (columns.apply(at) for at in range(columns.size()))
    return {str(one.name()): int(one.exprId().id()) for one in every}


def refuse_stateful(source: Source) -> None:
    """Raise `ConfigError` if Spark would keep state before `read`: it would not be part of the checkpoint."""
    for node in _walk(_analyzed(source.frame)):
        name = node.getClass().getSimpleName()
        if not node.isStreaming():
            continue
        if name in STATEFUL or (name == "Join" and _streams_joined(node)):
            what = STATEFUL.get(name, "a join of two streams")
            raise ConfigError(
                f"source {source.uid!r} contains {what}, for which Spark keeps state that is not part of Penstock's checkpoint: after "
                f"a recovery it would be wrong; read the plain stream and use {_INSTEAD.get(name, _OTHERWISE)} instead",
                source=source.uid,
                operation=what,
            )


def refuse_cleaning(source: Source) -> None:
    """Raise `ConfigError` if a source deletes its input after Spark's batch, before Penstock's checkpoint is complete."""
    for node in streaming_leaves(source.frame):
        wanted = _option(node, CLEANS)
        if wanted.lower() not in ("", "off"):
            raise ConfigError(
                f"source {source.uid!r} has the option {CLEANS}={wanted}: Spark removes a file as soon as its batch is done, long before a "
                f"checkpoint has it, and a job that goes back could not read it again; leave the option out, and remove files that "
                "lie before the positions of the oldest retained checkpoint",
                source=source.uid,
                option=CLEANS,
                value=wanted,
            )


def _option(leaf: Any, name: str) -> str:
    """The value that the user set, '' if none. Names of options are case-insensitive."""
    if leaf.getClass().getSimpleName() != "StreamingRelation":
        return ""  # a source of Spark's second interface: none of them cleans
    options = leaf.dataSource().options().iterator()
    while options.hasNext():
        option = options.next()
        if str(option._1()).lower() == name.lower():
            return str(option._2())
    return ""


def guarantee_of(job: Job) -> Guarantee:
    """The guarantee of the job, see `Job.guarantee`. Refuses the same sources as a start."""
    for source in job.graph.sources:
        refuse_stateful(source)
        refuse_cleaning(source)
    sources = [_facts(source) for source in job.graph.sources]
    sinks = [
        SinkFacts(output.uid, type(output.sink).__name__, output.sink.delivery, output.sink.explanation)
        for output in job.graph.outputs
    ]
    return derive(job.checkpoint.delivery_mode, sources, sinks)


def replayable_positions(sources: list[Source]) -> list[bool]:
    """For each recorded position, in order, whether its source can replay."""
    return [
        leaf.replayable if source.replayable is None else source.replayable
        for source in sources
        for leaf in leaves(source.frame)
    ]


def _facts(source: Source) -> SourceFacts:
    found = leaves(source.frame)
    kinds = ", ".join(leaf.kind for leaf in found)
    by_itself = all(leaf.replayable for leaf in found)
    return SourceFacts(source.uid, kinds, by_itself if source.replayable is None else source.replayable)


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _walk(node: Any) -> Iterator[Any]:
    yield node
    children = node.children().iterator()
    while children.hasNext():
        yield from _walk(children.next())


def _streams_joined(node: Any) -> bool:
    return bool(node.left().isStreaming()) and bool(node.right().isStreaming())


def check_pickles(graph: Graph) -> None:
    """Refuse operators and sinks that cannot be pickled: every attempt of every batch would fail."""
    for node in graph.operators:
        if node.own_code is not None:
            with graph.saying_where(node.uid):
                _check(f"operator {node.uid!r}", node.own_code, node.uid)
    for output in graph.outputs:
        _check(f"sink {output.uid!r}", output.sink, output.uid)


def _check(who: str, given: object, uid: str) -> None:
    error = _refusal(given)
    if error is None:
        return
    attribute, why = next(_at_fault(given), ("", error))
    kind = type(given).__name__
    what = f"its attribute {attribute} cannot" if attribute.startswith("self.") else f"{attribute} cannot"
    raise ConfigError(
        f"{who}: a {kind} is pickled into tasks, and {what if attribute else 'it cannot'} be: {why}. Open connections, locks and files "
        "where they are first used, inside the call, and keep only settings in the object",
        uid=uid,
        attribute=attribute,
    ) from error


def _refusal(value: object) -> Exception | None:
    """The error of pickling a value; None if it can be pickled."""
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        return error
    return None


def _at_fault(given: object) -> Iterator[tuple[str, Exception]]:
    """The parts that cannot be pickled: attributes, or globals that its methods use if its class is pickled by value."""
    for prefix, values in (("self.", _state_of(given)), ("the global ", _globals_of(type(given)))):
        for name, value in values.items():
            error = _refusal(value)
            if error is not None:
                yield f"{prefix}{name} ({type(value).__name__})", error


def _state_of(given: object) -> Mapping[str, Any]:
    state = given.__getstate__()
    return state if isinstance(state, Mapping) else vars(given)


def _globals_of(kind: type) -> dict[str, Any]:
    """The globals that its methods use."""
    found: dict[str, Any] = {}
    for method in vars(kind).values():
        if inspect.isfunction(method):
            closure = inspect.getclosurevars(method)
            found |= {**closure.globals, **closure.nonlocals}
    return found
