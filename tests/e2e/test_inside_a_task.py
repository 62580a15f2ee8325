"""What a task can say and ask while it runs, and how it is made to stop."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest

from horsies import OutcomeCode, TaskHandle, current_task
from horsies.errors import HorsiesError
from tests.e2e.observing import Db, attempts, children, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import logging

app = Horsies(
    AppConfig.for_database_url(URL, cancel_grace_ms=400, claim_lease_ms=1_500, unknown_task_grace_seconds=2)
)

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

@app.task("nap")
def nap(path: str) -> TaskResult[list[int], TaskError]:
    mark(path)
    if len(Path(path).read_text().splitlines()) <= 2:
        current_task().snooze(0.2)
    return TaskResult(ok=[current_task().attempt, current_task().max_retries])

@app.task("nap_async")
async def nap_async(path: str) -> TaskResult[list[int], TaskError]:
    await asyncio.sleep(0)
    return nap(path)

@app.task("note_failure")
def note_failure(task_id: str, task_name: str, error_code: str, message: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{task_name}: {error_code}: {message}")

@app.task("break_down", on_failure=note_failure, timeout_ms=400,
          retry_policy=RetryPolicy.fixed([1], auto_retry_for=["AGAIN"], jitter=False))
def break_down(how: str) -> TaskResult[int, TaskError]:
    match how:
        case "AGAIN" | "OWN":
            return TaskResult(err=TaskError(error_code=how, message="it broke"))
        case "crash":
            os._exit(3)
        case "hang":
            time.sleep(600)

@app.task("wait_async")
async def wait_async(path: str) -> TaskResult[int, TaskError]:
    mark(path)
    while not Path(path + ".go").exists():
        await asyncio.sleep(0.005)
    return TaskResult(ok=current_task().attempt)

@app.task("talk", timeout_ms=60_000, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["AGAIN"], jitter=False))
def talk(count: int) -> TaskResult[list[str], TaskError]:
    task = current_task()
    for done in range(count):
        task.report_progress(done + 1, count, "talking")
        task.log.info("line %d", done)
    logging.getLogger("shop").warning("a\\0b\\ud800" + 3_000 * "x")
    logging.getLogger("shop").info("not let through")
    if os.fork() == 0:
        task.log.info("of a process that the task has forked")
        os._exit(0)
    os.wait()
    if task.attempt == 1:
        return TaskResult(err=TaskError(error_code="AGAIN", message="once more"))
    return TaskResult(ok=[task.id, task.name, task.queue_name, str(task.max_retries), task.deadline.tzname()])
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
    eventually(lambda: handle.logs().unwrap(), 20, "what it said before being written")
    assert [line.message for line in handle.logs().unwrap()] == ["about to sleep"]
    assert others <= children(office.worker.pid)


def test_an_async_task_is_cancelled_and_its_neighbours_are_not(office: Office) -> None:
    (handle, _), (other, path) = _begun(office, "wait_async"), _begun(office, "wait_async")

    handle.cancel().unwrap()

    assert _was_cancelled(handle)
    office.place.folder.joinpath(path + ".go").touch()
    assert other.get(20_000).ok_value == 1


def test_what_a_task_says_is_kept_with_its_attempts(office: Office) -> None:
    handle = office.tasks.talk.send(3).unwrap()

    assert handle.get(20_000).ok_value == [handle.task_id, "talk", "default", "1", "UTC"]
    eventually(lambda: len(handle.logs().unwrap()) == 8, 20, "all lines being written")
    told = handle.logs().unwrap()
    assert [(line.attempt, line.seq) for line in told] == [(n, seq) for n in (1, 2) for seq in range(4)]
    assert [line.message for line in told[:3]] == ["line 0", "line 1", "line 2"]
    assert (told[0].level, told[0].logger, told[3].level, told[3].logger) == (
        "INFO",
        "task.talk",
        "WARNING",
        "shop",
    )
    assert told[3].message.startswith("a\ufffdb\ufffdxxx")
    assert len(told[3].message) == 2_000
    progress = handle.progress().unwrap()
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (3, 3, "talking")


def test_of_many_lines_the_last_are_kept_and_a_gap_tells_of_the_others(office: Office) -> None:
    handle = office.tasks.talk.send(1_000).unwrap()

    handle.get(20_000)
    eventually(
        lambda: [line[:2] for line in handle.logs().unwrap()[-1:]] == [(2, 1_000)], 20, "all being written"
    )

    first = [line.seq for line in handle.logs().unwrap() if line.attempt == 1]
    assert first == list(range(801, 1_001))
    assert handle.progress().unwrap().done == 1_000


@pytest.mark.parametrize("task", ["nap", "nap_async"])
def test_a_task_that_snoozes_is_run_again_and_spends_no_attempt(
    office: Office, shared_db: Db, task: str
) -> None:
    path = office.gate(uuid4().hex)

    handle = getattr(office.tasks, task).send(str(path)).unwrap()

    assert handle.get(20_000).ok_value == [1, 0]
    assert len(lines(path)) == 3
    assert [each["attempt"] for each in attempts(shared_db, handle)] == [1]


def test_when_a_task_has_failed_for_good_another_is_told_once(office: Office, shared_db: Db) -> None:
    told = {
        "AGAIN": "break_down: AGAIN: it broke",
        "OWN": "break_down: OWN: it broke",
        "crash": "break_down: WORKER_CRASHED: the task was lost: its process exited with code 3",
        "hang": "break_down: TASK_TIMEOUT: the task ran longer than its limit of 400 ms",
    }
    handles = {how: office.tasks.break_down.send(how).unwrap() for how in told}
    unknown = shared_db.execute(
        "INSERT INTO horsies_tasks (task_name, task_options, enqueued_at)"
        """ VALUES ('gone', '{"on_failure":"note_failure"}', now() - interval '1 h') RETURNING id"""
    ).fetchone()
    assert unknown is not None

    for handle in handles.values():
        assert handle.get(20_000).is_err()
    until_status(shared_db, unknown["id"], "FAILED")

    ids = {handle.task_id: told[how] for how, handle in handles.items()}
    ids[str(unknown["id"])] = "gone: WORKER_RESOLUTION_ERROR: this worker knows no task 'gone'"
    query = (
        "SELECT kwargs::json ->> 'task_id' AS of, result FROM horsies_tasks WHERE task_name = 'note_failure'"
    )

    def said() -> list[tuple[str, str | None]]:
        return [
            (each["of"], each["result"]) for each in shared_db.execute(query).fetchall() if each["of"] in ids
        ]

    eventually(lambda: all(result for _, result in said()), 20, "all being told")
    assert sorted((of, json.loads(result or "")["ok"]) for of, result in said()) == sorted(ids.items())


def test_a_task_that_nobody_knows_waits_for_somebody_who_does_and_holds_nobody_up(
    office: Office, shared_db: Db
) -> None:
    insert = "INSERT INTO horsies_tasks (task_name) SELECT 'new' FROM generate_series(1, 5) RETURNING id"
    strangers = [row["id"] for row in shared_db.execute(insert).fetchall()]

    assert office.tasks.break_down.send("OWN").unwrap().get(20_000).is_err()
    assert {row(shared_db, each)["status"] for each in strangers} <= {"PENDING", "RUNNING"}
    for each in strangers:
        ended = until_status(shared_db, each, "FAILED")
        assert ended["error_code"] == "WORKER_RESOLUTION_ERROR"
        assert ended["failed_at"] - ended["sent_at"] >= timedelta(seconds=2)
        assert ended["claim_seq"] < 10


def test_outside_of_a_task_there_is_none() -> None:
    with pytest.raises(HorsiesError, match="no task runs here"):
        current_task()
