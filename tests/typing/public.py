"""What type checkers must see of the public names. It is checked, not run: `make types`.

Each wrong use carries the error that it must be; a checker that sees none there reports that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import horsies
from horsies import (
    AppConfig,
    Err,
    Flow,
    Horsies,
    IntervalSchedule,
    Ok,
    ResultUnavailable,
    RetryPolicy,
    SendError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    TaskFailure,
    TaskHandle,
    TaskInfo,
    TaskNode,
    TaskNotFound,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    TaskStatus,
    TaskTimeout,
    WorkflowHandle,
    WorkflowSpec,
    WorkflowStartErrorCode,
    as_result,
    chain,
    from_node,
    group,
    map_node,
    sleep_node,
    start_workflow,
)
from horsies.testing import Ran, assert_enqueued, drain

app = Horsies()


@dataclass(frozen=True)
class Price:
    cents: int


@app.task(batch=100, linger=0.05)
def batched(prices: list[Price]) -> list[int]:
    return [price.cents for price in prices]


@app.task("charge", batch=50)
async def charged(prices: list[Price]) -> list[TaskResult[int, TaskError]]:
    return [TaskResult(ok=price.cents) for price in prices]


assert_type(batched.delay(Price(1)), TaskHandle[int])
assert_type(charged.delay(Price(1)), TaskHandle[int])
batched.delay([Price(1)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@app.task(unique="args", on_conflict="last")
def debounced(x: int) -> int:
    return x


app.task(unique="args", on_conflict="newest")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


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
    add.with_options(prio=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_delay_gives_a_handle_and_its_result_the_value() -> None:
    assert_type(add.delay(2, y=3), TaskHandle[int])
    assert_type(add.with_options(delay=1.5, timeout=timedelta(seconds=5)).delay(2, 3), TaskHandle[int])
    assert_type(add.delay(2, 3).result(timeout=10), int)
    assert_type(fetch.delay("https://example.org").result(timedelta(seconds=10)), Price)
    add.delay(2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.delay("2", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.delay(2, 3).result(timeout="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.with_options(delay="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add.schedule(timedelta(minutes=1), 2, 3)
    add.send_many([(1, 2), {"x": 3, "y": 4}])
    add.send_many(["ab"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    add.send_many([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def a_delay_can_be_awaited() -> None:
    handle = await fetch.delay_async("https://example.org", tries=2)
    assert_type(handle, TaskHandle[Price])
    assert_type(await handle.result_async(timeout=10), Price)
    await add.with_options(priority=1).delay_async(2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def exceptions_have_what_they_tell(caught: Exception) -> None:
    if isinstance(caught, SendError):
        assert_type(caught.code, TaskSendErrorCode | WorkflowStartErrorCode)
        assert_type(caught.retryable, bool)
        assert_type(caught.error, TaskSendError | None)
    if isinstance(
        caught, TaskFailed | TaskTimeout | TaskCancelled | TaskExpired | TaskNotFound | ResultUnavailable
    ):
        assert_type(caught.error, TaskError)
    SendError("NO", "no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@as_result(ValueError)
def parse(text: str) -> int:
    return int(text)


@as_result(ValueError)
async def parse_later(text: str) -> int:
    return int(text)


async def results_can_be_mapped_by_async_functions() -> None:
    async def double(number: int) -> int:
        return number * 2

    assert_type(parse("7"), Ok[int] | Err[ValueError])
    assert_type(await parse_later("7"), Ok[int] | Err[ValueError])
    await parse_later(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await Ok(2).map_async(double), Ok[int])
    assert_type(TaskStatus.RUNNING.is_terminal, bool)
    parse(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def an_app_can_be_asked() -> None:
    assert_type(app.ping_database().unwrap(), float)
    assert_type(app.get_task_info("0199").unwrap(), TaskInfo | None)
    assert_type(app.get_broker().get_task_info("0199").unwrap(), TaskInfo | None)
    assert_type(app.get_result("0199", timeout_ms=timedelta(seconds=5)), TaskResult[Any, TaskError])
    app.get_worker_state_history("0199", limit="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def the_embedded_database_has_a_name() -> None:
    assert_type(AppConfig(embedded_database="shop").embedded_database, str | None)
    AppConfig(embedded_database=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


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


@app.task
def double(x: int) -> int:
    return 2 * x


@app.task()
def remember(price: Price) -> None: ...


@app.task("double_async", timeout=timedelta(seconds=5), queue="mail", retry_on=(ConnectionError, "BUSY"))
async def double_async(x: int, *, times: int = 1) -> list[Price]:
    if x < 0:
        raise TaskFailure("NEGATIVE", "no such price", data={"x": x})
    return [Price(2 * x)] * times


@app.task
async def ping() -> str | None:
    return None


@app.task
def bare_result(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@app.task
async def bare_async_result(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


async def a_plain_task_is_called_as_the_function_is() -> None:
    assert_type(double(2), int)
    remember(Price(1))
    assert_type(await double_async(2, times=3), list[Price])
    assert_type(await ping(), str | None)
    assert_type(bare_result(2), TaskResult[int, TaskError])
    assert_type(await bare_async_result(2), TaskResult[int, TaskError])
    assert_type(double.send(2).unwrap(), TaskHandle[int])
    assert_type(remember.send(Price(1)).unwrap(), TaskHandle[None])
    assert_type((await double_async.send_async(2)).unwrap(), TaskHandle[list[Price]])
    assert_type(double.with_options(priority=1).send(2).unwrap(), TaskHandle[int])
    double("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    double.send("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    double_async.send(2, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_handle_has_the_type_of_its_task() -> None:
    assert_type(app.handle("id", double), TaskHandle[int])
    assert_type(app.handle("id", double_async), TaskHandle[list[Price]])
    assert_type(app.handle("id", add), TaskHandle[int])
    assert_type(app.handle("id", fetch), TaskHandle[Price])
    assert_type(app.handle("id"), TaskHandle[Any])
    app.handle("id", "double")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def an_option_that_does_not_exist_is_an_error() -> None:
    app.task("x", retries=3)  # type: ignore[call-overload]  # pyright: ignore
    app.task("x", timeout="5")  # type: ignore[call-overload]  # pyright: ignore
    app.task("x", retry_on=(int,))  # type: ignore[arg-type]  # pyright: ignore
    TaskFailure(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_workflow_gives_what_its_output_gives() -> None:
    source = urls.node()()
    prices = map_node(fetch, over=source)
    shown = show.node()(price=from_node(fetch.node()(url="https://example.org")))
    spec = app.workflow("show", [source, prices, shown], output=shown)
    assert_type(spec, WorkflowSpec[str])
    assert_type(spec.start().unwrap(), WorkflowHandle[str])


def a_schedule_leaves_the_task_as_it_is() -> None:
    scheduled = app.schedule(every=timedelta(hours=1), args=(1, 2))(add)
    assert_type(scheduled(2, 3), TaskResult[int, TaskError])
    app.schedule(IntervalSchedule(seconds=timedelta(minutes=5)), overlap="skip")(fetch)
    app.schedule(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.schedule("@daily", every="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.schedule("@daily", overlap="perhaps")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.schedule("@daily")(len)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


async def a_workflow_returns_its_value(spec: WorkflowSpec[str], other: Horsies) -> None:
    handle = spec.start(conn=object()).unwrap()
    assert_type(handle.result(timeout=10), str)
    assert_type(handle.result(timeout=timedelta(seconds=10)), str)
    assert_type(await handle.result_async(), str)
    assert_type((await spec.start_async(conn=object())).unwrap(), WorkflowHandle[str])
    assert_type(start_workflow(spec, other.get_broker(), workflow_id="…").unwrap(), WorkflowHandle[str])
    handle.result(timeout="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(start_workflow(chain(fetch.node("…"), show.node())).unwrap(), WorkflowHandle[str])
    start_workflow(fetch.node("…"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    start_workflow(spec, "…")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sleep_node(timedelta(hours=1))
    sleep_node("1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_node_takes_what_its_task_takes() -> None:
    assert_type(fetch.node("https://example.org"), TaskNode[Price])
    assert_type(fetch.node(node_id="a")("https://example.org", tries=2), TaskNode[Price])
    assert_type(fetch.node(timeout=timedelta(seconds=2))("https://example.org"), TaskNode[Price])
    assert_type(TaskNode(fn=fetch, timeout_ms=timedelta(seconds=2)), TaskNode[Price])
    TaskNode(fn=fetch, timeout="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.node(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    add.node(1, 2, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    add.node()("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    from_node(add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_chain_gives_what_its_last_step_gives() -> None:
    flow = chain(fetch.node("https://example.org"), show.node())
    assert_type(flow, Flow[str])
    assert_type(flow.spec(), WorkflowSpec[str])
    assert_type(flow.start().unwrap(), WorkflowHandle[str])
    assert_type(app.workflow("show", flow), WorkflowSpec[str])
    assert_type(chain(urls.node(), map_node(fetch)), Flow[list[Price]])
    chain()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    chain(fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_group_gives_a_list() -> None:
    both = group(add.node(1, 2), add.node(3, 4))
    assert_type(both, Flow[list[int]])
    assert_type(chain(both, urls.node()), Flow[list[str]])
    assert_type(app.workflow("both", [both], output=both.output), WorkflowSpec[list[int]])
    group(add)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_name_that_does_not_exist_is_no_name() -> None:
    horsies.Horse  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018


def tests_see_types_too() -> None:
    assert_type(drain(app), list[Ran])
    assert_type(drain(app)[0].result, TaskResult[Any, TaskError])
    assert_enqueued(add, kwargs={"x": 2}, count=1)
    assert_enqueued("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def queues_are_names_or_queue_objects() -> None:
    config = horsies.AppConfig(queues=["mail", horsies.Queue("bulk", priority=80, max_concurrency=20)])
    assert_type([queue.max_concurrency for queue in config.all_queues], list[int | None])
    horsies.AppConfig(queues=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    horsies.Queue("bulk", 80)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_setting_with_a_unit_takes_a_timedelta_and_is_read_as_a_number() -> None:
    config = horsies.AppConfig(
        claim_lease_ms=timedelta(seconds=5),
        unknown_task_grace_seconds=90,
        recovery=horsies.RecoveryConfig(check_interval_ms=timedelta(seconds=10)),
        retention=horsies.RetentionConfig(result_retention_hours=timedelta(days=2)),
    )
    assert_type(config.claim_lease_ms, int | None)
    assert_type(config.unknown_task_grace_seconds, int)
    assert_type(config.recovery.check_interval_ms, int)
    horsies.AppConfig(claim_lease_ms="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    horsies.WorkerConfig(drain_seconds=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
