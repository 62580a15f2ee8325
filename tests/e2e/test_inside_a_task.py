"""What a task can say and ask while it runs, and how it is made to stop."""

from __future__ import annotations

from uuid import uuid4

import pytest

from horsies import OutcomeCode, TaskHandle, current_task
from horsies.errors import HorsiesError
from tests.e2e.observing import Db, attempts, children, lines, row
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import logging

app = Horsies(AppConfig.for_database_url(URL, cancel_grace_ms=400, claim_lease_ms=1_500))

def mark(path):
    with open(path, "a") as file:
        file.write("seen\\n")

@app.task("heed")
def heed(path: str) -> TaskResult[int, TaskError]:
    mark(path)
    while not current_task().cancelled():
        time.sleep(0.005)
    mark(path)
    return TaskResult(ok=1)

@app.task("ignore", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))
def ignore(path: str) -> TaskResult[int, TaskError]:
    current_task().log.info("about to sleep")
    mark(path)
    time.sleep(600)

@app.task("wait_async")
async def wait_async(path: str) -> TaskResult[int, TaskError]:
    mark(path)
    while not Path(path + ".go").exists():
        await asyncio.sleep(0.005)
    return TaskResult(ok=current_task().attempt)

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2")


def _begun(office: Office, task: str) -> tuple[TaskHandle[int], str]:
    path = office.gate(uuid4().hex)
    handle = getattr(office.tasks, task).send(str(path)).unwrap()
    eventually(lambda: lines(path), 20, "the task having begun")
    return handle, str(path)


def _was_cancelled(handle: TaskHandle[int]) -> bool:
    return handle.get(20_000).err_value.error_code is OutcomeCode.TASK_CANCELLED


def test_a_task_is_told_to_stop_and_has_been_cancelled_whatever_it_returns(
    office: Office, shared_db: Db
) -> None:
    handle, path = _begun(office, "heed")

    assert handle.cancel().unwrap() is True

    assert _was_cancelled(handle)
    assert len(lines(office.place.folder / path)) == 2
    assert row(shared_db, handle)["status"] == "CANCELLED"


def test_a_request_whose_notification_was_lost_is_heeded(office: Office, shared_db: Db) -> None:
    handle, _ = _begun(office, "heed")

    shared_db.execute(
        "UPDATE horsies_tasks_live SET cancel_asked_at = now() WHERE id = %s", (handle.task_id,)
    )

    assert _was_cancelled(handle)


def test_a_task_that_does_not_stop_is_ended_and_nobody_else_is(office: Office, shared_db: Db) -> None:
    handle, _ = _begun(office, "ignore")
    others = children(office.worker.pid) - {row(shared_db, handle)["worker_pid"]}

    handle.cancel().unwrap()

    assert _was_cancelled(handle)
    assert attempts(shared_db, handle)[-1]["error_code"] == "TASK_CANCELLED"
    assert others <= children(office.worker.pid)


def test_an_async_task_is_cancelled_and_its_neighbours_are_not(office: Office) -> None:
    (handle, _), (other, path) = _begun(office, "wait_async"), _begun(office, "wait_async")

    handle.cancel().unwrap()

    assert _was_cancelled(handle)
    office.place.folder.joinpath(path + ".go").touch()
    assert other.get(20_000).ok_value == 1


def test_outside_of_a_task_there_is_none() -> None:
    with pytest.raises(HorsiesError, match="no task runs here"):
        current_task()
