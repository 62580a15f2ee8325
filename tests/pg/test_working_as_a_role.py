"""Workers and producers run, from start to stop, with the rights of their roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from horsies import TaskResult
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
def house(server_url: str) -> Iterator[House]:
    yield from new_house(server_url)


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


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_role_that_cannot_migrate_can_check(place: Workplace, house: House, role: str) -> None:
    place.write("app = Horsies()")
    place.env["HORSIES_DATABASE_URL"] = house.url(role)

    ran = [
        place.run(*words) for words in (["migrate"], ["migrate", "--check"], ["check", "app:app", "--live"])
    ]

    assert [each.returncode for each in ran] == [0, 0, 0], [each.stderr for each in ran]
