"""A task may be a plain function: it returns its value, and raises to fail."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import ContractCode, OperationalErrorCode, TaskResult
from tests.e2e.observing import Db, row
from tests.e2e.office import Office, staffed
from tests.support.workers import Workplace

APP = """
from dataclasses import dataclass
from typing import Any, TypedDict

app = Horsies(AppConfig.for_database_url(URL))

@dataclass
class Price:
    cents: int

class Settings(TypedDict, total=False):
    retries: int

def fail_below(depth):
    if depth:
        fail_below(depth - 1)
    raise TaskFailure("CARD_DECLINED", "the bank said no", data={"card": 17})

@app.task("add")
def add(x: int, y: int) -> int:
    return x + y

@app.task("nothing")
def nothing() -> None:
    pass

@app.task("price")
async def price(cents: int) -> Price:
    return Price(cents)

@app.task("maybe")
def maybe(x: int | None) -> int | None:
    return x

@app.task("mistyped")
def mistyped() -> int:
    return "five"

@app.task("mistyped_result")
def mistyped_result() -> TaskResult[int, TaskError]:
    return TaskResult(ok="five")

@app.task("missing")
async def missing() -> int:
    pass

@app.task("something")
def something() -> None:
    return 5

@app.task("wrapped")
def wrapped() -> Any:
    return TaskResult(err=TaskError(error_code="HIDDEN"))

@app.task("extra")
def extra() -> Settings:
    return {"retries": 1, "colour": "red"}

@app.task("raising")
def raising() -> int:
    raise KeyError("x")

@app.task("plain")
def plain() -> int:
    fail_below(3)

@app.task("plain_async")
async def plain_async() -> int:
    await asyncio.sleep(0)
    fail_below(3)

@app.task("result")
def result() -> TaskResult[int, TaskError]:
    fail_below(3)

@app.task("result_async")
async def result_async() -> TaskResult[int, TaskError]:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(fail_below, 3))

@app.task("chained", exception_mapper={Exception: "ANY"})
def chained() -> int:
    try:
        {}["colour"]
    except KeyError as error:
        raise TaskFailure("CARD_DECLINED", "the bank said no", data={"card": 17}) from error

@app.task("sealed")
def sealed() -> int:
    raise TaskFailure("SEALED", "look inside", data=object())

@app.task("misspelt")
def misspelt() -> int:
    raise TaskFailure("card declined")
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes", "2")


def error_of(office: Office, task: str) -> Any:
    return getattr(office.tasks, task).send().unwrap().get(20_000).err_value


def test_a_plain_task_stores_the_value_that_it_returns(office: Office, shared_db: Db) -> None:
    tasks = office.tasks

    added = tasks.add.send(2, 3).unwrap()

    assert added.get(20_000) == TaskResult(ok=5)
    assert row(shared_db, added)["result"] == '{"ok":5}'
    assert tasks.nothing.send().unwrap().get(20_000) == TaskResult(ok=None)
    assert tasks.price.send(5).unwrap().get(20_000) == TaskResult(ok=tasks.Price(5))
    assert tasks.maybe.send(None).unwrap().get(20_000) == TaskResult(ok=None)
    assert tasks.app.handle(added.task_id, tasks.add).get(20_000).unwrap() == 5


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("mistyped", "is str: expected `int`, got `str`; the task promises int"),
        ("mistyped_result", "is str: expected `int`, got `str`; the task promises int"),
        ("missing", "the task promises int"),
        ("something", "the task promises None"),
        ("wrapped", "is a TaskResult; the task promises Any"),
        ("extra", "has the extra key 'colour'; the task promises Settings"),
    ],
)
def test_a_value_of_another_type_fails_the_task(office: Office, task: str, words: str) -> None:
    error = error_of(office, task)

    assert error.error_code is ContractCode.RETURN_TYPE_MISMATCH
    assert words in error.message


def test_an_exception_fails_a_plain_task(office: Office) -> None:
    error = error_of(office, "raising")

    assert (error.error_code, error.message) == (OperationalErrorCode.UNHANDLED_EXCEPTION, "KeyError: 'x'")


@pytest.mark.parametrize("task", ["plain", "plain_async", "result", "result_async", "chained"])
def test_a_failure_at_any_depth_is_the_error_of_the_task(office: Office, task: str) -> None:
    error = error_of(office, task)

    assert (error.error_code, error.message, error.data) == (
        "CARD_DECLINED",
        "the bank said no",
        {"card": 17},
    )
    traceback = error.exception["traceback"]
    assert "horsies.errors.TaskFailure: CARD_DECLINED: the bank said no" in traceback
    assert ("KeyError: 'colour'" if task == "chained" else "in fail_below") in traceback
    assert "horsies/executor" not in traceback, "the first frame is the user's"


def test_data_without_a_json_form_is_told_with_the_code_that_it_belongs_to(office: Office) -> None:
    error = error_of(office, "sealed")

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "SEALED" in error.message


def test_an_invalid_code_is_told_where_the_failure_is_made(office: Office) -> None:
    error = error_of(office, "misspelt")

    assert error.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert "the code of a TaskFailure is 'card declined'" in error.message
    assert 'raise TaskFailure("card declined")' in error.exception["traceback"]
