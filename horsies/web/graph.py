"""Draw a workflow: where each node stands, the lines between them, and when each of them ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from horsies.storage.sights import Node

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 56, 18, 12
LABEL = 24


class Box(NamedTuple):
    """A node in the picture."""

    node: Node
    x: int
    y: int
    label: str
    caption: str


class Edge(NamedTuple):
    path: str
    status: str


class Picture(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    edges: list[Edge]


class Bar(NamedTuple):
    """When a node ran, in percent of the whole."""

    node: Node
    start: float
    length: float


def picture(nodes: Sequence[Node]) -> Picture:
    """Nodes from left to right, each to the right of all that it waits for, near the middle of those."""
    depth = levels(nodes)
    columns: dict[int, list[Node]] = {}
    for node in nodes:
        columns.setdefault(depth[node.task_index], []).append(node)
    rows: dict[int, float] = {}
    tallest = max((len(column) for column in columns.values()), default=0)
    for level in sorted(columns):
        order = sorted(columns[level], key=lambda node: (_middle(node, rows), node.task_index))
        first = (tallest - len(order)) / 2
        rows |= {node.task_index: first + place for place, node in enumerate(order)}
    boxes = {node.task_index: _box(node, depth[node.task_index], rows[node.task_index]) for node in nodes}
    edges = [
        _edge(boxes[before], boxes[node.task_index])
        for node in nodes
        for before in node.dependencies
        if before in boxes
    ]
    width = 2 * MARGIN + len(columns) * (WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y
    return Picture(max(width, 0), max(height, 0), list(boxes.values()), edges)


def levels(nodes: Sequence[Node]) -> dict[int, int]:
    """How many nodes come before each on the longest way to it. One that waits for a node not shown counts as first."""
    known = {node.task_index for node in nodes}
    depth: dict[int, int] = {}
    left = list(nodes)
    while left:
        ready = [
            node for node in left if all(before in depth for before in node.dependencies if before in known)
        ]
        for node in ready or left:
            depth[node.task_index] = 1 + max(
                (depth.get(before, -1) for before in node.dependencies), default=-1
            )
        left = [node for node in left if node.task_index not in depth]
    return depth


def timeline(nodes: Sequence[Node], now: datetime) -> list[Bar]:
    """The nodes that have begun, in the order in which they did."""
    begun = sorted(
        (node for node in nodes if node.started_at is not None),
        key=lambda node: (node.started_at, node.task_index),
    )
    if not begun:
        return []
    first = min(_began(node) for node in begun)
    last = max(node.completed_at or now for node in begun)
    whole = max((last - first).total_seconds(), 0.001)
    return [
        Bar(
            node,
            (_began(node) - first).total_seconds() / whole * 100,
            max(0.4, ((node.completed_at or now) - _began(node)).total_seconds() / whole * 100),
        )
        for node in begun
    ]


def _began(node: Node) -> datetime:
    assert node.started_at is not None
    return node.started_at


def _middle(node: Node, rows: dict[int, float]) -> float:
    before = [rows[each] for each in node.dependencies if each in rows]
    return sum(before) / len(before) if before else 0


def _box(node: Node, level: int, row: float) -> Box:
    label = node.node_id.rpartition(":")[2] or node.node_id
    caption = node.name if node.kind == "task" else f"{node.kind} · {node.name}"
    x = MARGIN + level * (WIDTH + GAP_X)
    y = MARGIN + round(row * (HEIGHT + GAP_Y))
    return Box(node, x, y, _cut(label), _cut(caption))


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _edge(before: Box, after: Box) -> Edge:
    x1, y1 = before.x + WIDTH, before.y + HEIGHT // 2
    x2, y2 = after.x, after.y + HEIGHT // 2
    bend = (x2 - x1) // 2
    return Edge(f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", before.node.status)
