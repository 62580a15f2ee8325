"""A worker logs what becomes of tasks that do not complete: one record each, and no secret in any."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from horsies import TaskHandle
from tests.e2e.observing import Db, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

TASKS = """
AGAIN = RetryPolicy.fixed([1], auto_retry_for=["AGAIN", "UNHANDLED_EXCEPTION"], jitter=False)

@app.task("mishap", timeout_ms=600, retry_policy=AGAIN)
def mishap(how: str, card: str = "-") -> TaskResult[int, TaskError]:
    match how:
        case "return":
            return TaskResult(err=TaskError(error_code="OWN", message=f"card {card} declined\\nsee postgresql://ann:pa55@db/x"))
        case "retry":
            return TaskResult(err=TaskError(error_code="AGAIN", message="not yet"))
        case "raise":
            raise RuntimeError(f"card {card} is blocked")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case _:
            return TaskResult(ok=1)

@app.task("long")
def long() -> TaskResult[int, TaskError]:
    time.sleep(600)
"""
APP = (
    """
app = Horsies(AppConfig.for_database_url(URL, cancel_grace_ms=100, claim_lease_ms=1_500, log_format="json", redact=["card"]))
"""
    + TASKS
)
CARD = "4111-1111"


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2", "--max-tasks-per-child=0")


def records(worker: RunningWorker, task: TaskHandle[Any] | str) -> list[dict[str, Any]]:
    """What a worker has logged of a task, but for the lines of the task itself."""
    task_id = task.task_id if isinstance(task, TaskHandle) else task
    told = [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]
    return [line for line in told if line.get("task_id") == task_id and line["logger"] == "horsies.worker"]


def levels(worker: RunningWorker, task: TaskHandle[Any] | str) -> list[str]:
    return [line["level"] for line in records(worker, task)]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("return", "OWN", "card [redacted] declined"),
        ("die", "WORKER_CRASHED", "the task was lost: its process exited with code 3"),
        ("hang", "TASK_TIMEOUT", "the task ran longer than its limit of 600 ms"),
    ],
)
def test_a_failure_is_one_error_whatever_its_way(office: Office, how: str, code: str, message: str) -> None:
    handle = office.tasks.mishap.send(how, card=CARD).unwrap()
    assert handle.get(20_000).is_err()

    eventually(lambda: levels(office.worker, handle) == ["ERROR"], what="one record")
    (told,) = records(office.worker, handle)

    assert told["message"].startswith(f"Task mishap ({handle.task_id}) failed with {code}: {message}")
    assert (told["task_name"], told["error_code"], told["attempt"]) == ("mishap", code, 1)
    assert CARD not in office.worker.log
    assert "pa55" not in office.worker.log


def test_a_retry_is_one_warning_with_its_delay_and_the_last_failure_one_error_with_a_traceback(
    office: Office,
) -> None:
    handle = office.tasks.mishap.send("raise", card=CARD).unwrap()
    assert handle.get(20_000).is_err()

    eventually(lambda: levels(office.worker, handle) == ["WARNING", "ERROR"], what="two records")
    retry, failure = records(office.worker, handle)

    assert retry["message"] == (
        f"Task mishap ({handle.task_id}) failed with UNHANDLED_EXCEPTION: RuntimeError: card [redacted] is blocked"
        " (attempt 1; next try in 1 s)"
    )
    assert retry["retry_in_seconds"] == 1
    assert "exception" not in retry
    assert failure["attempt"] == 2
    assert re.search(r'File ".*app\.py", line \d+, in mishap', failure["exception"])
    assert failure["exception"].endswith("RuntimeError: card [redacted] is blocked")
    assert CARD not in office.worker.log


def test_a_retry_that_a_task_asks_for_by_its_code_is_one_warning(office: Office) -> None:
    handle = office.tasks.mishap.send("retry").unwrap()
    assert handle.get(20_000).is_err()

    eventually(lambda: levels(office.worker, handle) == ["WARNING", "ERROR"], what="two records")


def test_a_cancelled_task_is_one_info(office: Office, shared_db: Db) -> None:
    handle = office.tasks.long.send().unwrap()
    until_status(shared_db, handle, "RUNNING")
    handle.cancel()
    until_status(shared_db, handle, "CANCELLED")

    eventually(lambda: levels(office.worker, handle) == ["INFO"], what="one record")
    assert records(office.worker, handle)[0]["message"] == f"Task long ({handle.task_id}) was cancelled"


def test_an_expired_task_is_one_info(office: Office, shared_db: Db) -> None:
    insert = "INSERT INTO horsies_tasks (task_name, good_until) VALUES ('long', now()) RETURNING id"
    found = shared_db.execute(insert).fetchone()
    assert found is not None
    until_status(shared_db, found["id"], "EXPIRED")

    eventually(lambda: levels(office.worker, str(found["id"])) == ["INFO"], what="one record")
    assert "expired" in records(office.worker, str(found["id"]))[0]["message"]


def test_a_task_that_completes_is_not_mentioned(office: Office) -> None:
    handle = office.tasks.mishap.send("well").unwrap()
    assert handle.get(20_000).is_ok()
    other = office.tasks.mishap.send("return").unwrap()
    other.get(20_000)

    eventually(lambda: levels(office.worker, other), what="the record of a later task")
    assert records(office.worker, handle) == []


def test_a_task_of_a_worker_that_died_is_one_error_of_the_worker_that_finds_it(
    office: Office, shared_db: Db
) -> None:
    doomed = office.place.start("--processes=1")
    handles = [office.tasks.long.send().unwrap() for _ in range(3)]
    for handle in handles:
        until_status(shared_db, handle, "RUNNING")
    owners = {handle: row(shared_db, handle)["worker_process_name"] for handle in handles}
    (lost,) = [handle for handle, owner in owners.items() if owner == f"worker-{doomed.pid}"]

    doomed.signal(signal.SIGKILL)
    until_status(shared_db, lost, "FAILED")

    eventually(lambda: levels(office.worker, lost) == ["ERROR"], what="one record")
    assert "WORKER_CRASHED: the task was lost: its worker died" in records(office.worker, lost)[0]["message"]
    for handle in handles:
        handle.cancel()


def test_the_text_log_shows_the_traceback_below_the_line(workplace: Workplace) -> None:
    office = staffed(workplace, "app = Horsies(AppConfig.for_database_url(URL))\n" + TASKS, "--processes=1")
    handle = office.tasks.mishap.send("raise", card=CARD).unwrap()
    assert handle.get(20_000).is_err()

    eventually(lambda: "  ERROR  " in office.worker.log, what="the failure being logged")
    after = office.worker.log.partition("  ERROR  ")[2].splitlines()

    assert after[0].strip() == (
        f"Task mishap ({handle.task_id}) failed with UNHANDLED_EXCEPTION: RuntimeError: card {CARD} is blocked (attempt 2)"
    )
    assert after[1] == "    Traceback (most recent call last):"
    assert after.index(f"    RuntimeError: card {CARD} is blocked") > 1
