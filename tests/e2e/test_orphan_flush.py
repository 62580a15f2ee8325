"""When a worker dies, its children store what they have done and give back what they have not begun."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horsies import PostgresConfig
from horsies.db.queries.tasks import Claimed
from horsies.executor import protocol
from horsies.executor.protocol import ChildKind
from tests.e2e.observing import Db, descendants, is_alive, row, until_status
from tests.e2e.office import URL, staffed
from tests.e2e.pipes import Line, child, settings_for
from tests.pg.hands import Hands
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import subprocess

app = Horsies(AppConfig.for_database_url(URL))

def wait_for(path):
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)

@app.task("plain", idempotent=True)
def plain(path: str) -> TaskResult[int, TaskError]:
    wait_for(path)
    return TaskResult(ok=os.getpid())

@app.task("later", idempotent=True)
async def later(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        await asyncio.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("family", idempotent=True)
def family(path: str) -> TaskResult[int, TaskError]:
    subprocess.Popen(["sleep", "60"])
    wait_for(path)
    return TaskResult(ok=1)

@app.task("broken", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["TASK_EXCEPTION"]))
def broken(path: str) -> TaskResult[int, TaskError]:
    raise ValueError("it broke")
"""
TASK_OF = {ChildKind.SERIAL: "plain", ChildKind.THREADS: "plain", ChildKind.ASYNC: "later"}


@pytest.fixture
def hands(database_url: str) -> Iterator[Hands]:
    held = Hands(database_url)
    yield held
    held.close()


@pytest.fixture
def app(workplace: Workplace) -> Any:
    workplace.write(URL + APP)
    return workplace.load()


def _call(ticket: int, task: Claimed) -> protocol.Call:
    return protocol.Call(
        ticket,
        task.id,
        task.task_name,
        task.args,
        task.kwargs,
        task.queue_name,
        task.retry_count + 1,
        task.max_retries,
        task.timeout_ms,
        time.monotonic() + 60,
        task.claim_seq,
        task.task_options,
    )


def _identity(url: str, hands: Hands) -> protocol.Identity:
    return protocol.Identity(PostgresConfig(database_url=url), str(hands.worker_id))


def _greeted(line: Line, *orders: protocol.Order) -> None:
    assert isinstance(line.hear(), protocol.Hello)
    line.say(*orders)


@pytest.mark.parametrize(
    ("task", "arguments"),
    [("plain", ["--processes=1"]), ("plain", ["--processes=1", "--threads=2"]), ("later", [])],
    ids=["serial", "threads", "async"],
)
def test_a_result_that_a_killed_worker_had_not_stored_is_stored_all_the_same(
    workplace: Workplace, db: Db, task: str, arguments: list[str]
) -> None:
    office = staffed(workplace, APP, *arguments)
    gate = office.gate("done")
    handle = getattr(office.tasks, task).send(str(gate)).unwrap()
    eventually(Path(f"{gate}.begun").exists, 20, "the task having begun")
    office.worker.signal(signal.SIGSTOP)
    gate.touch()
    processes = descendants(office.worker.pid)
    running = row(db, handle)

    office.worker.signal(signal.SIGKILL)

    stored = until_status(db, handle, "COMPLETED")
    eventually(lambda: not any(map(is_alive, processes)), 5, "all its processes being gone")
    assert (running["status"], stored["claim_seq"]) == ("RUNNING", running["claim_seq"])
    assert stored["result"] == f'{{"ok":{running["worker_pid"]}}}'


def test_what_a_task_has_started_does_not_outlive_a_killed_worker(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("never")
    office.tasks.family.send(str(gate)).unwrap()
    eventually(Path(f"{gate}.begun").exists, 20, "the task having begun")
    processes = descendants(office.worker.pid)
    assert descendants(office.worker.pid, "sleep")

    office.worker.signal(signal.SIGKILL)
    office.worker.wait()

    eventually(lambda: not any(map(is_alive, processes)), 5, "all its processes being gone")


@pytest.mark.parametrize("kind", ChildKind)
def test_what_the_worker_had_stored_already_is_left_as_it_is(
    app: Any, workplace: Workplace, hands: Hands, db: Db, database_url: str, kind: ChildKind
) -> None:
    gate = workplace.folder / "open"
    gate.touch()
    handle = getattr(app, TASK_OF[kind]).send(str(gate)).unwrap()
    (task,) = hands.claim(pids=[1], is_async=kind is ChildKind.ASYNC)
    with child(settings_for(workplace), kind) as line:
        _greeted(line, _identity(database_url, hands), _call(1, task))
        assert isinstance(line.hear(), protocol.Outcome)
        assert hands.complete([task], '{"ok":7}') == 1

        line.hang_up()

    assert row(db, handle)["result"] == '{"ok":7}'


def test_calls_that_were_not_begun_go_back_untouched(
    app: Any, workplace: Workplace, hands: Hands, db: Db, database_url: str
) -> None:
    gates = [workplace.folder / name for name in ("first", "second", "third")]
    handles = [app.plain.send(str(gate)).unwrap() for gate in gates]
    first, *others = hands.run_next()
    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        _greeted(
            line,
            _identity(database_url, hands),
            _call(1, first),
            *(_call(n, o) for n, o in enumerate(others, 2)),
        )
        eventually(Path(f"{gates[0]}.begun").exists, 20, "the first one having begun")
        line.cut()
        gates[0].touch()
        assert line.process.wait(20) == 0

    assert [row(db, handle)["status"] for handle in handles] == ["COMPLETED", "PENDING", "PENDING"]
    assert [row(db, handle)["crash_count"] for handle in handles] == [0, 0, 0]
    assert not any(Path(f"{gate}.begun").exists() for gate in gates[1:])


def test_a_failure_is_stored_and_retried_by_its_policy(
    app: Any, workplace: Workplace, hands: Hands, db: Db, database_url: str
) -> None:
    handle = app.broken.send("").unwrap()
    (task,) = hands.run_next()
    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        _greeted(line, _identity(database_url, hands), _call(1, task))
        assert isinstance(line.hear(), protocol.Outcome)

        line.hang_up()

    stored = row(db, handle)
    assert (stored["status"], stored["retry_count"], stored["crash_count"]) == ("PENDING", 1, 0)


def test_a_task_that_has_changed_hands_is_not_touched(
    app: Any, workplace: Workplace, hands: Hands, db: Db, database_url: str
) -> None:
    gate = workplace.folder / "open"
    gate.touch()
    handles = [app.plain.send(str(path)).unwrap() for path in (gate, workplace.folder / "never")]
    ended, unbegun = hands.run_next()
    other = Hands(database_url)
    with child(settings_for(workplace, max_tasks=1), ChildKind.SERIAL) as line:
        _greeted(line, _identity(database_url, hands), _call(1, ended), _call(2, unbegun))
        assert isinstance(line.hear(), protocol.Outcome)
        hands.release()
        assert len(other.run_next()) == 2
        before = [row(db, handle) for handle in handles]

        line.hang_up()

    assert [row(db, handle) for handle in handles] == before
    other.release()
    other.close()


def test_a_child_that_was_dismissed_leaves_everything_to_its_worker(
    app: Any, workplace: Workplace, hands: Hands, db: Db, database_url: str
) -> None:
    gate = workplace.folder / "open"
    gate.touch()
    handle = app.plain.send(str(gate)).unwrap()
    (task,) = hands.run_next()
    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        _greeted(line, _identity(database_url, hands), _call(1, task))
        assert isinstance(line.hear(), protocol.Outcome)

        line.say(protocol.Exit())
        line.hang_up()

    assert row(db, handle)["status"] == "RUNNING"
    assert hands.complete([task]) == 1


def test_without_a_database_to_reach_a_child_ends_all_the_same(
    app: Any, workplace: Workplace, hands: Hands, db: Db
) -> None:
    gate = workplace.folder / "open"
    gate.touch()
    handle = app.plain.send(str(gate)).unwrap()
    (task,) = hands.run_next()
    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        _greeted(line, _identity("postgresql://nobody@127.0.0.1:1/nowhere", hands), _call(1, task))
        assert isinstance(line.hear(), protocol.Outcome)

        line.hang_up()

    assert row(db, handle)["status"] == "RUNNING"
    assert hands.complete([task]) == 1
