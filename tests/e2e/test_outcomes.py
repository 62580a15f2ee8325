"""Whatever user code or a stored row holds, the task ends with an answer and the worker goes on."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import ContractCode, OperationalErrorCode, TaskResult
from tests.e2e.observing import Db, attempts, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.workers import Workplace

# Deeper than any interpreter's recursion limit.
DEEP_KWARGS = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"
APP = """
from typing import Any

app = Horsies(AppConfig.for_database_url(URL, unknown_task_grace_seconds=1))

class Sealed:
    def __repr__(self):
        return "<sealed>"

class Odd(BaseException):
    pass

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@app.task("fine")
def fine() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("divide")
def divide(x: int) -> TaskResult[float, TaskError]:
    return TaskResult(ok=1 / x)

@app.task("raise_odd")
def raise_odd() -> TaskResult[int, TaskError]:
    raise Odd("out of the ordinary")

@app.task("raise_unspeakable")
def raise_unspeakable() -> TaskResult[int, TaskError]:
    raise Unspeakable

@app.task("leave")
def leave() -> TaskResult[int, TaskError]:
    sys.exit(3)

@app.task("interrupt")
def interrupt() -> TaskResult[int, TaskError]:
    raise KeyboardInterrupt

@app.task("promise_int")
def promise_int() -> TaskResult[int, TaskError]:
    return TaskResult(ok="five")

@app.task("give_sealed")
def give_sealed() -> TaskResult[Any, TaskError]:
    return TaskResult(ok=Sealed())

@app.task("give_sealed_data")
def give_sealed_data() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="SEALED", message="look inside", data=Sealed()))

@app.task("give_deep")
def give_deep() -> TaskResult[Any, TaskError]:
    nested = []
    for _ in range(100_000):
        nested = [nested]
    return TaskResult(ok=nested)

@app.task("echo")
def echo(x: Any) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=x)

@app.task("give_nothing")
def give_nothing() -> TaskResult[int, TaskError]:
    pass

@app.task("give_plain")
def give_plain() -> TaskResult[int, TaskError]:
    return 5

@app.task("nothing_ok")
def nothing_ok() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)

@app.task("recurse")
def recurse() -> TaskResult[int, TaskError]:
    return recurse()

@app.task("print_much")
def print_much() -> TaskResult[int, TaskError]:
    for _ in range(1000):
        print("x" * 1000)
    os.close(0)
    return TaskResult(ok=1)
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1")


@pytest.fixture(autouse=True)
def _the_same_child_goes_on(office: Office) -> Any:
    """None of this costs a process: the child that ran it runs the next task."""
    before = office.tasks.fine.send().unwrap().get(20_000)
    yield
    assert office.tasks.fine.send().unwrap().get(20_000) == before
    assert office.worker.process.poll() is None


def test_an_exception_is_told_with_its_text_and_traceback(office: Office, shared_db: Db) -> None:
    handle = office.tasks.divide.send(0).unwrap()

    error = handle.get(20_000).err_value

    assert error.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert error.message == "ZeroDivisionError: division by zero"
    assert isinstance(error.exception, dict)
    assert error.exception["type"] == "ZeroDivisionError"
    assert "return TaskResult(ok=1 / x)" in error.exception["traceback"]
    stored = row(shared_db, handle)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "UNHANDLED_EXCEPTION")
    (attempt,) = attempts(shared_db, handle)
    assert (attempt["outcome"], attempt["error_message"]) == ("FAILED", error.message)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("raise_odd", "Odd: out of the ordinary"),
        ("raise_unspeakable", "Unspeakable: <unprintable: RuntimeError>"),
        ("leave", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt: "),
    ],
)
def test_every_kind_of_exception_is_the_tasks_own_failure(office: Office, task: str, told: str) -> None:
    error = getattr(office.tasks, task).send().unwrap().get(20_000).err_value

    assert (error.error_code, error.message) == (OperationalErrorCode.UNHANDLED_EXCEPTION, told)


def test_endless_recursion_is_a_failure_like_any_other(office: Office) -> None:
    error = office.tasks.recurse.send().unwrap().get(20_000).err_value

    assert error.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert error.message.startswith("RecursionError")


def test_a_value_of_another_type_than_promised_is_a_mismatch(office: Office) -> None:
    error = office.tasks.promise_int.send().unwrap().get(20_000).err_value

    assert error.error_code is ContractCode.RETURN_TYPE_MISMATCH
    assert "int" in error.message


def test_something_other_than_a_task_result_is_a_mismatch(office: Office) -> None:
    error = office.tasks.give_plain.send().unwrap().get(20_000).err_value

    assert error.error_code is ContractCode.RETURN_TYPE_MISMATCH


def test_returning_nothing_at_all_is_an_error_of_the_task(office: Office) -> None:
    error = office.tasks.give_nothing.send().unwrap().get(20_000).err_value

    assert error.error_code is OperationalErrorCode.TASK_EXCEPTION
    assert "returned None" in error.message


def test_none_as_a_value_is_a_success(office: Office) -> None:
    assert office.tasks.nothing_ok.send().unwrap().get(20_000) == TaskResult(ok=None)


@pytest.mark.parametrize("task", ["give_sealed", "give_sealed_data"])
def test_what_json_cannot_carry_is_a_serialisation_error(office: Office, shared_db: Db, task: str) -> None:
    handle = getattr(office.tasks, task).send().unwrap()

    error = handle.get(20_000).err_value

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "Sealed" in error.message
    assert row(shared_db, handle)["error_code"] == "WORKER_SERIALIZATION_ERROR"


def test_output_and_closed_files_of_a_task_harm_nobody(office: Office) -> None:
    assert office.tasks.print_much.send().unwrap().get(20_000) == TaskResult(ok=1)


def test_a_row_that_names_an_unknown_task_fails_and_the_worker_goes_on(office: Office, shared_db: Db) -> None:
    task_id = _insert(shared_db, "no_such_task", "{}")

    stored = until_status(shared_db, task_id, "FAILED")

    assert stored["error_code"] == "WORKER_RESOLUTION_ERROR"
    error = office.tasks.app.handle(task_id).get(20_000).err_value
    assert error.error_code is OperationalErrorCode.WORKER_RESOLUTION_ERROR
    assert "'no_such_task'" in error.message


@pytest.mark.parametrize(
    "kwargs",
    [
        "{",
        "[]",
        '{"x": "one"}',
        '{"y": 1}',
        "{}",
        None,
        '{"x": 1, "y": 1}',
        '{"x": 1e999}',
        "\u2028",
        DEEP_KWARGS,
    ],
    ids=lambda kwargs: repr(kwargs)[:20],
)
def test_a_row_with_arguments_that_cannot_be_read_fails(
    office: Office, shared_db: Db, kwargs: str | None
) -> None:
    task_id = _insert(shared_db, "divide", kwargs)

    stored = until_status(shared_db, task_id, "FAILED")

    assert stored["error_code"] == "WORKER_SERIALIZATION_ERROR"
    error = office.tasks.app.handle(task_id).get(20_000).err_value
    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR


def test_arguments_of_any_kind_that_are_nested_too_deeply_fail_the_task(
    office: Office, shared_db: Db
) -> None:
    task_id = _insert(shared_db, "echo", DEEP_KWARGS)

    assert until_status(shared_db, task_id, "FAILED")["error_code"] == "WORKER_SERIALIZATION_ERROR"
    error = office.tasks.app.handle(task_id).get(20_000).err_value
    assert "nested too deeply" in error.message


def test_a_result_that_is_nested_too_deeply_is_a_serialisation_error(office: Office) -> None:
    error = office.tasks.give_deep.send().unwrap().get(20_000).err_value

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "levels deep" in error.message


def test_headers_that_are_nested_too_deeply_are_left_out(office: Office, shared_db: Db) -> None:
    task_id = _insert(shared_db, "fine", "{}", f'{{"headers":{DEEP_KWARGS}}}')

    assert until_status(shared_db, task_id, "COMPLETED")["error_code"] is None


@pytest.mark.parametrize(
    "options",
    ["{", "[]", '{"retry_policy": {}}', f'{{"retry_policy":{DEEP_KWARGS}}}'],
    ids=lambda options: options[:20],
)
def test_a_row_with_options_that_cannot_be_read_fails_and_the_worker_goes_on(
    workplace: Workplace, db: Db, options: str
) -> None:
    """Anyone may insert a row, and its options are read by the worker itself: on a failure, to see whether to retry."""
    own = staffed(workplace, APP, "--processes=1")

    task_id = _insert(db, "divide", '{"x": 0}', options)

    assert until_status(db, task_id, "FAILED", seconds=5)["error_code"] == "UNHANDLED_EXCEPTION"
    assert own.tasks.fine.send().unwrap().get(20_000).is_ok()


def test_a_task_sent_from_plain_sql_runs(office: Office, shared_db: Db) -> None:
    sent = shared_db.execute("SELECT horsies_send('divide', '{\"x\": 4}') AS id").fetchone()
    assert sent is not None

    result = office.tasks.app.handle(str(sent["id"]), office.tasks.divide).get(20_000)

    assert result == TaskResult(ok=0.25)


def _insert(db: Db, task_name: str, kwargs: str | None, options: str | None = None) -> str:
    inserted = db.execute(
        "INSERT INTO horsies_tasks (task_name, kwargs, task_options) VALUES (%s, %s, %s) RETURNING id",
        (task_name, kwargs, options),
    ).fetchone()
    assert inserted is not None
    return str(inserted["id"])
