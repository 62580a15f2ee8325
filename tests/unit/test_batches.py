"""A task that runs in batches: what cannot be is rejected at the definition, and the arguments are those of one member."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from horsies import AppConfig, CustomQueueConfig, ErrorCode, Horsies, QueueMode, TaskError, TaskResult
from horsies.enqueue import InvalidSend, SendRequest, TaskSendOptions
from horsies.errors import HorsiesError, MultipleValidationErrors

URL = "postgresql://localhost/none"


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig.for_database_url(URL))


def problems(error: HorsiesError) -> str:
    errors = error.errors if isinstance(error, MultipleValidationErrors) else [error]
    return "; ".join(each.message for each in errors)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "has batch=0"),
        ({"batch": 1_001}, "has batch=1001"),
        ({"batch": True}, "has batch=True"),
        ({"batch": "10"}, "has batch='10'"),
        ({"batch": 10, "linger": -1}, "has linger=-1"),
        ({"batch": 10, "linger": 3_601}, "has linger=3601"),
        ({"batch": 10, "linger": "1s"}, "has linger='1s'"),
        ({"batch": 10, "key": "docs"}, "has batch= and key="),
        ({"batch": 10, "key_concurrency": 1}, "has batch= and key_concurrency="),
        ({"batch": 10, "rate_limit": "1/s"}, "has batch= and rate_limit="),
        ({"linger": 1}, "has a linger and no batch"),
    ],
)
def test_an_option_that_cannot_be_is_rejected_at_the_definition(
    app: Horsies, options: dict[str, Any], problem: str
) -> None:
    def index(docs: list[str]) -> list[int]:
        return []

    with pytest.raises(HorsiesError) as caught:
        app.task("index", **options)(index)

    assert problem in problems(caught.value)


def test_a_function_that_does_not_take_one_list_and_return_one_is_rejected(app: Horsies) -> None:
    def takes_two(docs: list[str], lang: str) -> list[int]:
        return []

    def takes_none() -> list[int]:
        return []

    def takes_a_text(doc: str) -> list[int]:
        return []

    def takes_anything(docs: Any) -> list[int]:
        return []

    def returns_a_number(docs: list[str]) -> int:
        return 1

    functions: list[Any] = [takes_two, takes_none, takes_a_text, takes_anything, returns_a_number]
    for function in functions:
        with pytest.raises(HorsiesError) as caught:
            app.task("index", batch=10)(function)
        assert caught.value.code is ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION
        assert "runs in batches" in caught.value.message


def test_a_limit_of_the_queue_or_the_cluster_is_rejected() -> None:
    queues = [CustomQueueConfig(name="capped"), CustomQueueConfig(name="open", max_concurrency=None)]
    custom = AppConfig.for_database_url(URL, queue_mode=QueueMode.CUSTOM, custom_queues=queues)
    capped = AppConfig.for_database_url(URL, cluster_wide_cap=5)

    def index(docs: list[str]) -> list[int]:
        return []

    with pytest.raises(HorsiesError, match="max_concurrency=5"):
        Horsies(custom).task("index", batch=10, queue_name="capped")(index)
    with pytest.raises(HorsiesError, match="cluster_wide_cap=5"):
        Horsies(capped).task("index", batch=10)(index)
    assert Horsies(custom).task("index", batch=10, queue_name="open")(index).name == "index"


def test_the_arguments_and_the_result_are_those_of_one_member(app: Horsies) -> None:
    @app.task("index", batch=10, linger=timedelta(seconds=2))
    def index(docs: list[str]) -> list[TaskResult[int, TaskError]]:
        return [TaskResult(ok=len(doc)) for doc in docs]

    definition = index.definition
    (row,) = SendRequest(definition, TaskSendOptions(), index.broker).rows([(("one",), {})])

    assert row.kwargs == '{"docs":"one"}'
    assert row.rate_key == "batch=index"
    assert definition.signature.value_type is int
    assert definition.signature.returns_result
    assert definition.linger_seconds == 2.0
    assert index(["a", "bb"]) == [TaskResult(ok=1), TaskResult(ok=2)]


def test_a_send_with_a_list_or_a_key_is_rejected(app: Horsies) -> None:
    @app.task("index", batch=10)
    def index(docs: list[str]) -> list[int]:
        return []

    with pytest.raises(InvalidSend, match="docs"):
        SendRequest(index.definition, TaskSendOptions(), index.broker).rows([((["one"],), {})])
    with pytest.raises(InvalidSend, match="runs in batches, which have no keys"):
        SendRequest(index.definition, TaskSendOptions(key="acme"), index.broker).rows([(("one",), {})])
