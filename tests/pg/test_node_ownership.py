"""A node of a workflow is moved on by its own task, and by no other task that names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from horsies import (
    Horsies,
    PostgresConfig,
    TaskError,
    TaskResult,
    WorkflowStatus,
    cancellation,
    from_node,
    signal_node,
)
from horsies.db.connection import connect_worker
from horsies.db.queries import tasks, workflows
from horsies.db.queries.tasks import Claimed
from horsies.task import Task
from horsies.workflow import control, settle
from tests.pg.house import House, new_house
from tests.pg.players import Player
from tests.support.workers import Workplace

Db = psycopg.Connection[dict[str, Any]]
FORGE = (
    "INSERT INTO horsies_tasks (task_name, kwargs, workflow_id, workflow_index, good_until)"
    " VALUES (%s, '{}', %s, %s, %s) RETURNING id"
)

APP = """
app = Horsies(AppConfig())

@app.task("noop")
def noop() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("pay")
def pay(path: str) -> TaskResult[int, TaskError]:
    Path(path).touch()
    return TaskResult(ok=1)
"""


# A real worker, and a producer who writes SQL


@pytest.fixture(scope="module")
def house(server_url: str) -> Iterator[House]:
    yield from new_house(server_url)


@pytest.fixture
def place(house: House, tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(tmp_path, house.url("worker")) as place:
        place.database_url = house.url("producer")
        yield place


@pytest.mark.parametrize("forger", ["producer", "owner"])
def test_nobody_approves_a_payment_by_inserting_a_task(
    place: Workplace, house: House, tmp_path: Path, forger: str
) -> None:
    place.write(APP)
    worker = place.start("--processes=1")
    shop, paid = place.load(), tmp_path / "paid"
    approval = signal_node("approved", node_id="approval")
    payment = shop.pay.node(node_id="payment", waits_for=[approval])(path=str(paid))
    handle = shop.app.workflow("order", [approval, payment], definition_key="order").start().unwrap()

    try:
        with house.connect(forger) if forger == "producer" else house.owner() as connection:
            row = connection.execute(FORGE, ("noop", handle.workflow_id, 0, None)).fetchone()
            assert row is not None
        assert shop.app.handle(row[0]).get(20_000) == TaskResult(ok=1)
        forged = True
    except errors.InsufficientPrivilege:
        forged = False
    # What the forged end has sent would be claimed before this one.
    assert shop.noop.send().unwrap().get(20_000) == TaskResult(ok=1)

    assert not paid.exists()
    assert handle.status().unwrap() is WorkflowStatus.RUNNING
    assert forged == (forger == "owner")
    assert worker.stop() == 0
    assert ("is not the task of node 0" in worker.log) == forged
    assert "Traceback" not in worker.log


# Each way in which a task may end


@pytest.fixture
def pay(app: Horsies) -> Task[..., int]:
    @app.task("pay")
    def pay(x: TaskResult[int, TaskError] | None = None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    return pay


@pytest.fixture
def flow_id(app: Horsies, pay: Task[..., int]) -> str:
    """A workflow that waits for a signal before it pays, and refunds what it could not pay."""
    approval = signal_node("approved", node_id="approval")
    payment = pay.node(node_id="payment")(x=from_node(approval))
    refund = pay.node(node_id="refund", waits_for=[payment], allow_failed_deps=True)()
    spec = app.workflow("order", [approval, payment, refund], definition_key="order")
    return spec.start().unwrap().workflow_id


def forge(db: Db, flow_id: str, index: int = 0, good_until: str | None = None) -> UUID:
    row = db.execute(FORGE, ("pay", flow_id, index, good_until)).fetchone()
    assert row is not None
    return row["id"]


def ended(db: Db, task_id: UUID) -> str | None:
    row = db.execute("SELECT status FROM horsies_tasks WHERE id = %s AND NOT live", (task_id,)).fetchone()
    return None if row is None else row["status"]


def nodes(db: Db, flow_id: str) -> list[str]:
    rows = db.execute(
        "SELECT status FROM horsies_workflow_tasks WHERE workflow_id = %s ORDER BY task_index", (flow_id,)
    ).fetchall()
    return [row["status"] for row in rows]


UNTOUCHED = ["RUNNING", "PENDING", "PENDING"]


def over(url: str, work: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        async with await connect_worker(PostgresConfig(database_url=url), "test") as connection:
            return await work(connection)

    return asyncio.run(run())


@pytest.mark.parametrize("index", [0, 1, 2, 7, None])
def test_a_foreign_task_that_returns_leaves_the_workflow_alone(
    db: Db, flow_id: str, hire_player: Callable[..., Player], index: int | None
) -> None:
    player = hire_player()
    task_id = forge(db, flow_id, index) if index is not None else forge(db, str(uuid4()))

    assert player.complete(player.claim()) == []

    assert ended(db, task_id) == "COMPLETED"
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_is_written_once_beside_the_real_one(
    app: Horsies, db: Db, pay: Task[..., int], hire_player: Callable[..., Player]
) -> None:
    """A batch holds the end of a node's task and the end of a task that names the node behind it."""
    first = pay.node(node_id="first")()
    second = pay.node(node_id="second", waits_for=[first])()
    handle = app.workflow("two", [first, second], definition_key="two").start().unwrap()
    task_id, player = forge(db, handle.workflow_id, 1), hire_player()

    following = player.complete(player.claim())

    assert ended(db, task_id) == "COMPLETED"
    assert nodes(db, handle.workflow_id) == ["COMPLETED", "ENQUEUED"]
    player.complete(following)
    assert handle.status().unwrap() is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("delay", [None, 60.0])
def test_a_foreign_task_that_fails_leaves_the_workflow_alone(
    db: Db, flow_id: str, hire_player: Callable[..., Player], delay: float | None
) -> None:
    player, task_id = hire_player(), forge(db, flow_id)

    player.fail(player.claim(), delay)

    assert ended(db, task_id) == ("FAILED" if delay is None else None)
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_is_settled_by_the_rare_path_too(
    database_url: str, db: Db, flow_id: str, hire_player: Callable[..., Player]
) -> None:
    task_id = forge(db, flow_id)
    (claimed,) = hire_player().claim()
    done = [tasks.Completed(claimed.id, claimed.claim_seq, '{"ok":1}', claimed.node)]

    async def store(connection: Any) -> None:
        async with connection.transaction():
            await settle.settle(connection, done, [], None)

    over(database_url, store)

    assert ended(db, task_id) == "COMPLETED"
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_that_is_cancelled_leaves_the_workflow_alone(
    database_url: str, db: Db, flow_id: str
) -> None:
    task_id = forge(db, flow_id)

    (done,) = over(database_url, lambda connection: cancellation.cancel(connection, [task_id]))

    assert done.cancelled
    assert ended(db, task_id) == "CANCELLED"
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_that_is_stopped_leaves_the_workflow_alone(
    database_url: str, db: Db, flow_id: str, hire_player: Callable[..., Player]
) -> None:
    player, task_id = hire_player(), forge(db, flow_id)
    claimed = player.claim()
    over(database_url, lambda connection: cancellation.cancel(connection, [task_id]))

    player.stop(claimed)

    assert ended(db, task_id) == "CANCELLED"
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_that_expires_leaves_the_workflow_alone(
    database_url: str, db: Db, flow_id: str
) -> None:
    task_id = forge(db, flow_id, good_until="2020-01-01")

    (expired,) = over(database_url, lambda connection: control.expire(connection, uuid4(), "{}"))

    assert expired.id == str(task_id)
    assert ended(db, task_id) == "EXPIRED"
    assert nodes(db, flow_id) == UNTOUCHED


def test_a_foreign_task_is_not_fed_with_the_results_of_a_workflow(
    database_url: str, db: Db, flow_id: str, hire_player: Callable[..., Player]
) -> None:
    over(
        database_url,
        lambda connection: control.signal(connection, UUID(flow_id), "approved", '{"ok":"secret"}'),
    )
    forged = forge(db, flow_id, 1)
    db.execute(
        "UPDATE horsies_tasks_live SET task_options = '{\"has_inputs\": true}' WHERE id = %s", (forged,)
    )

    claimed = hire_player().claim()
    fed: list[Claimed] = over(database_url, lambda connection: workflows.load_inputs(connection, claimed))

    inputs = {task.id: task.inputs for task in fed}
    assert inputs.pop(str(forged)) is None
    assert [text is not None and "secret" in text for text in inputs.values()] == [True]


def test_a_workflow_that_is_stopped_leaves_foreign_tasks_alone(
    app: Horsies, database_url: str, db: Db, pay: Task[..., int]
) -> None:
    """A node that names a task of somebody else, as only the owner can write it, has no power over the task."""
    theirs = pay.send().unwrap()
    first = pay.node(node_id="first")()
    handle = app.workflow("one", [first], definition_key="one").start().unwrap()
    flow_id = UUID(handle.workflow_id)
    db.execute("DELETE FROM horsies_tasks WHERE workflow_id = %s", (flow_id,))
    db.execute(
        "UPDATE horsies_workflow_tasks SET task_id = %s WHERE workflow_id = %s", (theirs.task_id, flow_id)
    )

    over(database_url, lambda connection: control.pause(connection, flow_id))
    over(database_url, lambda connection: control.cancel(connection, flow_id))

    row = db.execute(
        "SELECT status, enqueued_at <= now() AS due FROM horsies_tasks WHERE id = %s", (theirs.task_id,)
    ).fetchone()
    assert row == {"status": "PENDING", "due": True}
    db.execute("DELETE FROM horsies_workflows; DELETE FROM horsies_workflow_tasks")


def test_a_task_that_has_taken_the_id_of_a_node_to_come_does_not_hold_it_up(
    app: Horsies, db: Db, pay: Task[..., int], hire_player: Callable[..., Player]
) -> None:
    first = pay.node(node_id="first")()
    second = pay.node(node_id="second", waits_for=[first])()
    handle = app.workflow("two", [first, second], definition_key="two").start().unwrap()
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, enqueued_at)"
        " SELECT task_id, 'pay', '9999-01-01' FROM horsies_workflow_tasks WHERE task_index = 1"
    )
    player = hire_player()

    (following,) = player.complete(player.claim())
    player.complete([following], result='{"ok":5}')

    assert handle.status().unwrap() is WorkflowStatus.COMPLETED
    assert handle.result_for(second).ok_value == 5
