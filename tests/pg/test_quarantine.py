"""Rows that cannot be processed are parked with what belongs to them, and with nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest

from horsies import (
    Horsies,
    PostgresConfig,
    TaskError,
    TaskResult,
    WorkflowHandle,
    WorkflowStatus,
    quarantine,
    sleep_node,
)
from horsies.db.connection import Connection, connect_worker
from horsies.db.queries import tasks, workers, workflows
from horsies.db.queries.tasks import Claimed, ClaimRequest, Completed, ConcurrencyCap, Lane, PoolRoom
from horsies.task import Task
from horsies.worker.claim import NO_LIMIT, START
from horsies.workflow import settle
from tests.pg.players import OK, Player
from tests.support.waiting import eventually

pytestmark = pytest.mark.breaks_invariants

Db = psycopg.Connection[dict[str, Any]]
T = TypeVar("T")
Run = Callable[[Callable[[Connection], Awaitable[T]]], T]
WORKER = uuid4()
TOO_HIGH = 2**31 - 1


@pytest.fixture
def run(database_url: str) -> Run[Any]:
    """Run something over a connection as a worker has it."""

    def over(work: Callable[[Connection], Awaitable[Any]]) -> Any:
        async def go() -> Any:
            async with await connect_worker(PostgresConfig(database_url=database_url), "test") as connection:
                return await work(connection)

        return asyncio.run(go())

    return over


@pytest.fixture
def one(app: Horsies) -> Task[..., int]:
    @app.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    return one


def pair(app: Horsies, one: Any) -> WorkflowHandle[Any]:
    """Start a workflow of two nodes, one after the other."""
    first = one.node(node_id="first")()
    return (
        app.workflow("pair", [first, one.node(node_id="second", waits_for=[first])()], definition_key="pair")
        .start()
        .unwrap()
    )


def ended(one: Any, player: Player) -> str:
    """Run a task to its end; its id is taken from then on."""
    handle = one.send().unwrap()
    player.complete(player.claim(), limit=0)
    return handle.task_id


def ask(*, caps: tuple[ConcurrencyCap, ...] = (), limit: int = 10) -> ClaimRequest:
    lines = [Lane(0, "default", False, "", limit, *START)]
    rooms = [PoolRoom(0, limit, limit, [7] * limit)]
    return ClaimRequest(lines, rooms, [*caps], [], limit, NO_LIMIT, WORKER, "host", "test")


def done(claimed: list[Claimed]) -> list[Completed]:
    return [Completed(task.id, task.claim_seq, OK, task.node) for task in claimed]


def test_hundreds_of_sleeps_that_are_over_at_once_all_end(app: Horsies, player: Player) -> None:
    nodes = [sleep_node(0.001, node_id=f"sleep-{n}") for n in range(600)]
    handle = app.workflow("naps", nodes, definition_key="naps").start().unwrap()

    def over() -> bool:
        player.fire()
        return handle.status().unwrap() is WorkflowStatus.COMPLETED

    eventually(over, what="the workflow completing")


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_step_within_a_cap_is_taken_on_a_connection_without_prepared_statements(
    app: Horsies, one: Any, run: Run[Any], db: Db, rolled_back: bool
) -> None:
    db.execute(
        "INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)"
        " VALUES (%s, 'host', 1, 1, '{default}', now() + interval '1 hour')",
        (WORKER,),
    )
    pair(app, one)
    cap = ConcurrencyCap("default", 5, 1, 0)

    async def two_steps(connection: Connection) -> list[Claimed]:
        _, claimed, *_ = await tasks.settle_and_claim(
            connection, [], ask(caps=(cap,)) if rolled_back else ask()
        )
        if rolled_back:
            async with connection.transaction(force_rollback=True):
                await connection.execute("SELECT 1")
        return (await settle.settle_and_claim(connection, done(claimed), [], ask(caps=(cap,)))).claimed

    assert len(run(two_steps)) == 1


def test_parking_a_workflow_cancels_no_task_that_is_not_its_own(
    app: Horsies, one: Any, run: Run[Any], db: Db
) -> None:
    victim = one.send().unwrap()
    flow = pair(app, one)
    db.execute(
        "UPDATE horsies_workflow_tasks SET task_id = %s WHERE workflow_id = %s AND node_id = 'second'",
        (victim.task_id, flow.workflow_id),
    )

    run(lambda connection: quarantine.fail_workflow(connection, str(flow.workflow_id), "malformed"))

    assert flow.status().unwrap() is WorkflowStatus.FAILED
    row = db.execute("SELECT status FROM horsies_tasks WHERE id = %s", (victim.task_id,)).fetchone()
    assert row == {"status": "PENDING"}


def test_a_bad_row_fails_no_workflow_that_it_only_names(
    app: Horsies, one: Any, player: Player, run: Run[Any], db: Db
) -> None:
    twin = ended(one, player)
    victim = pair(app, one)
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = 'tomorrow'")
    db.execute(
        "INSERT INTO horsies_tasks_live (id, task_name, kwargs, workflow_id, workflow_index) VALUES (%s, 'one', '{}', %s, 0)",
        (twin, victim.workflow_id),
    )

    async def settle(connection: Connection) -> None:
        _, claimed, *_ = await tasks.settle_and_claim(connection, [], ask())
        await quarantine.settle(connection, done(claimed), [], WORKER)

    run(settle)

    row = db.execute("SELECT status, error_code FROM horsies_tasks_live WHERE id = %s", (twin,)).fetchone()
    assert row == {"status": "FAILED", "error_code": "POISONED_ROW"}
    assert victim.status().unwrap() is WorkflowStatus.RUNNING


@pytest.mark.parametrize("way", ["claim", "release"])
def test_a_task_that_is_parked_fails_its_node(
    app: Horsies, one: Any, run: Run[Any], db: Db, way: str
) -> None:
    flow = pair(app, one)
    db.execute("UPDATE horsies_tasks_live SET claim_seq = %s", (TOO_HIGH - (way == "release"),))

    async def park(connection: Connection) -> None:
        if way == "claim":
            await quarantine.park_unclaimable(connection, ask().lanes, WORKER)
        else:
            await tasks.settle_and_claim(connection, [], ask())
            await quarantine.release_apart(connection, WORKER, [])

    run(park)

    assert flow.status().unwrap() is WorkflowStatus.FAILED
    assert flow.get(timeout_ms=0).unwrap_err().error_code == "POISONED_ROW"


@pytest.mark.parametrize("pids", [[7], []], ids=["running", "claimed"])
def test_a_task_whose_inputs_cannot_be_read_is_parked_and_others_are_kept(
    app: Horsies, one: Any, player: Player, run: Run[Any], db: Db, pids: list[int]
) -> None:
    @app.task("take")
    def take(x: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
        return x

    first = one.node(node_id="first")()
    second = take.node(node_id="second", args_from={"x": first}, waits_for=[first])()
    flow = app.workflow("fed", [first, second], definition_key="fed").start().unwrap()
    player.complete(player.claim(), limit=0)
    db.execute(
        "UPDATE horsies_workflow_tasks SET result = 'no JSON' WHERE workflow_id = %s AND node_id = 'first'",
        (flow.workflow_id,),
    )
    healthy = one.send().unwrap()

    async def claim(connection: Connection) -> list[Claimed]:
        wanted = ask()._replace(pools=[PoolRoom(0, 10, len(pids), pids * 10)])
        _, claimed, *_ = await tasks.settle_and_claim(connection, [], wanted)
        with pytest.raises(psycopg.DataError):
            await workflows.load_inputs(connection, claimed)
        return await quarantine.load_inputs_apart(connection, claimed, WORKER)

    assert [task.id for task in run(claim)] == [healthy.task_id]
    assert flow.status().unwrap() is WorkflowStatus.FAILED


def test_calls_that_were_not_begun_go_back_although_one_of_them_cannot(
    one: Any, run: Run[Any], db: Db
) -> None:
    good, bad = one.send().unwrap(), one.send().unwrap()
    db.execute("UPDATE horsies_tasks_live SET claim_seq = %s WHERE id = %s", (TOO_HIGH - 1, bad.task_id))

    async def give_back(connection: Connection) -> int:
        _, claimed, *_ = await tasks.settle_and_claim(connection, [], ask())
        return await quarantine.give_back(connection, [(task.id, task.claim_seq) for task in claimed], WORKER)

    assert run(give_back) == 2
    rows = db.execute("SELECT id, status FROM horsies_tasks").fetchall()
    assert {row["id"]: row["status"] for row in rows} == {
        UUID(good.task_id): "PENDING",
        UUID(bad.task_id): "FAILED",
    }


def test_unknown_tasks_are_left_to_others_although_one_of_them_cannot(
    one: Any, run: Run[Any], db: Db
) -> None:
    good, bad = one.send().unwrap(), one.send().unwrap()
    db.execute("UPDATE horsies_tasks_live SET claim_seq = %s WHERE id = %s", (TOO_HIGH - 1, bad.task_id))

    async def defer_unknown(connection: Connection) -> set[str]:
        _, claimed, *_ = await tasks.settle_and_claim(connection, [], ask())
        return set(await quarantine.defer_unknown(connection, claimed, 60, WORKER))

    assert run(defer_unknown) == {good.task_id, bad.task_id}
    row = db.execute("SELECT status, error_code FROM horsies_tasks WHERE id = %s", (bad.task_id,)).fetchone()
    assert row == {"status": "FAILED", "error_code": "POISONED_ROW"}


def test_a_workflow_that_cannot_be_parked_either_raises_nothing(
    app: Horsies, one: Any, run: Run[Any], db: Db
) -> None:
    flow = pair(app, one)
    db.execute("ALTER TABLE horsies_workflows ADD CHECK (status <> 'FAILED')")

    run(lambda connection: quarantine.fail_workflow(connection, str(flow.workflow_id), "malformed"))

    assert flow.status().unwrap() is WorkflowStatus.RUNNING


def test_sends_that_are_open_are_those_that_were_when_it_was_first_asked(
    database_url: str, run: Run[Any]
) -> None:
    with (
        psycopg.connect(database_url) as unrelated,
        psycopg.connect(database_url) as sender,
        psycopg.connect(database_url) as later,
    ):
        unrelated.execute("SELECT pg_current_xact_id()")  # an old transaction that writes elsewhere
        sender.execute("INSERT INTO horsies_tasks_live (task_name) VALUES ('one')")

        first = run(lambda connection: workers.open_sends(connection, None))
        assert len(first) == 1
        later.execute("INSERT INTO horsies_tasks_live (task_name) VALUES ('one')")
        assert run(lambda connection: workers.open_sends(connection, first)) == first
        sender.commit()

        assert run(lambda connection: workers.open_sends(connection, first)) == []
        assert len(run(lambda connection: workers.open_sends(connection, None))) == 1
