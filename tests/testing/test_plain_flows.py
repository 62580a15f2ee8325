"""Chains, groups and maps of plain tasks pass plain values along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from horsies import Flow, Horsies, TaskError, TaskResult, chain, from_node, group, map_node
from horsies.testing import inline

app: Any = Horsies()


@dataclass
class Page:
    text: str


@app.task("fetch")
def fetch(n: int) -> Page:
    return Page(f"page {n}")


@app.task("count")
async def count(page: Page) -> int:
    return len(page.text)


@app.task("numbers")
def numbers(upto: int) -> list[int]:
    return list(range(upto))


@app.task("square")
def square(n: int) -> int:
    return n * n


@app.task("total")
def total(values: list[int]) -> int:
    return sum(values)


@app.task("seen")
def seen(value: TaskResult[int, TaskError]) -> str:
    return f"seen {value.unwrap()}"


@pytest.fixture(autouse=True)
def _inline(horsies_bind: Callable[[Any], Any]) -> Iterator[None]:
    with inline(horsies_bind(app)):
        yield


def value(flow: Flow[Any]) -> Any:
    return flow.start().unwrap().get(timeout_ms=10_000).unwrap()


def test_a_chain_passes_the_value_or_the_result_as_the_parameter_is_annotated() -> None:
    assert value(chain(fetch.node(1), count.node())) == 6
    assert value(chain(square.node(4), seen.node())) == "seen 16"


def test_a_group_of_plain_tasks_gives_a_list_of_their_values() -> None:
    assert value(group(fetch.node(1), fetch.node(2))) == [Page("page 1"), Page("page 2")]
    assert value(chain(group(square.node(2), square.node(3)), total.node())) == 13


def test_a_map_of_a_plain_task_takes_and_gives_plain_lists() -> None:
    assert value(chain(numbers.node(4), map_node(square), total.node())) == 14


def test_from_node_passes_the_value_of_a_plain_task() -> None:
    first = square.node(3)
    second = square.node(from_node(first))
    spec = app.workflow("squares", [first, second], output=second, definition_key="testing.squares")

    assert spec.start().unwrap().get(timeout_ms=10_000).unwrap() == 81
    assert [node.node_id for node in (first, second)] == ["square", "square_2"]
