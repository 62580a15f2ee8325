"""A task with batch= runs once for many sends, and each of them has a result of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.observing import Db, until_status
from tests.e2e.office import URL, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# With a poll of a minute, what starts within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000)))
HERE = Path(os.environ["HERE"])

def note(name, members):
    with (HERE / name).open("a") as out:
        out.write(json.dumps([*members]) + "\\n")

@app.task("double", batch=10, linger={linger})
def double(numbers: list[int]) -> list[int]:
    note("double", numbers)
    return [2 * number for number in numbers]

@app.task("double_async", batch=10, linger={linger})
async def double_async(numbers: list[int]) -> list[int]:
    note("double_async", numbers)
    return [2 * number for number in numbers]

@app.task("judge", batch=10, linger={linger}, retry_policy=RetryPolicy.fixed([1]), retry_on=("ODD",))
def judge(numbers: list[int]) -> list[TaskResult[int, TaskError]]:
    note("judge", numbers)
    return [
        TaskResult(ok=number) if number % 2 == 0 else TaskResult(err=TaskError(error_code="ODD", message="odd"))
        for number in numbers
    ]

@app.task("fragile", batch=10, linger={linger})
def fragile(numbers: list[int]) -> list[int]:
    note("fragile", numbers)
    if 13 in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers

@app.task("who", batch=10, linger={linger})
def who(numbers: list[int]) -> list[str]:
    return [task.id for task in current_batch()]

@app.task("free")
def free() -> int:
    return 1
"""


@pytest.fixture(autouse=True)
def _here(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    workplace.env["HERE"] = str(workplace.folder)
    monkeypatch.setenv("HERE", str(workplace.folder))


def calls(place: Workplace, name: str) -> list[list[int]]:
    path = Path(place.folder / name)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("name", ["double", "double_async"])
def test_many_sends_run_as_few_calls_and_each_has_its_own_result(
    workplace: Workplace, db: Db, name: str
) -> None:
    office = staffed(workplace, APP.format(linger=60), "--processes=1")

    handles = getattr(office.tasks, name).send_many([(number,) for number in range(30)]).unwrap()

    assert [handle.get(20_000).unwrap() for handle in handles] == [2 * number for number in range(30)]
    assert calls(workplace, name) == [[*range(10)], [*range(10, 20)], [*range(20, 30)]]


def test_a_batch_that_is_not_full_starts_when_its_first_member_has_lingered(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP.format(linger=0.5), "--processes=1")

    handles = office.tasks.double.send_many([(1,), (2,), (3,)]).unwrap()

    assert [handle.get(20_000).unwrap() for handle in handles] == [2, 4, 6]
    assert calls(workplace, "double") == [[1, 2, 3]]
    waited = db.execute(
        "SELECT extract(epoch FROM min(started_at - enqueued_at))::float8 AS seconds FROM horsies_tasks"
    ).fetchone()
    assert waited is not None
    assert waited["seconds"] >= 0.5


def test_a_member_that_fails_is_retried_by_itself(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP.format(linger=60), "--processes=1")

    handles = office.tasks.judge.send_many([(number,) for number in range(10)]).unwrap()

    results = [handle.get(20_000) for handle in handles]
    assert [result.ok for result in results] == [0, None, 2, None, 4, None, 6, None, 8, None]
    assert {result.err_value.error_code for result in results if result.is_err()} == {"ODD"}
    first, *retries = calls(workplace, "judge")
    assert first == [*range(10)]
    assert sorted(retries) == [[1], [3], [5], [7], [9]]


def test_after_a_crash_the_members_run_singly_and_only_the_culprit_fails(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP.format(linger=60), "--processes=1")

    handles = office.tasks.fragile.send_many([(number,) for number in range(10, 20)]).unwrap()

    results = {number: handle.get(30_000) for number, handle in zip(range(10, 20), handles, strict=True)}
    assert [number for number, result in results.items() if result.is_err()] == [13]
    assert results[13].err_value.error_code == "WORKER_CRASHED"
    first, *others = calls(workplace, "fragile")
    assert first == [*range(10, 20)]
    assert all(len(members) == 1 for members in others)


def test_after_the_death_of_the_worker_the_members_run_singly(workplace: Workplace, db: Db) -> None:
    source = (
        APP.format(linger=60).replace("resilience=", "claim_lease_ms=1_500, resilience=")
        + """
@app.task("hang", batch=3, linger=60)
def hang(names: list[str]) -> list[str]:
    note("hang", names)
    while len(names) > 1:
        time.sleep(0.05)
    return names
"""
    )
    office = staffed(workplace, source, "--processes=1")
    handles = office.tasks.hang.send_many([("a",), ("b",), ("c",)]).unwrap()
    eventually(lambda: calls(workplace, "hang"), what="the batch running")
    office.worker.process.kill()
    office.worker.wait()

    workplace.start("--processes=1")

    assert [handle.get(60_000).unwrap() for handle in handles] == ["a", "b", "c"]
    first, *others = calls(workplace, "hang")
    assert first == ["a", "b", "c"]
    assert sorted(others) == [["a"], ["b"], ["c"]]


def test_the_code_of_a_batch_sees_its_members_in_order(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP.format(linger=60), "--processes=1")

    handles = office.tasks.who.send_many([(number,) for number in range(10)]).unwrap()

    assert [handle.get(20_000).unwrap() for handle in handles] == [handle.task_id for handle in handles]


def test_a_member_that_was_cancelled_while_the_batch_runs_ends_as_cancelled_and_the_others_complete(
    workplace: Workplace, db: Db
) -> None:
    source = (
        APP.format(linger=60)
        + """
@app.task("gated", batch=3, linger=60)
def gated(names: list[str]) -> list[str]:
    (HERE / "gate-gated-begun").touch()
    while not (HERE / "gate-open").exists():
        time.sleep(0.02)
    return names
"""
    )
    office = staffed(workplace, source, "--processes=1")
    first, second, third = office.tasks.gated.send_many([("a",), ("b",), ("c",)]).unwrap()
    office.until_begun("gated")

    assert second.cancel().unwrap()
    (workplace.folder / "gate-open").touch()

    assert [first.get(20_000).unwrap(), third.get(20_000).unwrap()] == ["a", "c"]
    assert second.get(20_000).err_value.error_code == "TASK_CANCELLED"


def test_batches_and_other_tasks_take_turns(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP.format(linger=60))
    tasks = workplace.load()
    tasks.double.send_many([(number,) for number in range(1_000)]).unwrap()
    tasks.free.send_many([()] * 500).unwrap()

    workplace.start("--processes=1")

    eventually(lambda: db.execute("SELECT FROM horsies_tasks WHERE live").rowcount == 0, 60, "all having run")
    query = "SELECT min(started_at) AS first, max(started_at) AS last FROM horsies_tasks WHERE task_name = %s"
    batched, free = (db.execute(query, (name,)).fetchone() for name in ("double", "free"))
    assert batched is not None and free is not None  # noqa: PT018
    assert batched["first"] < free["last"]
    assert free["first"] < batched["last"]


def test_tasks_of_a_batch_that_is_none_any_more_run_singly(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP.format(linger=3_600), "--processes=1")
    handles = office.tasks.double.send_many([(1,), (2,)]).unwrap()
    until_status(db, handles[0], "PENDING")
    assert office.worker.stop() == 0

    former = APP[APP.index('@app.task("double", batch') : APP.index('@app.task("double_async"')]
    present = '@app.task("double")\ndef double(numbers: int) -> int:\n    return 2 * numbers\n\n'
    workplace.write(URL + APP.replace(former, present).format(linger=60))
    workplace.start("--processes=1")

    assert [handle.get(20_000).unwrap() for handle in handles] == [2, 4]


def test_each_member_has_the_log_lines_and_the_progress_of_the_batch(workplace: Workplace, db: Db) -> None:
    source = (
        APP.format(linger=60)
        + """
@app.task("talk", batch=2, linger=60)
def talk(names: list[str]) -> list[str]:
    first, _ = current_batch()
    first.log.info("%d names", len(names))
    first.report_progress(1, 2)
    return names
"""
    )
    office = staffed(workplace, source, "--processes=1")

    handles = office.tasks.talk.send_many([("a",), ("b",)]).unwrap()

    assert [handle.get(20_000).unwrap() for handle in handles] == ["a", "b"]
    for handle in handles:
        lines = eventually(lambda handle=handle: handle.logs().unwrap(), what="the log line")
        assert [line.message for line in lines] == ["2 names"]
        assert handle.progress().unwrap().done == 1


def test_a_worker_sleeps_while_a_batch_waits_for_a_full_event_loop(workplace: Workplace, db: Db) -> None:
    source = (
        APP.format(linger=60)
        + """
@app.task("gated", batch=2, linger=60)
async def gated(names: list[str]) -> list[str]:
    (HERE / "gate-gated-begun").touch()
    while not (HERE / "gate-open").exists():
        await asyncio.sleep(0.02)
    return names
"""
    )
    office = staffed(workplace, source, "--processes=1", "--async-concurrency=1")
    handles = office.tasks.gated.send_many([("a",), ("b",), ("c",), ("d",)]).unwrap()
    office.until_begun("gated")

    def sleeps() -> bool:
        found = db.execute("SELECT waiting FROM horsies_workers").fetchone()
        return bool(found and found["waiting"])

    for number in range(3):  # each wakes it up
        eventually(sleeps, what="the worker sleeping")
        assert office.tasks.free.send().unwrap().get(20_000).unwrap() == 1, number
    eventually(sleeps, what="the worker sleeping again")
    (workplace.folder / "gate-open").touch()

    assert [handle.get(20_000).unwrap() for handle in handles] == ["a", "b", "c", "d"]
