"""The key of a task: options that cannot be are rejected at the definition, keys that cannot be at the send."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import AppConfig, ErrorCode, Horsies, MultipleValidationErrors, is_err
from horsies.enqueue import InvalidSend, SendRequest, TaskSendOptions
from horsies.errors import HorsiesError, TaskDefinitionError
from horsies.keys import MAX_KEY_CHARACTERS, key_of_lane, key_text, lane_of_key
from horsies.task import BaseTask


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://localhost/none"))


def define(app: Horsies, **options: Any) -> BaseTask[..., Any]:
    @app.task("serve", **options)
    def serve(customer: str | int | None = "acme", size: float = 1.0) -> int:
        return 1

    return serve


def by_size(customer: str, size: float = 1.0) -> str:
    return f"{customer}/{size:.0f}"


def returning(value: Any) -> Any:
    def function(*_args: Any, **_kwargs: Any) -> Any:
        return value

    return function


def twice(customer: str, size: float) -> float:
    return size * 2


def columns(
    task: BaseTask[..., Any], *args: Any, options: TaskSendOptions | None = None, **kwargs: Any
) -> Any:
    request = SendRequest(task.definition, options or TaskSendOptions(), task.broker)
    (row,) = request.rows([(args, kwargs)])
    return row.rate_key, row.cost


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "tenant"}, "has key='tenant', and no parameter of that name"),
        ({"key": 7}, "has key=7"),
        ({"key_concurrency": 0}, "has key_concurrency=0"),
        ({"key_concurrency": -1}, "has key_concurrency=-1"),
        ({"key_concurrency": 1.5}, "has key_concurrency=1.5"),
        ({"key_concurrency": True}, "has key_concurrency=True"),
        ({"key_rate": "fast"}, "has key_rate='fast'"),
        ({"key": "customer", "cost": "size"}, "has a cost and no key_rate"),
        ({"key": "customer", "cost": "weight", "key_rate": "1/s"}, "no parameter of that name"),
    ],
)
def test_an_option_that_cannot_be_is_rejected_at_the_definition(
    app: Horsies, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        define(app, **options)
    assert problem in caught.value.message
    assert caught.value.code == ErrorCode.TASK_INVALID_OPTIONS
    assert caught.value.help_text


def test_a_rate_cannot_have_a_name_like_a_key(app: Horsies) -> None:
    with pytest.raises(TaskDefinitionError, match="begins with 'key='"):

        @app.task("key=serve", rate_limit="1/s")
        def serve() -> int:  # pyright: ignore[reportUnusedFunction]
            return 1


def test_all_errors_of_a_definition_are_raised_together(app: Horsies) -> None:
    with pytest.raises(MultipleValidationErrors):
        define(app, key="tenant", key_concurrency=0)


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "expected"),
    [
        ("customer", ("a",), {}, "key=a"),
        ("customer", (), {"customer": "b"}, "key=b"),
        ("customer", (), {}, "key=acme"),
        ("customer", (7,), {}, "key=7"),
        (by_size, ("a", 3.0), {}, "key=a/3"),
        (returning(12), ("a",), {}, "key=12"),
    ],
)
def test_the_key_is_an_argument_or_what_a_function_of_the_arguments_returns(
    app: Horsies, key: Any, args: Any, kwargs: Any, expected: str
) -> None:
    assert columns(define(app, key=key), *args, **kwargs) == (expected, None)


def test_the_key_of_a_send_replaces_that_of_the_task(app: Horsies) -> None:
    options = TaskSendOptions(key="vip")
    assert columns(define(app, key="customer"), "a", options=options)[0] == "key=vip"
    assert columns(define(app), "a", options=TaskSendOptions(key=5))[0] == "key=5"
    assert columns(define(app), "a")[0] == ""


def test_a_task_with_a_key_and_a_rate_is_stored_under_its_key(app: Horsies) -> None:
    assert columns(define(app, key="customer", rate_limit="1/s"), "a")[0] == "key=a"


def raises(customer: object, size: float = 1.0) -> str:
    raise LookupError("no such customer")


@pytest.mark.parametrize(
    ("key", "customer", "problem"),
    [
        ("customer", None, "is None, of type NoneType; a key is a text or a whole number"),
        ("customer", "", "a key has 1 to 200 characters"),
        ("customer", "x" * 201, "has 201 characters"),
        (returning(1.5), "a", "is 1.5, of type float"),
        (returning(True), "a", "is True, of type bool"),
        (returning("a\0b"), "a", "any text but NUL and"),
        (returning("\ud800"), "a", "lone surrogates"),
        (raises, "a", "raised LookupError: no such customer"),
    ],
)
def test_a_key_that_cannot_be_fails_the_send(app: Horsies, key: Any, customer: Any, problem: str) -> None:
    task = define(app, key=key)
    with pytest.raises(InvalidSend) as caught:
        columns(task, customer)
    assert problem in str(caught.value)
    assert "'serve'" in str(caught.value)
    sent = task.send(customer)
    assert is_err(sent)
    assert sent.err_value.code == "VALIDATION_FAILED"


def test_a_key_of_a_send_that_cannot_be_fails_it(app: Horsies) -> None:
    for key in ("", "x" * 201, 1.5, True):
        with pytest.raises(InvalidSend, match="key of task 'serve'"):
            columns(define(app), "a", options=TaskSendOptions(key=key))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("cost", "size", "expected"), [("size", 2.5, 2.5), (twice, 2.0, 4.0)])
def test_the_cost_is_stored_with_the_task(app: Horsies, cost: Any, size: float, expected: float) -> None:
    task = define(app, key="customer", key_rate="10/m", cost=cost)
    assert columns(task, "a", size) == ("key=a", expected)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_cannot_be_fails_the_send(app: Horsies, cost: float) -> None:
    task = define(app, key="customer", key_rate="10/m", cost=returning(cost))
    with pytest.raises(InvalidSend, match=r"cost of task 'serve' is .*; a cost is a number from 0"):
        columns(task, "a", 1.0)


def test_a_redacted_key_is_not_quoted() -> None:
    app = Horsies(AppConfig.for_database_url("postgresql://localhost/none", redact=["customer"]))
    with pytest.raises(InvalidSend) as caught:
        columns(define(app, key="customer"), "secret" * 50)
    assert "secret" not in str(caught.value)


def test_a_key_and_its_lane() -> None:
    assert key_of_lane(lane_of_key("a")) == "a"
    assert key_text("x" * MAX_KEY_CHARACTERS) == "x" * MAX_KEY_CHARACTERS
    assert key_of_lane(None) is None


def test_a_key_on_an_unknown_queue_is_rejected_at_the_definition_or_the_send(app: Horsies) -> None:
    with pytest.raises(HorsiesError, match="queue"):
        define(app, key="customer", queue="nowhere")

    sent = define(app, key="customer").with_options(queue_name="nowhere").send("a")

    assert is_err(sent)
    assert "queue 'nowhere' is not configured" in sent.err_value.message
