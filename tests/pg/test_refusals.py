"""What is wrong with a send is said as a value, and no row exists."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import (
    Horsies,
    PayloadPolicy,
    TaskError,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendResult,
)
from horsies.discovery import load_app
from horsies.status import WorkflowStartErrorCode
from tests.pg.conftest import Add, define_add, new_apps

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def database_url(quiet_url: str) -> str:
    return quiet_url


@pytest.fixture(scope="module")
def make_app(database_url: str) -> Iterator[Callable[..., Horsies]]:
    yield from new_apps(database_url)


@pytest.fixture(scope="module")
def watcher(database_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def nothing_stored(watcher: psycopg.Connection[tuple[Any, ...]]) -> Iterator[None]:
    yield
    for table in (b"horsies_tasks", b"horsies_idempotency_keys"):
        assert watcher.execute(b"SELECT * FROM " + table).fetchall() == []


pytestmark = pytest.mark.usefixtures("nothing_stored")


def refusal(result: TaskSendResult[Any]) -> TaskSendError:
    error = result.unwrap_err()
    assert not error.retryable
    assert error.payload is None
    return error


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((), {}, "x"),
        ((1,), {"z": 1}, "z"),
        ((1, 2, 3), {}, "positional"),
        ((1,), {"x": 1}, "x"),
        (("one",), {}, "x"),
        ((1.5,), {}, "x"),
        ((None,), {}, "x"),
        ((True,), {}, "x"),
        ((object(),), {}, "x"),
    ],
)
def test_a_call_that_does_not_fit_the_signature_is_refused(
    add: Add, args: tuple[Any, ...], kwargs: dict[str, Any], names: str
) -> None:
    for result in (add.send(*args, **kwargs), add.schedule(5, *args, **kwargs)):
        error = refusal(result)
        assert error.code is TaskSendErrorCode.VALIDATION_FAILED
        assert names in error.message


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        "nul\0",
        "\ud800",
        {"nested": ["\udfff"]},
        {"nul\0": 1},
        object(),
        {1, 2},
        b"\xff",
    ],
)
def test_a_value_that_json_or_the_database_cannot_carry_is_refused(app: Horsies, value: Any) -> None:
    @app.task("keep")
    def keep(anything: Any) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    error = refusal(keep.send(value))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "anything" in error.message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 0),
        ("priority", 101),
        ("priority", True),
        ("priority", "1"),
        ("priority", 1.0),
        ("timeout_ms", 99),
        ("timeout_ms", True),
        ("timeout_ms", 2**31),
        ("good_until", datetime(2030, 1, 1)),
        ("good_until", "2030-01-01T00:00:00Z"),
        ("good_until", 1.5),
        ("eta", datetime(2030, 1, 1)),
        ("eta", 5),
        ("delay_seconds", -1),
        ("delay_seconds", True),
        ("delay_seconds", math.nan),
        ("delay_seconds", math.inf),
        ("delay_seconds", 1e300),
        ("delay_seconds", 10**400),
        ("delay_seconds", "5"),
        ("queue_name", "nowhere"),
        ("queue_name", ""),
        ("idempotency_key", ""),
        ("idempotency_key", "k" * 501),
        ("idempotency_key", "nul\0"),
        ("idempotency_key", "\ud800"),
        ("idempotency_key", 7),
        ("tags", "one"),
        ("tags", [1]),
        ("tags", ["nul\0"]),
        ("tags", ["\ud800"]),
        ("tags", 5),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(add: Add, option: str, value: Any) -> None:
    error = refusal(add.with_options(**{option: value}).send(1))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert option.removesuffix("_name") in error.message


@pytest.mark.parametrize("delay", [-1, True, False, 1.5, "5", None, 10**12, 10**400])
def test_a_delay_is_a_whole_number_of_seconds(add: Add, delay: Any) -> None:
    error = refusal(add.schedule(delay, 1))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "delay_seconds" in error.message


def test_a_task_is_due_at_one_time_only(add: Add) -> None:
    at = add.with_options(eta=NOW + timedelta(hours=1))

    assert "eta" in refusal(at.schedule(5, 1)).message
    assert "eta" in refusal(add.with_options(eta=NOW, delay_seconds=5).send(1)).message


def test_arguments_over_the_limit_are_refused_with_both_sizes(make_app: Callable[..., Horsies]) -> None:
    app = make_app(payload=PayloadPolicy(warn_bytes=100, reject_bytes=1_000))

    @app.task("keep")
    def keep(text: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    error = refusal(keep.send("x" * 2_000))

    assert error.code is TaskSendErrorCode.PAYLOAD_TOO_LARGE
    assert "1,000" in error.message
    assert "2,0" in error.message


@pytest.mark.parametrize("call", [5, "ab", [1], None])
def test_send_many_says_which_call_is_none(add: Add, call: Any) -> None:
    error = refusal(add.send_many([(1,), call]))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert repr(call) in error.message


def test_one_idempotency_key_cannot_stand_for_many_calls(add: Add) -> None:
    error = refusal(add.with_options(idempotency_key="k").send_many([(1,), (2,)]))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED


@pytest.mark.parametrize("answer", [ZeroDivisionError, "nul\0", "\ud800", "", "k" * 501])
def test_a_key_function_that_gives_no_usable_key_is_refused(app: Horsies, answer: Any) -> None:
    def key(x: int, y: int = 0) -> str:
        return answer if isinstance(answer, str) else str(x // y)

    error = refusal(define_add(app, unique=key).send(1))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "unique" in error.message


def test_a_unique_task_takes_no_idempotency_key(app: Horsies) -> None:
    add = define_add(app, unique="args")

    error = refusal(add.with_options(idempotency_key="k").send(1))

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "idempotency_key" in error.message


def test_suppressed_sends_store_nothing_until_they_are_allowed_again(app: Horsies, add: Add) -> None:
    app.suppress_sends(True)

    for result in (
        add.send(1),
        add.schedule(5, 1),
        add.send_many([(1,)]),
        add.with_options(priority=1).send(1),
    ):
        assert refusal(result).code is TaskSendErrorCode.SEND_SUPPRESSED

    app.suppress_sends(False)
    assert not app.are_sends_suppressed()
    assert add.send("not a number").unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED  # pyright: ignore


def test_a_module_that_sends_while_it_defines_its_app_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    file = tmp_path / "hasty.py"
    file.write_text(
        """
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("ping")
def ping() -> TaskResult[str, TaskError]:
    return TaskResult(ok="pong")

app.sent = ping.send()
"""
    )

    loaded: Any = load_app(f"{file}:app")

    assert refusal(loaded.sent).code is TaskSendErrorCode.SEND_SUPPRESSED


def test_a_module_that_starts_a_workflow_while_it_defines_its_app_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    file = tmp_path / "hasty_flow.py"
    file.write_text(
        """
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("ping")
def ping() -> TaskResult[str, TaskError]:
    return TaskResult(ok="pong")

app.started = app.workflow("pings", [ping.node()()], definition_key="pings").start()
"""
    )

    loaded: Any = load_app(f"{file}:app")

    error = loaded.started.unwrap_err()
    assert error.code is WorkflowStartErrorCode.VALIDATION_FAILED
    assert "starts are suppressed while modules are imported" in error.message


def test_a_database_that_cannot_be_reached_is_an_error_worth_another_try(
    make_app: Callable[..., Horsies],
) -> None:
    add = define_add(make_app(url="postgresql://nobody:s3cret@127.0.0.1:1/none"))

    error = add.send(1).unwrap_err()

    assert error.code is TaskSendErrorCode.ENQUEUE_FAILED
    assert error.retryable
    assert error.payload is not None
    assert "s3cret" not in f"{error!r}{error.message}"


def test_a_login_that_is_refused_is_not_worth_another_try(
    make_app: Callable[..., Horsies], database_url: str
) -> None:
    user = urlsplit(database_url).username
    wrong = database_url.replace(f"//{user}:", f"//{user}:wr0ng", 1)
    add = define_add(make_app(url=wrong))

    error = add.send(1).unwrap_err()

    assert error.code is TaskSendErrorCode.ENQUEUE_FAILED
    assert not error.retryable
    assert "wr0ng" not in f"{error!r}{error.message}"
