"""A failed run is repeated when its policy says so, and its history is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import OperationalErrorCode, RetryPolicy, TaskHandle, TaskResult
from tests.e2e.observing import Db, attempts, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# The poll is so long that only a timer can start a retry in time.
APP = """
app = Horsies(AppConfig.for_database_url(
    URL,
    exception_mapper={ConnectionError: "NETWORK"},
    resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000),
))

class FlakyError(Exception):
    pass

class VeryFlakyError(FlakyError):
    pass

def again(*codes, intervals=(1,)):
    return RetryPolicy.fixed(list(intervals), auto_retry_for=list(codes), jitter=False)

def tries(path):
    with open(path, "a") as file:
        file.write(f"{time.time()}\\n")
    return len(Path(path).read_text().splitlines())

def raise_once(path, error):
    if tries(path) == 1:
        raise error
    return TaskResult(ok=len(Path(path).read_text().splitlines()))

@app.task("any", retry_policy=again("*"))
def any_error(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("any_returned", retry_policy=again("*"))
def any_returned(path: str) -> TaskResult[int, TaskError]:
    if tries(path) == 1:
        return TaskResult(err=TaskError(error_code="BUSY", message="call again"))
    return TaskResult(ok=2)

@app.task("task_exception", retry_policy=again("TASK_EXCEPTION"))
def task_exception(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("unhandled", retry_policy=again("UNHANDLED_EXCEPTION"))
def unhandled(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("returned", retry_policy=again("BUSY"))
def returned(path: str) -> TaskResult[int, TaskError]:
    if tries(path) == 1:
        return TaskResult(err=TaskError(error_code="BUSY", message="call again"))
    return TaskResult(ok=2)

@app.task("mapped", exception_mapper={FlakyError: "FLAKY"}, retry_policy=again("FLAKY"))
def mapped(path: str, very: bool) -> TaskResult[int, TaskError]:
    return raise_once(path, VeryFlakyError("very") if very else FlakyError("a little"))

@app.task("mapped_by_the_app", retry_policy=again("NETWORK"))
def mapped_by_the_app(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, ConnectionError("down"))

soon = RetryPolicy.fixed([1], jitter=False)

@app.task("retried_on_class", retry_on=(OSError,), retry_policy=soon)
def retried_on_class(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, ConnectionRefusedError("down"))

@app.task("unretried")
def unretried(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, ConnectionRefusedError("down"))

@app.task("retried_on_code", retry_on=("BUSY", TimeoutError), retry_policy=soon)
def retried_on_code(path: str) -> int:
    if tries(path) == 1:
        raise TaskFailure("BUSY", "call again")
    return 2

@app.task("policy_with_class", retry_policy=again(FlakyError), exception_mapper={FlakyError: "FLAKY"})
async def policy_with_class(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, VeryFlakyError("mapped, and retried by its class"))

@app.task("own_class", retry_on=FlakyError, retry_policy=soon)
def own_class(path: str) -> int:
    if tries(path) == 1:
        raise VeryFlakyError("once")
    return 2

@app.task("retried_on_another", retry_on=(ConnectionError, TimeoutError), retry_policy=soon)
def retried_on_another(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("own_default", default_unhandled_error_code="OOPS", retry_policy=again("OOPS"))
def own_default(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("unlisted", exception_mapper={FlakyError: "FLAKY"}, retry_policy=again("SOMETHING_ELSE", "TASK_EXCEPTION"))
def unlisted(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))

@app.task("hopeless", retry_policy=again("*", intervals=(1, 2)))
def hopeless(path: str) -> TaskResult[int, TaskError]:
    raise FlakyError(f"try {tries(path)}")

@app.task("patient", retry_policy=again("*", intervals=(120,)))
def patient(path: str) -> TaskResult[int, TaskError]:
    return raise_once(path, FlakyError("once"))
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2")


@pytest.mark.parametrize(
    "task",
    [
        "any_error",
        "any_returned",
        "task_exception",
        "unhandled",
        "returned",
        "mapped_by_the_app",
        "own_default",
    ],
)
def test_a_listed_error_is_retried(office: Office, shared_db: Db, task: str) -> None:
    handle = getattr(office.tasks, task).send(str(office.gate(task))).unwrap()

    assert handle.get(20_000) == TaskResult(ok=2)

    stored = row(shared_db, handle)
    assert (stored["status"], stored["retry_count"], stored["error_code"]) == ("COMPLETED", 1, None)
    assert [entry["outcome"] for entry in attempts(shared_db, handle)] == ["FAILED", "COMPLETED"]


@pytest.mark.parametrize("very", [False, True], ids=["the class", "its subclass"])
def test_a_mapped_class_stands_for_its_subclasses(office: Office, very: bool) -> None:
    handle = office.tasks.mapped.send(str(office.gate(f"very-{very}")), very).unwrap()

    assert handle.get(20_000) == TaskResult(ok=2)


@pytest.mark.parametrize("task", ["retried_on_class", "retried_on_code", "policy_with_class", "own_class"])
def test_an_exception_is_retried_by_its_class(office: Office, shared_db: Db, task: str) -> None:
    handle = getattr(office.tasks, task).send(str(office.gate(task))).unwrap()

    assert handle.get(20_000) == TaskResult(ok=2)
    assert [entry["outcome"] for entry in attempts(shared_db, handle)] == ["FAILED", "COMPLETED"]


def test_a_node_is_retried_by_the_classes_of_its_own_policy(office: Office) -> None:
    tasks, path = office.tasks, office.gate("node")
    policy = RetryPolicy.fixed([1], auto_retry_for=[LookupError, OSError], jitter=False)
    node = tasks.unretried.node(retry_policy=policy)(path=str(path))
    spec = tasks.app.workflow("retried", [node], output=node, definition_key="retried.v1")

    assert spec.start().unwrap().get(20_000) == TaskResult(ok=2)
    assert len(lines(path)) == 2


def test_an_exception_of_another_class_is_not_retried(office: Office, shared_db: Db) -> None:
    path = office.gate("another")
    handle = office.tasks.retried_on_another.send(str(path)).unwrap()

    assert handle.get(20_000).err_value.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert len(lines(path)) == 1
    (attempt,) = attempts(shared_db, handle)
    assert attempt["will_retry"] is False


def test_an_error_that_is_not_listed_stands(office: Office, shared_db: Db) -> None:
    path = office.gate("unlisted")
    handle = office.tasks.unlisted.send(str(path)).unwrap()

    # A mapped exception goes by its own code only: TASK_EXCEPTION, which is listed, does not mean it.
    assert handle.get(20_000).err_value.error_code == "FLAKY"
    assert len(lines(path)) == 1
    (attempt,) = attempts(shared_db, handle)
    assert (attempt["attempt"], attempt["outcome"], attempt["will_retry"]) == (1, "FAILED", False)


def test_when_the_retries_are_spent_the_last_error_stands(office: Office, shared_db: Db) -> None:
    path = office.gate("hopeless")
    handle = office.tasks.hopeless.send(str(path)).unwrap()

    assert handle.get(30_000).err_value.message == "FlakyError: try 3"

    assert len(lines(path)) == 3
    stored = row(shared_db, handle)
    assert (stored["status"], stored["retry_count"], stored["next_retry_at"]) == ("FAILED", 2, None)
    told = [
        (entry["attempt"], entry["error_message"], entry["will_retry"])
        for entry in attempts(shared_db, handle)
    ]
    assert told == [
        (1, "FlakyError: try 1", True),
        (2, "FlakyError: try 2", True),
        (3, "FlakyError: try 3", False),
    ]
    newest_first = handle.info(include_attempts=True).unwrap().attempts
    assert [entry.attempt for entry in newest_first] == [3, 2, 1]


def test_between_two_runs_a_task_is_pending_until_it_is_due(office: Office, shared_db: Db) -> None:
    handle = office.tasks.patient.send(str(office.gate("patient"))).unwrap()

    stored = _after_the_first_run(shared_db, handle)

    assert (stored["status"], stored["retry_count"], stored["error_code"]) == ("PENDING", 1, None)
    assert stored["next_retry_at"] == stored["enqueued_at"]
    (attempt,) = attempts(shared_db, handle)
    assert stored["next_retry_at"] - attempt["finished_at"] == timedelta(seconds=120)
    assert (stored["claimed_by_worker_id"], stored["claimed_at"], stored["started_at"]) == (None, None, None)


def test_sent_at_stays_while_enqueued_at_moves(office: Office, shared_db: Db) -> None:
    # Before the commit, no worker can have touched it yet.
    with psycopg.connect(office.place.database_url) as connection:
        handle = office.tasks.patient.with_options(conn=connection).send(str(office.gate("moving"))).unwrap()
        query = "SELECT sent_at, enqueued_at FROM horsies_tasks WHERE id = %s"
        before = connection.execute(query, (handle.task_id,)).fetchone()
        assert before is not None

    after = _after_the_first_run(shared_db, handle)

    assert after["sent_at"] == before[0]
    assert after["enqueued_at"] > before[1]


def test_a_retry_starts_when_it_is_due_and_does_not_wait_for_the_poll(office: Office, shared_db: Db) -> None:
    handle = office.tasks.any_error.send(str(office.gate("timer"))).unwrap()
    due = _after_the_first_run(shared_db, handle)["next_retry_at"]

    started = until_status(shared_db, handle, "RUNNING", "COMPLETED")["started_at"]

    assert timedelta(0) <= started - due < timedelta(seconds=5)


def test_a_retry_that_would_come_too_late_is_not_waited_for(office: Office, shared_db: Db) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)
    handle = office.tasks.patient.with_options(good_until=soon).send(str(office.gate("late"))).unwrap()

    error = handle.get(20_000).err_value

    assert (error.error_code, error.message) == (OperationalErrorCode.UNHANDLED_EXCEPTION, "FlakyError: once")
    assert row(shared_db, handle)["status"] == "FAILED"


def _after_the_first_run(db: Db, handle: TaskHandle[Any]) -> dict[str, Any]:
    eventually(lambda: row(db, handle)["retry_count"] > 0, what="the first run having failed")
    return row(db, handle)
