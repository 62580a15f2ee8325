"""What type checkers must see of the public names. It is checked, not run: `make types`.

Each wrong use carries the error that it must be; a checker that sees none there reports that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import horsies
from horsies import (
    Err,
    Horsies,
    Ok,
    RetryPolicy,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskSendError,
    WorkflowHandle,
    WorkflowSpec,
    from_node,
    map_node,
)
from horsies.testing import Ran, assert_enqueued, drain

app = Horsies()


@dataclass(frozen=True)
class Price:
    cents: int


@app.task("add", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)


@app.task("fetch")
async def fetch(url: str, *, tries: int = 1) -> TaskResult[Price, TaskError]:
    return TaskResult(ok=Price(tries))


@app.task("urls")
def urls() -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[])


@app.task("show")
def show(price: TaskResult[Price, TaskError]) -> TaskResult[str, TaskError]:
    return TaskResult(ok=str(price.unwrap().cents))


def a_send_takes_what_the_function_takes() -> None:
    sent = add.send(2, y=3)
    assert_type(sent.unwrap(), TaskHandle[int])
    add.send(2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.send("2", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.send(2, 3, z=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fetch.schedule(60, "https://example.org", tries=2)
    fetch.schedule(60, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.with_options(priority=1).send(2, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.with_options(prio=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_send_must_be_looked_at() -> None:
    match add.send(2, 3):
        case Ok(handle):
            assert_type(handle, TaskHandle[int])
            assert_type(handle.get(timeout_ms=1), TaskResult[int, TaskError])
            assert_type(handle.get().unwrap(), int)
        case Err(error):
            assert_type(error, TaskSendError)
    add.send(2, 3).get()  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def an_async_task_is_awaited() -> None:
    assert_type(await fetch("https://example.org"), TaskResult[Price, TaskError])
    assert_type((await fetch.send_async("https://example.org")).unwrap(), TaskHandle[Price])
    assert_type(add(2, 3), TaskResult[int, TaskError])


def a_task_returns_a_result() -> None:
    @app.task("bare")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
    def bare() -> int:
        return 1


def a_workflow_gives_what_its_output_gives() -> None:
    source = urls.node()()
    prices = map_node(fetch, over=source)
    shown = show.node()(price=from_node(fetch.node()(url="https://example.org")))
    spec = app.workflow("show", [source, prices, shown], output=shown)
    assert_type(spec, WorkflowSpec[str])
    assert_type(spec.start().unwrap(), WorkflowHandle[str])


def a_name_that_does_not_exist_is_no_name() -> None:
    horsies.Horse  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018


def tests_see_types_too() -> None:
    assert_type(drain(app), list[Ran])
    assert_type(drain(app)[0].result, TaskResult[Any, TaskError])
    assert_enqueued(add, kwargs={"x": 2}, count=1)
    assert_enqueued("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
