"""Draw a workflow as a graph of its nodes and as a time line. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from horsies.db.queries.inspect import WorkflowNode
from horsies.workflow.layout import HEIGHT, LANE, Layout, layout

WIDTH, GAP, MARGIN = 200, 60, 14
# The longest texts of a node and of a row of the timeline, in characters of a wide font.
LABEL, CAPTION, ROW = 19, 25, 34


class Box(NamedTuple):
    """A node of the graph with its position."""

    node: WorkflowNode
    x: int
    y: int
    label: str
    caption: str


class Edge(NamedTuple):
    """A line from one node to another that waits for it, as an SVG path, with the status of the first."""

    path: str
    status: str
    before: int
    after: int


class Picture(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    edges: list[Edge]


def picture(nodes: Sequence[WorkflowNode]) -> Picture:
    """Draw the nodes from left to right, with the edges between them."""
    found = layout(tuple((node.task_index, tuple(node.dependencies)) for node in nodes))
    by_index = {node.task_index: node for node in nodes}
    boxes = {index: _box(by_index[index], level, found.tops[index]) for index, level in found.nodes}
    edges = [
        Edge(_route(boxes[before], boxes[after], found), boxes[before].node.status, before, after)
        for before, after in found.chains
    ]
    width = 2 * MARGIN + len(found.columns) * (WIDTH + GAP) - GAP
    return Picture(max(width, 0), 2 * MARGIN + round(found.height), list(boxes.values()), edges)


def _route(before: Box, after: Box, found: Layout) -> str:
    """Return the path of an edge: curves between the columns, straight lines through them."""
    x, y = before.x + WIDTH, before.y + HEIGHT // 2
    path = f"M{x} {y}"
    for place in found.chains[before.node.task_index, after.node.task_index]:
        assert not isinstance(place, int)
        left = MARGIN + place[2] * (WIDTH + GAP)
        lane = MARGIN + round(found.tops[place] + LANE / 2)
        path += _curve(x, y, left, lane) + f"H{left + WIDTH}"
        x, y = left + WIDTH, lane
    return path + _curve(x, y, after.x, after.y + HEIGHT // 2)


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    bend = max(12, abs(x2 - x1) // 2)
    return f"C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


def timeline(nodes: Sequence[WorkflowNode], now: datetime) -> list[tuple[WorkflowNode, float, float]]:
    """Return the nodes that have started, in this order, with the start and length of their bars in percent."""
    started = sorted(
        (node.started_at, node.task_index, node)
        for node in nodes
        if node.started_at is not None and node.status != "SKIPPED"  # a skipped node has no end
    )
    if not started:
        return []
    first = started[0][0]
    last = max(first, *(node.completed_at or now for _, _, node in started))
    percent = max((last - first).total_seconds(), 0.001) / 100
    return [
        (
            node,
            (start - first).total_seconds() / percent,
            max(0.4, ((node.completed_at or now) - start).total_seconds() / percent),
        )
        for start, _, node in started
    ]


def _box(node: WorkflowNode, level: int, top: float) -> Box:
    label = node.node_id.rpartition(":")[2] or node.node_id
    caption = node.name if node.kind == "task" else f"{node.kind} · {node.name}"
    return Box(
        node,
        MARGIN + level * (WIDTH + GAP),
        MARGIN + round(top),
        cut_middle(label, LABEL),
        cut_middle(caption, CAPTION),
    )


def cut_middle(text: str, longest: int = ROW) -> str:
    """Cut the middle out of a long text: the names of neighbouring nodes often differ at their ends.

    >>> cut_middle("reconcile-customer-12", 15)
    'reconci…omer-12'
    """
    if len(text) <= longest:
        return text
    end = (longest - 1) // 2
    return f"{text[: longest - 1 - end]}…{text[-end:]}"
