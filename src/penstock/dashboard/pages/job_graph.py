"""The graph of a job as a picture, and the facts about its nodes. Pure.

The boxes lie in layers, each after all its inputs: from left to right, or downward on a narrow screen. A line that passes a layer gets its
own place in it, so no line crosses a box. The order inside a layer is the one with the fewest crossings of those tried. A plan from storage
may name anything: inputs that do not exist or come later are ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

import msgspec

from penstock.status.live import OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.plan import PARTLY_AGGREGATED, PlanNode
from penstock.status.view import JobView, source_behind
from penstock.wording import (
    NOTHING,
    behind,
    clock_time,
    compact,
    counted,
    lasted,
    rate,
    size,
    watermark_moment,
)

BOX_WIDTH, BOX_HEIGHT = 236.0, 112.0
BETWEEN_LAYERS, BETWEEN_BOXES = 64.0, 22.0
DOWNWARD_BETWEEN_LAYERS = 40.0
MARGIN = 6.0
_PASSING = 14.0
"""The room of a line that passes a layer."""
_SWEEPS = 8


class Box(msgspec.Struct, frozen=True):
    """The position of a node."""

    node: PlanNode
    x: float
    y: float
    width: float = BOX_WIDTH
    height: float = BOX_HEIGHT


class EdgePath(msgspec.Struct, frozen=True):
    """The line from one node to another; `path` is the `d` of an SVG path."""

    source: str
    target: str
    path: str


class Drawing(msgspec.Struct, frozen=True):
    """The layout of the whole graph."""

    width: float = 0.0
    height: float = 0.0
    boxes: tuple[Box, ...] = ()
    lines: tuple[EdgePath, ...] = ()


class _Place(msgspec.Struct):
    """A box or a passing line, which takes room in a layer."""

    layer: int
    room: float
    """Its size across the flow: the height of a box if rows flow right, its width if they flow down."""
    middle: float = 0.0
    inputs: list[_Place] = []
    outputs: list[_Place] = []


_Layers = list[list[_Place]]


class _Direction(msgspec.Struct, frozen=True):
    """The direction in which rows flow. A point is (along the flow, across the flow)."""

    downward: bool

    @property
    def length(self) -> float:
        """The length of a box along the flow."""
        return BOX_HEIGHT if self.downward else BOX_WIDTH

    @property
    def room(self) -> float:
        """The size of a box across the flow."""
        return BOX_WIDTH if self.downward else BOX_HEIGHT

    @property
    def step(self) -> float:
        """The distance from one layer to the next."""
        return self.length + (DOWNWARD_BETWEEN_LAYERS if self.downward else BETWEEN_LAYERS)

    def point(self, along: float, across: float) -> tuple[float, float]:
        """Convert a point to x and y."""
        return (across, along) if self.downward else (along, across)

    def begin(self, layer: int) -> float:
        """The begin of a layer along the flow."""
        return MARGIN + layer * self.step


def draw(nodes: Sequence[PlanNode], *, downward: bool = False) -> Drawing:
    """Lay out the nodes of a plan."""
    known = {node.uid: node for node in reversed(nodes)}
    ordered = [node for node in nodes if known[node.uid] is node]
    if not ordered:
        return Drawing()
    way = _Direction(downward)
    edges = _edges(ordered)
    boxes = {uid: _Place(layer, way.room) for uid, layer in _layers_of(ordered, edges).items()}
    routes = {(source, target): _route(boxes[source], boxes[target]) for source, target in edges}
    passing = [one for route in routes.values() for one in route[1:-1]]
    layers = _with_fewest_crossings(_by_layer([*boxes.values(), *passing]))
    _settle(layers)
    return _drawing(known, boxes, routes, layers, way)


def _edges(nodes: Sequence[PlanNode]) -> list[tuple[str, str]]:
    """The pairs of uids, each once; an input must come before its node."""
    seen: set[str] = set()
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        found.update({(uid, node.uid): None for uid in node.inputs if uid in seen})
        seen.add(node.uid)
    return list(found)


def _layers_of(nodes: Sequence[PlanNode], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The layer of each node, after all its inputs; a node without inputs moves close to its outputs."""
    inputs: defaultdict[str, list[str]] = defaultdict(list)
    outputs: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        inputs[target].append(source)
        outputs[source].append(target)
    layer: dict[str, int] = {}
    for node in nodes:
        layer[node.uid] = max((layer[uid] + 1 for uid in inputs[node.uid]), default=0)
    return {
        uid: min(layer[to] for to in outputs[uid]) - 1 if outputs[uid] and not inputs[uid] else at
        for uid, at in layer.items()
    }


def _route(source: _Place, target: _Place) -> list[_Place]:
    passing = [_Place(layer, _PASSING) for layer in range(source.layer + 1, target.layer)]
    route = [source, *passing, target]
    for one, following in pairwise(route):
        one.outputs.append(following)
        following.inputs.append(one)
    return route


def _by_layer(places: Sequence[_Place]) -> _Layers:
    layers: defaultdict[int, list[_Place]] = defaultdict(list)
    for place in places:
        layers[place.layer].append(place)
    return [layers[layer] for layer in range(max(layers) + 1)]


def _with_fewest_crossings(layers: _Layers) -> _Layers:
    """Sort each layer by the mean rank of its neighbours, forward and backward; keep the best order found."""
    best, fewest = [list(places) for places in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for places in layers if forward else reversed(layers):
            _sort(places, layers, forward=forward)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(places) for places in layers], crossings
    return best


def _sort(places: list[_Place], layers: _Layers, *, forward: bool) -> None:
    rank = _ranks(layers)
    wanted = {
        id(one): fmean(
            [rank[id(other)] for other in (one.inputs if forward else one.outputs)] or [rank[id(one)]]
        )
        for one in places
    }
    places.sort(key=lambda one: wanted[id(one)])


def _ranks(layers: _Layers) -> dict[int, int]:
    return {id(one): at for places in layers for at, one in enumerate(places)}


def _crossings(layers: _Layers) -> int:
    rank = _ranks(layers)
    total = 0
    for places in layers:
        lines = [(rank[id(one)], rank[id(to)]) for one in places for to in one.outputs]
        total += sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(lines, 2))
    return total


def _settle(layers: _Layers) -> None:
    """Place each box across the flow, as near to its neighbours as order and room allow."""
    for places in layers:
        _spread(places, [0.0] * len(places))
    for sweep in range(_SWEEPS):
        for places in layers if sweep % 2 == 0 else reversed(layers):
            _spread(places, [_between_neighbours(one) for one in places])
    first = min(one.middle - one.room / 2 for places in layers for one in places)
    for places in layers:
        for one in places:
            one.middle += MARGIN - first


def _between_neighbours(one: _Place) -> float:
    neighbours = one.inputs + one.outputs
    return fmean([other.middle for other in neighbours]) if neighbours else one.middle


def _spread(places: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Put each at its wanted place without overlap; if there is too little room, shift all equally."""
    end = float("-inf")
    for place, middle in zip(places, wanted, strict=True):
        place.middle = max(middle, end + BETWEEN_BOXES + place.room / 2)
        end = place.middle + place.room / 2
    if places:
        moved = fmean([place.middle - middle for place, middle in zip(places, wanted, strict=True)])
        for place in places:
            place.middle -= moved


def _drawing(
    nodes: Mapping[str, PlanNode],
    boxes: Mapping[str, _Place],
    routes: Mapping[tuple[str, str], list[_Place]],
    layers: _Layers,
    way: _Direction,
) -> Drawing:
    across = max(one.middle + one.room / 2 for places in layers for one in places) + MARGIN
    width, height = way.point(way.begin(len(layers) - 1) + way.length + MARGIN, across)
    return Drawing(
        width=width,
        height=height,
        boxes=tuple(
            Box(nodes[uid], *way.point(way.begin(one.layer), one.middle - one.room / 2))
            for uid, one in boxes.items()
        ),
        lines=tuple(
            EdgePath(source, target, _path(route, way)) for (source, target), route in routes.items()
        ),
    )


def _path(route: Sequence[_Place], way: _Direction) -> str:
    """Curves between layers, straight lines past them."""

    def text(along: float, across: float) -> str:
        x, y = way.point(along, across)
        return f"{x:.1f} {y:.1f}"

    along, across = way.begin(route[0].layer) + way.length, route[0].middle
    parts = [f"M{text(along, across)}"]
    for place in route[1:]:
        to = way.begin(place.layer)
        half = (along + to) / 2
        parts.append(f"C{text(half, across)} {text(half, place.middle)} {text(to, place.middle)}")
        along, across = to + way.length, place.middle
        if place is not route[-1]:
            parts.append(f"L{text(along, across)}")
    return "".join(parts)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The current facts about one node as text; a dash for unknown values."""

    node: PlanNode
    speed: str = NOTHING
    rows: str = NOTHING
    counted: str = ""
    """How its rows are counted, if not one by one: `partly aggregated`."""
    state: str = NOTHING
    """The size of state; for a source the unread rows, for a sink the uncommitted rows."""
    state_label: str = ""
    as_of_s: float = 0.0
    """For a run that is over: when it last wrote its status; 0 for one that is up."""
    time: str = NOTHING
    """How far event time lags the clock."""
    lag: str = ""
    """The same as a phrase: `8.1 s behind`; '' without event time."""
    watermark: str = NOTHING
    """The watermark in UTC, with every digit."""
    watermark_us: int | None = None
    files: str = NOTHING
    left_out: str = ""
    """The counts of late and bad rows; '' if none."""
    alarm: str = ""
    """The problem in a word or two; '' if there is none."""
    why: str = ""
    """The explanation of the problem."""
    position: str = ""

    @property
    def as_of(self) -> str:
        """The time of that status in words."""
        return clock_time(self.as_of_s) if self.as_of_s > 0 else ""


def node_facts(view: JobView) -> dict[str, NodeFacts]:
    """The facts about each node, by uid; for a job that is not running, from its last status."""
    nodes = view.plan.nodes if view.plan else ()
    live = view.live
    return {node.uid: _facts(node, live, view) if live else NodeFacts(node=node) for node in nodes}


def _facts(node: PlanNode, live: Progress, view: JobView) -> NodeFacts:
    if node.kind == "source" and node.uid in live.sources:
        return _source(node, live.sources[node.uid], view)
    if node.kind == "sink" and node.uid in live.sinks:
        return _sink(node, live.sinks[node.uid], view)
    if node.uid in live.operators:
        return _operator(node, live.operators[node.uid], view)
    return NodeFacts(node=node)


def _source(node: PlanNode, source: SourceLive, view: JobView) -> NodeFacts:
    unread = source_behind(view, source)
    return NodeFacts(
        node=node,
        speed=_speed(source.rows_per_s, view),
        rows=f"{source.rows:,}",
        state=NOTHING if unread.rows is None else _rows(unread.rows),
        state_label="unread",
        as_of_s=unread.as_of,
        **_event_time(source.watermark_us, view),
        position=source.position,
    )


def _operator(node: PlanNode, operator: OperatorLive, view: JobView) -> NodeFacts:
    return NodeFacts(
        node=node,
        speed=_speed(operator.rows_per_s, view),
        rows=f"{operator.rows:,}",
        counted=PARTLY_AGGREGATED if node.partly_aggregated else "",
        state=size(operator.state_bytes),
        state_label="state",
        as_of_s=view.live.batch_at if view.live and not view.is_up else 0.0,
        **_event_time(operator.watermark_us, view),
        files=f"{operator.files:,}",
        left_out=", ".join(_left_out(operator.late_rows, operator.bad_records)),
    )


def _sink(node: PlanNode, sink: SinkLive, view: JobView) -> NodeFacts:
    since = f", the oldest for {lasted(_now(view) - sink.waiting_since)}" if sink.waiting_since > 0 else ""
    is_known = view.is_up or not view.state.is_alive
    waits = f"{counted(sink.waiting, 'transaction')} with {counted(sink.waiting_rows, 'row')} wait for their commit{since}"
    return NodeFacts(
        node=node,
        speed=_speed(sink.rows_per_s, view),
        rows=f"{sink.rows:,}",
        state=_rows(sink.waiting_rows) if sink.waiting else "none" if is_known else NOTHING,
        state_label="uncommitted",
        as_of_s=view.live.at if view.live and not view.state.is_alive else 0.0,
        left_out=", ".join(_left_out(0, sink.bad_records)),
        alarm="down" if sink.down else "",
        why=f"{sink.down}. {waits}" if sink.down else waits if sink.waiting else "",
    )


def _left_out(late: int, bad: int) -> Iterator[str]:
    if late:
        yield f"{compact(late)} late"
    if bad:
        yield f"{compact(bad)} bad"


def _event_time(watermark_us: int | None, view: JobView) -> dict[str, Any]:
    """The facts about event time."""
    time = behind(watermark_us, _now(view))
    lag = "" if time == NOTHING else time if time.endswith("ahead") else f"{time} behind"
    moment = watermark_moment(watermark_us)
    return {"time": time, "lag": lag, "watermark": moment, "watermark_us": watermark_us}


def _speed(rows_per_s: float, view: JobView) -> str:
    return rate(rows_per_s) if view.is_up else NOTHING


def _now(view: JobView) -> float:
    """The end of durations: now, or the last status of a job that ended."""
    return view.now if view.state.is_alive or view.live is None else view.live.at


def _rows(number: int) -> str:
    return "1 row" if number == 1 else " ".join((compact(number), "rows"))
