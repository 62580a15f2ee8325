"""Async tasks run many at a time in children of their own, and share nothing with plain ones but the queue."""

from __future__ import annotations

import pytest

from horsies import OperationalErrorCode, OutcomeCode, TaskResult
from tests.e2e.observing import Db, attempts, children, descendants, is_alive, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

ASYNC_CHILD = "horsies-async"

APP = """
app = Horsies(AppConfig.for_database_url(URL, default_task_timeout_ms=60_000))

@app.task("plain")
def plain() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("plain_wait", timeout_ms=120_000)
def plain_wait(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("plain_spin", timeout_ms=300)
def plain_spin() -> TaskResult[int, TaskError]:
    while True:
        pass

@app.task("where")
async def where() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
async def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun").touch()
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return TaskResult(ok=os.getpid())

@app.task("meet")
async def meet(folder: str, number: int, of: int) -> TaskResult[int, TaskError]:
    # Returns only when all of them are there at the same time.
    (Path(folder) / f"here-{number}").touch()
    while len(list(Path(folder).glob("here-*"))) < of:
        await asyncio.sleep(0.01)
    return TaskResult(ok=number)

@app.task("too_long", timeout_ms=300)
async def too_long(path: str) -> TaskResult[int, TaskError]:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(path).write_text("cancelled\\n")
        raise

@app.task("stubborn", timeout_ms=300)
async def stubborn() -> TaskResult[int, TaskError]:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@app.task("late_value", timeout_ms=300)
async def late_value() -> TaskResult[int, TaskError]:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        return TaskResult(ok=1)

@app.task("block", timeout_ms=1_500)
async def block() -> TaskResult[int, TaskError]:
    while True:
        pass

async def hold_the_loop(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.005)

@app.task("block_until")
async def block_until(path: str) -> TaskResult[int, TaskError]:
    await asyncio.create_task(hold_the_loop(path))  # done by a task of its own, yet on behalf of this one
    return TaskResult(ok=1)

@app.task("leave")
async def leave() -> TaskResult[int, TaskError]:
    raise SystemExit(3)

@app.task("die")
async def die() -> TaskResult[int, TaskError]:
    os._exit(9)

@app.task("shout")
async def shout() -> TaskResult[int, TaskError]:
    raise ValueError("out loud")
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1", "--async-concurrency=50")


def test_an_app_without_async_tasks_has_no_children_for_them(workplace: Workplace) -> None:
    worker = staffed(
        workplace,
        """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("plain")
def plain() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())
""",
        "--processes=1",
    ).worker

    eventually(lambda: len(children(worker.pid)) == 2, what="a child and a spare")
    assert descendants(worker.pid, ASYNC_CHILD) == set()


def test_async_tasks_have_a_child_of_their_own(office: Office) -> None:
    assert office.tasks.where.send().unwrap().get(20_000).unwrap() in descendants(
        office.worker.pid, ASYNC_CHILD
    )
    assert office.tasks.plain.send().unwrap().get(20_000).unwrap() in children(office.worker.pid)


def test_many_of_them_run_at_once_in_one_child(office: Office, shared_db: Db) -> None:
    folder = office.place.folder / "meeting"
    folder.mkdir()

    handles = office.tasks.meet.send_many([(str(folder), number, 50) for number in range(50)]).unwrap()

    assert [handle.get(30_000).unwrap() for handle in handles] == list(range(50))
    assert len({row(shared_db, handle)["worker_pid"] for handle in handles}) == 1


def test_no_more_of_them_run_at_once_than_allowed(office: Office, shared_db: Db) -> None:
    gate = office.gate("full")
    handles = office.tasks.wait_for.send_many([(str(gate),) for _ in range(60)]).unwrap()
    running = "SELECT count(*) AS n FROM horsies_tasks WHERE task_name = 'wait_for' AND status = 'RUNNING'"

    eventually(lambda: shared_db.execute(running).fetchone() == {"n": 50}, what="fifty running tasks")
    # A plain task that runs now shows that the worker has looked for work since.
    office.tasks.plain.send().unwrap().get(20_000).unwrap()
    assert shared_db.execute(running).fetchone() == {"n": 50}

    gate.touch()
    assert all(handle.get(20_000).is_ok() for handle in handles)


def test_a_backlog_of_either_kind_does_not_hold_up_the_other(office: Office, shared_db: Db) -> None:
    gate = office.gate("backlog")
    plain = office.tasks.plain_wait.send_many([(str(gate),) for _ in range(20)]).unwrap()
    until_status(shared_db, plain[0], "RUNNING")

    assert office.tasks.where.send().unwrap().get(20_000).is_ok()

    waiting = office.tasks.wait_for.send_many([(str(office.gate("later")),) for _ in range(80)]).unwrap()
    until_status(shared_db, waiting[0], "RUNNING")
    gate.touch()
    assert all(handle.get(20_000).is_ok() for handle in plain)
    office.gate("later").touch()
    assert all(handle.get(20_000).is_ok() for handle in waiting)


def test_killing_the_child_of_a_hung_plain_task_does_not_touch_them(office: Office, shared_db: Db) -> None:
    gate = office.gate("untouched")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(shared_db, handle, "RUNNING")["worker_pid"]

    hung = office.tasks.plain_spin.send().unwrap()
    assert hung.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT

    gate.touch()
    assert handle.get(20_000) == TaskResult(ok=pid)


def test_at_its_limit_a_task_is_cancelled_and_its_neighbours_go_on(office: Office, shared_db: Db) -> None:
    gate, note = office.gate("neighbour"), office.gate("cancelled")
    neighbour = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(shared_db, neighbour, "RUNNING")["worker_pid"]

    late = office.tasks.too_long.send(str(note)).unwrap()

    error = late.get(20_000).err_value
    assert (error.error_code, "300 ms" in error.message) == (OutcomeCode.TASK_TIMEOUT, True)
    assert lines(note) == ["cancelled"]
    assert row(shared_db, late)["worker_pid"] == pid
    gate.touch()
    assert neighbour.get(20_000) == TaskResult(ok=pid)


def test_a_value_that_comes_after_the_limit_does_not_count(office: Office) -> None:
    late = office.tasks.late_value.send().unwrap()

    assert late.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT


@pytest.mark.parametrize("task", ["stubborn", "block"])
def test_what_cannot_be_cancelled_is_ended_with_its_process_and_blamed(
    office: Office, shared_db: Db, task: str
) -> None:
    neighbour = office.tasks.wait_for.send(str(office.gate("never"))).unwrap()
    pid = until_status(shared_db, neighbour, "RUNNING")["worker_pid"]

    culprit = getattr(office.tasks, task).send().unwrap()

    assert culprit.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT
    lost = neighbour.get(20_000).err_value
    assert lost.error_code is OperationalErrorCode.WORKER_CRASHED
    assert f"task {culprit.task_id} ({task})" in lost.message
    eventually(lambda: not is_alive(pid), what="their process being gone")
    assert office.tasks.where.send().unwrap().get(20_000).unwrap() != pid


def test_whoever_blocks_the_loop_is_named(office: Office, shared_db: Db) -> None:
    gate = office.gate("blocked")
    culprit = office.tasks.block_until.send(str(gate)).unwrap()

    said = f"is blocked by task {culprit.task_id} (block_until) at "
    eventually(lambda: said in office.worker.log, what="the report")

    gate.touch()
    assert culprit.get(20_000).is_ok()
    (line,) = [line for line in office.worker.log.splitlines() if said in line]
    place, _, number = line.partition(said)[2].partition(": ")[0].rpartition(":")
    source = (office.place.folder / "app.py").read_text().splitlines()
    assert place.endswith("app.py")
    assert source[int(number) - 1].strip() in (
        "time.sleep(0.005)",
        "while not Path(path).exists():",
    )
    assert row(shared_db, culprit)["status"] == "COMPLETED"


@pytest.mark.parametrize(("task", "told"), [("leave", "SystemExit: 3"), ("shout", "ValueError: out loud")])
def test_what_they_raise_is_their_own_failure(office: Office, task: str, told: str) -> None:
    pid = office.tasks.where.send().unwrap().get(20_000).unwrap()

    error = getattr(office.tasks, task).send().unwrap().get(20_000).err_value

    assert (error.error_code, error.message) == (OperationalErrorCode.UNHANDLED_EXCEPTION, told)
    assert office.tasks.where.send().unwrap().get(20_000) == TaskResult(ok=pid)


def test_when_their_process_dies_all_that_ran_in_it_are_lost_and_the_next_run(
    office: Office, shared_db: Db
) -> None:
    neighbour = office.tasks.wait_for.send(str(office.gate("lost"))).unwrap()
    until_status(shared_db, neighbour, "RUNNING")

    handle = office.tasks.die.send().unwrap()

    for lost in (handle, neighbour):
        error = lost.get(20_000).err_value
        assert error.error_code is OperationalErrorCode.WORKER_CRASHED
        assert "code 9" in error.message
        assert len(attempts(shared_db, lost)) == 1
    assert office.tasks.where.send().unwrap().get(20_000).is_ok()


def test_a_worn_child_ends_what_it_runs_and_takes_nothing_new(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--async-concurrency=5", "--max-tasks-per-child=3")
    gate = office.gate("long")
    long = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(db, long, "RUNNING")["worker_pid"]

    pids = [office.tasks.where.send().unwrap().get(20_000).unwrap() for _ in range(8)]

    assert pids.count(pid) == 3
    assert is_alive(pid)
    gate.touch()
    assert long.get(20_000) == TaskResult(ok=pid)
    eventually(lambda: not is_alive(pid), what="the worn child being gone")


def test_with_1_each_async_task_has_a_fresh_process_too(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1", "--max-tasks-per-child=1")

    handles = office.tasks.where.send_many([() for _ in range(5)]).unwrap()

    assert len({handle.get(20_000).unwrap() for handle in handles}) == 5


def test_a_stop_lets_them_end(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("stop")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    office.until_begun("stop")

    office.worker.process.terminate()
    eventually(lambda: "for 1 running task" in office.worker.log, what="the worker stopping")
    gate.touch()

    assert office.worker.wait() == 0
    assert row(db, handle)["status"] == "COMPLETED"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_they_can_be_started_in_every_way(workplace: Workplace, method: str) -> None:
    office = staffed(workplace, APP, "--processes=1", f"--start-method={method}")

    pid = office.tasks.where.send().unwrap().get(30_000).unwrap()

    assert pid in descendants(office.worker.pid, ASYNC_CHILD)


def test_a_row_of_the_wrong_kind_runs_all_the_same(office: Office, shared_db: Db) -> None:
    insert = "INSERT INTO horsies_tasks (task_name, is_async) VALUES (%s, %s) RETURNING id"
    for name, is_async in (("where", False), ("plain", True)):
        task_id = shared_db.execute(insert, (name, is_async)).fetchone()
        assert task_id is not None
        until_status(shared_db, task_id["id"], "COMPLETED")
