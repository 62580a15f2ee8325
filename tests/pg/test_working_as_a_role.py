"""Workers and producers run, from start to stop, with the rights of their roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from horsies import Horsies, PostgresConfig, RetentionConfig, TaskResult, WorkflowStatus
from horsies.db.connection import connect
from horsies.db.queries import retention
from horsies.worker.retention import sweep
from tests.pg.conftest import new_apps
from tests.pg.house import House, new_house
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig(
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[
        CustomQueueConfig(name="capped", max_concurrency=1),
        CustomQueueConfig(name="free", max_concurrency=None),
    ],
    cluster_wide_cap=4,
    claim_lease_ms=2_000,
    recovery=RecoveryConfig(
        worker_state_snapshot_interval_ms=1_000, runner_heartbeat_interval_ms=1_000, check_interval_ms=1_000
    ),
    retention=RetentionConfig(retention_sweep_interval_s=1, worker_state_retention_hours=1),
))

@app.task("add", queue_name="free")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("capped", queue_name="capped")
async def capped(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

@app.task("rated", queue_name="free", rate_limit="3000/m")
def rated(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

@app.task("flaky", queue_name="free", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["DOWN"], jitter=False))
def flaky(path: str) -> TaskResult[str, TaskError]:
    if not Path(path).exists():
        Path(path).touch()
        return TaskResult(err=TaskError(error_code="DOWN", message="not yet"))
    return TaskResult(ok="up")

@app.task("order", queue_name="free")
def order(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=add.send(x, x).unwrap().get(20_000).ok_value)

@app.task("long", queue_name="free")
def long(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.01)
    return TaskResult(ok=1)
"""


@pytest.fixture(scope="module")
def house(role_maker: str) -> Iterator[House]:
    yield from new_house(role_maker)


@pytest.fixture
def place(house: House, tmp_path: Path) -> Iterator[Workplace]:
    """Workers that log in as workers, and here a producer that logs in as one."""
    with Workplace(tmp_path, house.url("worker")) as place:
        place.database_url = house.url("producer")
        yield place


def test_a_worker_does_all_its_work_with_a_workers_rights(
    place: Workplace, house: House, tmp_path: Path
) -> None:
    place.write(APP)
    left_behind = leave_work_behind(house)
    worker = place.start("--processes=3")
    tasks = place.load()
    gate = tmp_path / "gate"

    long = tasks.long.send(str(gate)).unwrap()
    handles = [
        tasks.add.send(2, 3).unwrap(),
        tasks.flaky.send(str(tmp_path / "flaky")).unwrap(),
        tasks.order.send(4).unwrap(),
        *(tasks.capped.send(x).unwrap() for x in range(3)),
        *(tasks.rated.send(x).unwrap() for x in range(3)),
    ]

    assert [handle.get(30_000).ok_value for handle in handles] == [5, "up", 8, 0, 1, 2, 0, 1, 2]
    with house.owner() as owner:
        for table, column, value in (
            ("horsies_heartbeats", "task_id", long.task_id),
            ("horsies_attempts", "task_id", handles[1].task_id),
            ("horsies_in_flight", "queue_name", "capped"),
            ("horsies_worker_states", "state", "busy"),
        ):
            query = f"SELECT FROM {table} WHERE {column} = %s".encode()
            eventually(lambda: owner.execute(query, (value,)).fetchone() is not None, what=table)  # noqa: B023
        gate.touch()
        assert long.get(20_000) == TaskResult(ok=1)
        assert tasks.app.handle(left_behind).get(30_000) == TaskResult(ok=7)
        eventually(
            lambda: (
                owner.execute("SELECT FROM horsies_worker_states WHERE hostname = 'gone'").fetchone() is None
            ),
            what="old states being forgotten",
        )
        last_day = owner.execute(
            "SELECT tableowner FROM pg_tables WHERE tablename ="
            " 'horsies_tasks_' || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD')"
        ).fetchone()
    assert last_day == (f"{house.prefix}owner",)
    assert worker.stop() == 0
    assert "permission" not in worker.log
    assert "Traceback" not in worker.log


def leave_work_behind(house: House) -> UUID:
    """A task in the hands of a worker that is dead, a state of that worker that is old, and a day not prepared."""
    with house.owner() as owner:
        owner.execute("TRUNCATE horsies_tasks, horsies_worker_states")
        owner.execute(
            "DO $$ BEGIN EXECUTE 'DROP TABLE IF EXISTS horsies_tasks_'"
            " || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD'); END $$"
        )
        owner.execute(
            "INSERT INTO horsies_worker_states (worker_id, snapshot_at, hostname, pid, state, processes, max_claim_batch,"
            " max_claim_per_worker, queues, queue_priorities, queue_max_concurrency, recovery_config, tasks_running,"
            " tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb, worker_started_at,"
            " current_task_ids) VALUES (gen_random_uuid(), now() - interval '1 day', 'gone', 1, 'idle', 1, 0, 0, '{}',"
            " '{}', '{}', '{}', 0, 0, 0, 0, 0, 0, now(), '{}')"
        )
        row = owner.execute(
            "WITH dead AS (INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)"
            "              VALUES (gen_random_uuid(), 'gone', 1, 1, '{free}', now() - interval '1 hour')"
            "              RETURNING worker_id)"
            " INSERT INTO horsies_tasks (task_name, kwargs, queue_name, status, claim_seq, claimed_by_worker_id)"
            " SELECT 'add', '{\"x\": 3, \"y\": 4}', 'free', 'CLAIMED', 1, worker_id FROM dead RETURNING id"
        ).fetchone()
    assert row is not None
    return row[0]


FLOWS = """
app = Horsies(AppConfig(
    claim_lease_ms=2_000,
    recovery=RecoveryConfig(check_interval_ms=1_000),
    schedule=ScheduleConfig(schedules=[
        TaskSchedule(name="often", task_name="one", pattern=IntervalSchedule(seconds=1)),
    ]),
))

@app.task("one")
def one() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("numbers")
def numbers() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[1, 2, 3])

@app.task("double")
def double(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)

@app.task("total")
def total(doubled: TaskResult[list[int], TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(doubled.unwrap()))

@app.task("starts")
def starts() -> TaskResult[int, TaskError]:
    return TaskResult(ok=whole(signalled=False).start().unwrap().get(20_000).ok_value)

@app.task("breaks_once")
def breaks_once(path: str) -> TaskResult[int, TaskError]:
    if not Path(path).exists():
        Path(path).touch()
        return TaskResult(err=TaskError(error_code="BROKEN", message="not yet"))
    return TaskResult(ok=1)

class Part(WorkflowDefinition[int]):
    name = "part"
    definition_key = "roles.part"
    only = one.node()()
    class Meta:
        output = "only"

class Built(WorkflowDefinition[int]):
    name = "built"
    definition_key = "roles.built"
    @classmethod
    def build_with(cls, app, *, size: TaskResult[int, TaskError]):
        nodes = [one.node(node_id=f"n{n}")() for n in range(size.unwrap())]
        return app.workflow("built", nodes, output=nodes[-1], definition_key="roles.built")

def whole(signalled):
    first = [signal_node("go", node_id="go")] if signalled else [sleep_node(0.1, node_id="nap")]
    listed = numbers.node(node_id="listed", waits_for=first)()
    mapped = map_node(double, over=listed, node_id="mapped")
    summed = total.node(node_id="summed")(doubled=from_node(mapped))
    part = SubWorkflowNode(Part, node_id="part", waits_for=[summed])
    built = SubWorkflowNode(Built, node_id="built", waits_for=[part], args_from={"size": part})
    return app.workflow(
        "whole", [*first, listed, mapped, summed, part, built], output=summed, definition_key="roles.whole",
        deadline_seconds=600,
    )
"""


@pytest.fixture
def make_app(house: House) -> Iterator[Callable[..., Horsies]]:
    yield from new_apps(house.owner_url)


def test_every_role_does_its_part_in_a_workflow(
    place: Workplace, house: House, tmp_path: Path, make_app: Callable[..., Horsies]
) -> None:
    place.write(FLOWS.replace("roles.", f"{uuid4().hex}."))  # definitions are known in the whole process
    worker = place.start("--processes=2")
    producer = place.load()
    operator, viewer = make_app(url=house.url("operator")), make_app(url=house.url("viewer"))

    handle = producer.whole(signalled=True).start().unwrap()
    steered = operator.workflow_handle(handle.workflow_id)
    assert steered.pause().unwrap()
    assert viewer.workflow_handle(handle.workflow_id).status().unwrap() is WorkflowStatus.PAUSED
    assert steered.resume().unwrap()
    assert handle.signal("go", None).is_err()
    assert steered.signal("go", None).unwrap()
    assert handle.get(30_000) == TaskResult(ok=12)

    started = producer.starts.send().unwrap()
    assert started.get(30_000) == TaskResult(ok=12)

    fails = producer.breaks_once.node(node_id="fails")(path=str(tmp_path / "broken"))
    broken = producer.app.workflow("broken", [fails], definition_key="roles.broken").start().unwrap()
    assert broken.get(30_000).is_err()
    assert operator.workflow_handle(broken.workflow_id).retry_failed().unwrap()
    eventually(lambda: broken.status().unwrap() is WorkflowStatus.COMPLETED, what="the second try")

    waits = producer.whole(signalled=True).start().unwrap()
    assert waits.cancel().is_err()
    assert operator.workflow_handle(waits.workflow_id).cancel().is_ok()
    assert waits.status().unwrap() is WorkflowStatus.CANCELLED
    assert worker.stop() == 0
    assert "permission" not in worker.log
    assert "Traceback" not in worker.log


def test_a_scheduler_sends_and_starts_with_a_schedulers_rights(place: Workplace, house: House) -> None:
    place.write(FLOWS.replace("roles.", f"{uuid4().hex}."))  # definitions are known in the whole process
    worker = place.start("--processes=1")
    place.env["HORSIES_DATABASE_URL"] = house.url("scheduler")
    scheduler = place.start(command="scheduler")
    place.database_url = house.url("scheduler")
    by_scheduler = place.load()

    with house.owner() as owner:
        query = "SELECT FROM horsies_tasks WHERE task_name = 'one' AND status = 'COMPLETED'"
        eventually(
            lambda: owner.execute(query.encode()).fetchone() is not None, what="a task of the schedule"
        )
    assert by_scheduler.whole(signalled=False).start().unwrap().get(30_000) == TaskResult(ok=12)

    assert scheduler.stop() == 0
    assert worker.stop() == 0
    assert "permission" not in worker.log + scheduler.log
    assert "Traceback" not in worker.log + scheduler.log


def test_a_sweep_and_a_count_need_no_more_than_a_workers_rights(house: House) -> None:
    with house.owner() as owner:
        owner.execute("TRUNCATE horsies_tasks, horsies_actions")
        owner.execute(
            "INSERT INTO horsies_tasks (task_name, live, status, result, terminal_at)"
            " SELECT 'add', false, 'COMPLETED', '{}', now() - make_interval(hours => hours)"
            "   FROM unnest(ARRAY[0, 2, 5]) AS hours"
        )
        owner.execute(
            "INSERT INTO horsies_actions (actor, action, subject, acted_at)"
            " SELECT 'ann', 'cancel', 'all', now() - make_interval(days => days) FROM unnest(ARRAY[1, 8]) AS days"
        )

    async def work() -> None:
        async with await connect(
            PostgresConfig(database_url=house.url("worker")), session=True
        ) as connection:
            await sweep(
                connection, RetentionConfig(terminal_record_retention_hours=4, result_retention_hours=1)
            )
            await retention.roll_up(connection)

    asyncio.run(work())

    with house.owner() as owner:
        kept = owner.execute("SELECT result IS NULL FROM horsies_tasks ORDER BY terminal_at").fetchall()
        actions = owner.execute("SELECT count(*) FROM horsies_actions").fetchone()
    assert kept == [(True,), (False,)]
    assert actions == (1,)


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_role_that_cannot_migrate_can_check(place: Workplace, house: House, role: str) -> None:
    place.write("app = Horsies()")
    place.env["HORSIES_DATABASE_URL"] = house.url(role)

    ran = [
        place.run(*words) for words in (["migrate"], ["migrate", "--check"], ["check", "app:app", "--live"])
    ]

    assert [each.returncode for each in ran] == [0, 0, 0], [each.stderr for each in ran]
