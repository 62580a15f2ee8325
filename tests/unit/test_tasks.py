"""A task is written as a plain function or with results, and everything wrong is said where it is defined."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest

from horsies import (
    AppConfig,
    ContractCode,
    CurrentTask,
    ErrorCode,
    Horsies,
    MultipleValidationErrors,
    OperationalErrorCode,
    RetryPolicy,
    TaskError,
    TaskFailure,
    TaskResult,
    TaskSendErrorCode,
)
from horsies.errors import HorsiesError, TaskDefinitionError
from horsies.task import AsyncPlainTask, AsyncTask, PlainTask, Task
from horsies.task_context import Snooze


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://nobody@localhost:1/none"))


def defined(app: Horsies, **options: Any) -> Any:
    @app.task("demo", **options)
    def demo() -> None: ...

    return demo


def refusal(app: Horsies, **options: Any) -> TaskDefinitionError:
    with pytest.raises(TaskDefinitionError) as caught:
        defined(app, **options)
    assert caught.value.code is ErrorCode.TASK_INVALID_OPTIONS
    assert app.list_tasks() == []
    return caught.value


# --- the four kinds, and their names


def test_a_task_needs_neither_a_name_nor_parentheses(app: Horsies) -> None:
    @app.task
    def bare(x: int) -> int:
        return x + 1

    @app.task()
    async def empty(x: int) -> str:
        return str(x)

    @app.task(timeout=5)
    def result(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    @app.task
    async def async_result(x: int) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    kinds = {
        task.__name__: (type(task), task.definition.signature.returns_result) for task in app.tasks.values()
    }
    assert kinds == {
        "bare": (PlainTask, False),
        "empty": (AsyncPlainTask, False),
        "result": (Task, True),
        "async_result": (AsyncTask, True),
    }
    values = {task.__name__: task.gives() for task in app.tasks.values()}
    assert values == {"bare": int, "empty": str, "result": int, "async_result": type(None)}
    assert bare(1) == 2
    assert asyncio.run(empty(1)) == "1"


def module_level(x: int) -> None: ...


def test_the_default_name_is_module_and_function(app: Horsies) -> None:
    def inner() -> None: ...

    assert app.task(module_level).name == "tests.unit.test_tasks.module_level"
    assert app.task(inner).name == "tests.unit.test_tasks.test_the_default_name_is_module_and_function.inner"
    assert app.task("given")(module_level).name == "given"


PROGRAM = """
from horsies import Horsies, RetryPolicy

app = Horsies()

class Busy(Exception):
    pass

@app.task(retry_on=Busy)
def work() -> None: ...

if __name__ == "__main__":
    print(work.name, *work.definition.retry_policy.auto_retry_for)
"""


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(["shop/jobs.py"], "jobs.work jobs.Busy"), (["-m", "shop.jobs"], "shop.jobs.work shop.jobs.Busy")],
    ids=["a file", "a module"],
)
def test_a_program_has_the_names_under_which_workers_import_it(
    tmp_path: Path, arguments: list[str], printed: str
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(PROGRAM)

    told = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == printed


def test_two_functions_of_one_name_are_refused(app: Horsies) -> None:
    def make(number: int) -> Callable[[], int]:
        if number == 1:

            def same() -> int:
                return 1
        else:

            def same() -> int:
                return 2

        return same

    app.task(make(1))
    with pytest.raises(HorsiesError, match="is defined twice"):
        app.task(make(2))


@pytest.mark.parametrize("given", [3, b"add", ["add"]])
def test_what_is_neither_a_name_nor_a_function_is_refused(app: Horsies, given: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="where the task's name belongs") as caught:
        app.task(given)

    assert repr(given) in caught.value.message


def test_a_class_or_a_callable_object_is_no_task(app: Horsies) -> None:
    class Callable:
        def __call__(self) -> None: ...

    for given in (Callable, Callable()):
        with pytest.raises(HorsiesError) as caught:
            app.task(given)
        assert "not a plain function" in str(caught.value)


def test_a_handle_is_made_with_the_task_itself(app: Horsies) -> None:
    with pytest.raises(TaskDefinitionError, match=r"app\.handle was given 'demo' as the task"):
        app.handle("0" * 32, "demo")  # type: ignore[call-overload]

    assert app.handle("0" * 32, defined(app)).task_id == app.handle("0" * 32).task_id


# --- calls in this process


def test_calling_a_plain_task_runs_the_function_as_it_is(app: Horsies) -> None:
    @app.task
    def wrong(x: int) -> int:
        if x < 0:
            raise TaskFailure("NEGATIVE", "no")
        return "not checked here"  # type: ignore[return-value]

    assert wrong(1) == "not checked here"
    with pytest.raises(TaskFailure, match="NEGATIVE: no"):
        wrong(-1)


def returned_and_raised(app: Horsies) -> dict[str, Callable[[str], TaskResult[int, TaskError]]]:
    def behave(how: str) -> Any:
        match how:
            case "raise":
                raise ConnectionResetError("hung up")
            case "raise unmapped":
                raise KeyError("x")
            case "fail":
                raise TaskFailure("NO_STOCK", "sold out", data={"left": 0})
            case "none":
                return None
            case "mistyped":
                return TaskResult(ok="five")
            case "bare":
                return 5
            case "err":
                return TaskResult(err=TaskError(error_code="OWN", data={1, 2}))
            case _:
                return TaskResult(ok=5)

    @app.task("sync")
    def sync(how: str) -> TaskResult[int, TaskError]:
        return behave(how)

    @app.task("async")
    async def asynchronous(how: str) -> TaskResult[int, TaskError]:
        return behave(how)

    return {"sync": sync, "async": lambda how: asyncio.run(asynchronous(how))}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("raise", "NETWORK"),
        ("raise unmapped", OperationalErrorCode.UNHANDLED_EXCEPTION),
        ("fail", "NO_STOCK"),
        ("none", OperationalErrorCode.TASK_EXCEPTION),
        ("mistyped", ContractCode.RETURN_TYPE_MISMATCH),
        ("bare", ContractCode.RETURN_TYPE_MISMATCH),
        ("err", "OWN"),
    ],
)
def test_calling_a_result_task_gives_the_error_that_a_worker_would_store(
    kind: str, how: str, code: str
) -> None:
    url = "postgresql://nobody@localhost:1/none"
    app = Horsies(AppConfig.for_database_url(url, exception_mapper={OSError: "NETWORK"}))

    assert returned_and_raised(app)[kind](how).err_value.error_code == code
    assert returned_and_raised(app)[kind]("well") == TaskResult(ok=5)


def test_an_error_in_this_process_holds_the_exception_itself(app: Horsies) -> None:
    error = returned_and_raised(app)["sync"]("raise").err_value
    stated = returned_and_raised(app)["sync"]("fail").err_value

    assert isinstance(error.exception, ConnectionResetError)
    assert error.message == "ConnectionResetError: hung up"
    assert (stated.message, stated.data) == ("sold out", {"left": 0})
    assert isinstance(stated.exception, TaskFailure)


def test_a_call_with_wrong_arguments_is_the_callers_mistake(app: Horsies) -> None:
    @app.task
    def one(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=len(x))  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        one()  # type: ignore[call-arg]
    assert one(3).err_value.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_ends_a_program_is_not_caught_in_this_process(app: Horsies, error: type[BaseException]) -> None:
    @app.task
    def leave() -> TaskResult[int, TaskError]:
        raise error

    with pytest.raises(error):
        leave()


# --- options


def test_a_time_limit_is_given_in_seconds_or_as_a_timedelta(app: Horsies) -> None:
    given: list[dict[str, Any]] = [
        {"timeout": 1.5},
        {"timeout": timedelta(seconds=1.5)},
        {"timeout_ms": 1_500},
        {"timeout_ms": timedelta(seconds=1.5)},
    ]

    assert {defined(app_, **each).definition.timeout_ms for each in given for app_ in [Horsies()]} == {1_500}


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0.01},
        {"timeout": "5"},
        {"timeout": True},
        {"timeout": float("nan")},
        {"timeout": timedelta(days=400)},
        {"timeout_ms": 99},
        {"timeout_ms": 1.5},
        {"timeout_ms": timedelta(0)},
    ],
    ids=str,
)
def test_a_time_limit_out_of_range_is_refused_with_its_value(app: Horsies, option: dict[str, Any]) -> None:
    ((name, value),) = option.items()

    error = refusal(app, **option)

    assert f"{name}={value!r}" in error.message
    assert "timedelta" in str(error.help_text)


@pytest.mark.parametrize(
    "both", [{"timeout": 1, "timeout_ms": 1_000}, {"queue": "default", "queue_name": "default"}], ids=str
)
def test_an_option_is_given_once(app: Horsies, both: dict[str, Any]) -> None:
    with pytest.raises(HorsiesError) as caught:
        defined(app, **both)

    one, other = both
    errors = caught.value.errors if isinstance(caught.value, MultipleValidationErrors) else [caught.value]
    assert f"task 'demo' has both {one}= and {other}=" in [error.message for error in errors]


def test_a_queue_may_be_named_shortly() -> None:
    from horsies import CustomQueueConfig, QueueMode

    app = Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail")]))

    assert defined(app, queue="mail").definition.queue.name == "mail"


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("retries", "retry_policy"),
        ("autoretry_for", "retry_on"),
        ("time_limit", "timeout"),
        ("timout", "timeout"),
        ("prioritty", "priority"),
        ("name", "task_name"),
        ("idempotant", "idempotent"),
    ],
)
def test_an_unknown_option_suggests_the_one_that_was_meant(app: Horsies, option: str, meant: str) -> None:
    error = refusal(app, **{option: 1})

    assert error.message == f"task 'demo' has the unknown option {option!r}"
    assert str(error.help_text).startswith(f"did you mean {meant!r}?")


def test_an_option_that_resembles_none_lists_them_all(app: Horsies) -> None:
    help_text = str(refusal(app, zzz=1).help_text)

    assert help_text.startswith("The options are: task_name, queue_name, ")
    assert "retry_on" in help_text


@pytest.mark.parametrize(
    ("option", "meant"),
    [("queue", "queue_name"), ("prio", "priority"), ("expires", "good_until"), ("session", "conn")],
)
def test_an_unknown_option_of_a_send_suggests_the_one_that_was_meant(
    app: Horsies, option: str, meant: str
) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        defined(app).with_options(**{option: 1})

    assert caught.value.message == f"a send of task 'demo' has the unknown option {option!r}"
    assert str(caught.value.help_text).startswith(f"did you mean {meant!r}?")


# --- retries


def test_retry_on_alone_has_the_documented_policy(app: Horsies) -> None:
    policy = defined(app, retry_on=(ConnectionError, "BUSY")).definition.retry_policy

    assert policy == RetryPolicy.exponential(
        10, max_retries=5, auto_retry_for=["builtins.ConnectionError", "BUSY"]
    )


def test_retry_on_adds_to_the_policy(app: Horsies) -> None:
    policy = RetryPolicy.fixed([60], auto_retry_for=["BUSY"])

    assert defined(
        app, retry_on=TimeoutError, retry_policy=policy
    ).definition.retry_policy == RetryPolicy.fixed([60], auto_retry_for=["BUSY", TimeoutError])


@pytest.mark.parametrize(
    "retry_on", [(), [], (int,), ["ConnectionError"], (ConnectionError(),), (None,)], ids=repr
)
def test_what_cannot_be_retried_is_refused(app: Horsies, retry_on: Any) -> None:
    error = refusal(app, retry_on=retry_on)

    assert "retry_on" in error.message
    assert "retry_on=(ConnectionError, TimeoutError)" in str(error.help_text)


def test_a_policy_without_errors_needs_retry_on(app: Horsies) -> None:
    policy = RetryPolicy.fixed([60])

    assert "lists no errors" in refusal(app, retry_policy=policy).message
    assert defined(app, retry_policy=policy, retry_on=OSError).definition.max_retries == 1


def test_a_node_with_a_policy_of_its_own_keeps_the_errors_of_its_task(app: Horsies) -> None:
    without = defined(Horsies(app.config))
    with_errors = defined(app, retry_on=OSError)
    policy = RetryPolicy.fixed([60])

    app.workflow("good", [with_errors.node(retry_policy=policy)()], definition_key="good.v1")
    with pytest.raises(HorsiesError, match="lists no errors, and its task retries none"):
        app.workflow("bad", [without.node(retry_policy=policy)()], definition_key="bad.v1")


# --- TaskFailure


@pytest.mark.parametrize("code", ["card declined", "CardDeclined", "", None, 7, "TASK_TIMEOUT"])
def test_a_failure_needs_a_code_that_policies_can_list(code: Any) -> None:
    with pytest.raises(ValueError, match="TaskFailure") as caught:
        TaskFailure(code, "the bank said no")

    assert repr(code) in str(caught.value)


def test_a_failure_may_have_a_code_of_the_library() -> None:
    assert TaskFailure(OperationalErrorCode.BROKER_ERROR).code is OperationalErrorCode.BROKER_ERROR


def test_a_failure_can_cross_a_process_pool() -> None:
    copy = pickle.loads(pickle.dumps(TaskFailure("NO_STOCK", "sold out", data={"left": 0})))

    assert (copy.code, copy.message, copy.data) == ("NO_STOCK", "sold out", {"left": 0})
    assert str(copy) == "NO_STOCK: sold out"
    assert str(TaskFailure("NO_STOCK")) == "NO_STOCK"


def test_a_failure_in_a_task_group_is_found(app: Horsies) -> None:
    async def fail() -> None:
        raise TaskFailure("NO_STOCK", "sold out")

    @app.task
    async def grouped() -> TaskResult[int, TaskError]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return TaskResult(ok=1)

    assert asyncio.run(grouped()).err_value.error_code == "NO_STOCK"


def test_a_subclass_without_a_code_is_an_exception_like_any_other(app: Horsies) -> None:
    class Careless(TaskFailure):
        def __init__(self) -> None: ...

    @app.task
    def careless() -> TaskResult[int, TaskError]:
        raise Careless

    assert careless().err_value.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION


# --- arguments


class Settings(TypedDict, total=False):
    retries: int


def test_an_extra_key_is_named_by_the_send(app: Horsies) -> None:
    @app.task("save")
    def save(settings: Settings) -> None: ...

    error = save.send({"retries": 1, "colour": "red"}).unwrap_err()  # type: ignore[typeddict-unknown-key]

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert error.message == "argument 'settings' of task 'save' has the extra key 'colour'; pass Settings"


# --- snoozing


class Channel:
    """What a running task is connected to; it is not used by a snooze."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def running() -> CurrentTask:
    return CurrentTask("id", "demo", 1, 0, "default", None, Channel())  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [90, 90.0, timedelta(minutes=1.5)])
def test_a_snooze_is_given_in_seconds_or_as_a_timedelta(given: Any) -> None:
    with pytest.raises(Snooze) as raised:
        running().snooze(given)

    assert raised.value.seconds == 90


@pytest.mark.parametrize("given", [-1, "60", None, float("nan"), timedelta(days=400)])
def test_a_snooze_that_makes_no_sense_is_refused_with_its_value(given: Any) -> None:
    with pytest.raises(ValueError, match="use 0 to a year, in seconds or as a timedelta") as caught:
        running().snooze(given)

    assert repr(given) in str(caught.value)
