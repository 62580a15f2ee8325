"""The graph of a workflow has its edges around the nodes, and one order everywhere."""

from __future__ import annotations

import doctest
import random
import re
from collections.abc import Iterator

import pytest

from horsies.db.queries.inspect import WorkflowNode
from horsies.web.graph import WIDTH, picture
from horsies.workflow import layout as workflow_layout
from horsies.workflow.layout import GAP, HEIGHT, layout, levels, progress


def node(index: int, *before: int, status: str = "PENDING") -> WorkflowNode:
    return WorkflowNode(index, f"n{index}", "task", "t", status, None, None, list(before), None, None, None)


def nodes_at_random(size: int, seed: int) -> list[WorkflowNode]:
    draw = random.Random(seed)
    return [node(index, *draw.sample(range(index), min(index, draw.randrange(4)))) for index in range(size)]


def points(path: str) -> Iterator[tuple[float, float]]:
    """Return points along a path of M, C and H commands."""
    x = y = 0.0
    for command, text in re.findall("([MCH])([^MCH]*)", path):
        values = [float(each) for each in text.split()]
        if command == "M":
            x, y = values
        elif command == "H":
            yield from ((x + (values[0] - x) * step / 20, y) for step in range(21))
            x = values[0]
        else:
            x1, y1, x2, y2, end_x, end_y = values
            for step in range(21):
                t, u = step / 20, 1 - step / 20
                yield (
                    u**3 * x + 3 * u * u * t * x1 + 3 * u * t * t * x2 + t**3 * end_x,
                    u**3 * y + 3 * u * u * t * y1 + 3 * u * t * t * y2 + t**3 * end_y,
                )
            x, y = end_x, end_y


@pytest.mark.parametrize("seed", range(8))
def test_no_edge_runs_through_a_node(seed: int) -> None:
    drawn = picture(nodes_at_random(40, seed))

    for edge in drawn.edges:
        for box in drawn.boxes:
            if box.node.task_index in (edge.before, edge.after):
                continue
            inside = [
                (x, y)
                for x, y in points(edge.path)
                if box.x < x < box.x + WIDTH and box.y < y < box.y + HEIGHT
            ]
            assert inside == [], (edge, box)


@pytest.mark.parametrize("seed", range(8))
def test_no_node_overlaps_another(seed: int) -> None:
    boxes = picture(nodes_at_random(40, seed)).boxes

    for one in boxes:
        for other in boxes:
            if one is not other and one.x == other.x:
                assert abs(one.y - other.y) >= HEIGHT + GAP - 1


def test_edges_cross_only_where_they_must() -> None:
    # As listed, the edges 0-3 and 1-2 would cross.
    drawn = picture([node(0), node(1), node(2, 1), node(3, 0)])
    height = {box.node.task_index: box.y for box in drawn.boxes}

    assert (height[0] < height[1]) == (height[3] < height[2])


def test_a_cycle_of_rows_changed_by_hand_is_drawn_all_the_same() -> None:
    drawn = picture([node(0, 1), node(1, 0), node(2, 2), node(3, 99)])

    assert len({(box.x, box.y) for box in drawn.boxes}) == 4


def test_a_graph_of_the_largest_size_is_laid_out_once() -> None:
    shape = tuple((each.task_index, tuple(each.dependencies)) for each in nodes_at_random(2_000, 1))

    assert layout(shape) is layout(shape)
    assert len(levels(shape)) == 2_000


def test_progress_says_what_failed_and_does_not_count_skipped_nodes_as_failed() -> None:
    assert str(progress(["COMPLETED"] * 7 + ["FAILED"] + ["PENDING"] * 2)) == "7 of 10 completed, 1 failed"
    assert doctest.testmod(workflow_layout).failed == 0
