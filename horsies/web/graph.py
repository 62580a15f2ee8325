"""Draw a workflow as a graph of its nodes and as a time line. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from horsies.db.queries.inspect import WorkflowNode

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 56, 18, 12
LABEL = 24


class Box(NamedTuple):
    """A node of the graph with its position."""

    node: WorkflowNode
    x: int
    y: int
    label: str
    caption: str


class Picture(NamedTuple):
    """A drawn graph. Each edge is an SVG path and the status of the node where it starts."""

    width: int
    height: int
    boxes: list[Box]
    edges: list[tuple[str, str]]


def picture(nodes: Sequence[WorkflowNode]) -> Picture:
    """Lay out the nodes from left to right: each to the right of its dependencies, at about their mean height."""
    depth = levels(nodes)
    columns: dict[int, list[WorkflowNode]] = {}
    for node in nodes:
        columns.setdefault(depth[node.task_index], []).append(node)
    rows: dict[int, float] = {}
    tallest = max((len(column) for column in columns.values()), default=0)
    for level in sorted(columns):
        order = sorted(columns[level], key=lambda node: (_mean_row(node, rows), node.task_index))
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


def levels(nodes: Sequence[WorkflowNode]) -> dict[int, int]:
    """Return the length of the longest path to each node. Dependencies that are not listed do not count."""
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


def _mean_row(node: WorkflowNode, rows: dict[int, float]) -> float:
    before = [rows[each] for each in node.dependencies if each in rows]
    return sum(before) / len(before) if before else 0


def _box(node: WorkflowNode, level: int, row: float) -> Box:
    label = node.node_id.rpartition(":")[2] or node.node_id
    caption = node.name if node.kind == "task" else f"{node.kind} · {node.name}"
    x = MARGIN + level * (WIDTH + GAP_X)
    y = MARGIN + round(row * (HEIGHT + GAP_Y))
    return Box(node, x, y, _cut(label), _cut(caption))


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _edge(before: Box, after: Box) -> tuple[str, str]:
    x1, y1 = before.x + WIDTH, before.y + HEIGHT // 2
    x2, y2 = after.x, after.y + HEIGHT // 2
    bend = (x2 - x1) // 2
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", before.node.status
