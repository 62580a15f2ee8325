"""A role that owns one schema and nothing else, as managed services give it out, is enough for everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from horsies.web import create_dashboard
from tests.e2e.office import URL
from tests.support.waiting import eventually
from tests.support.workers import Workplace
from tests.web.conftest import calls, get, post

Db = psycopg.Connection[dict[str, Any]]

APP = (
    URL
    + """
app = Horsies(AppConfig(
    broker=PostgresConfig(database_url=URL, schema="jobs"),
    claim_lease_ms=2_000,
    cluster_wide_cap=4,
    recovery=RecoveryConfig(
        worker_state_snapshot_interval_ms=1_000, runner_heartbeat_interval_ms=1_000, check_interval_ms=1_000
    ),
    retention=RetentionConfig(retention_sweep_interval_s=1, terminal_record_retention_hours=24),
    schedule=ScheduleConfig(schedules=[
        TaskSchedule(name="tick", task_name="add", pattern=IntervalSchedule(seconds=1), kwargs={"x": 1}),
    ]),
))

@app.task("add")
def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("refuse")
def refuse() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="CLOSED", message="closed"))
"""
)


@pytest.fixture
def admin(empty_database_url: str) -> Iterator[Db]:
    """A superuser's session, which the managed role may not look into."""
    with psycopg.connect(empty_database_url, autocommit=True, row_factory=dict_row) as session:
        yield session


@pytest.fixture
def managed_url(server_url: str, empty_database_url: str, admin: Db) -> Iterator[str]:
    name = f"managed_{uuid4().hex[:12]}"
    role, database = sql.Identifier(name), sql.Identifier(empty_database_url.rpartition("/")[2])
    statements = [
        sql.SQL(
            "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS PASSWORD 's3cret'"
        ).format(role),
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, role),
        sql.SQL("REVOKE ALL ON SCHEMA public FROM PUBLIC"),
        sql.SQL("CREATE SCHEMA jobs AUTHORIZATION {}").format(role),
    ]
    for statement in statements:
        admin.execute(statement)
    yield f"postgresql://{name}:s3cret@{empty_database_url.rpartition('@')[2]}"
    admin.execute("DROP SCHEMA jobs CASCADE")
    admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
    admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def place(tmp_path: Path, managed_url: str) -> Iterator[Workplace]:
    with Workplace(tmp_path, managed_url) as place:
        place.write(APP)
        yield place


def test_migrate_worker_scheduler_and_retention_work(place: Workplace, admin: Db) -> None:
    migrated = place.run("migrate", "--app", "app:app")
    assert migrated.returncode == 0, migrated.stderr
    worker = place.start("--processes=1", "--with-scheduler")
    tasks = place.load()
    admin.execute("SET search_path = jobs")

    handles = [tasks.add.send(1, 2).unwrap(), *tasks.add.send_many([(n,) for n in range(1_001)]).unwrap()]
    assert handles[0].get(20_000).ok_value == 3
    assert tasks.refuse.send().unwrap().get(20_000).err_value.error_code == "CLOSED"
    assert handles[-1].get(60_000).ok_value == 1_000
    scheduled = "SELECT FROM horsies_tasks WHERE kwargs = '{\"x\":1}' AND status = 'COMPLETED'"
    eventually(lambda: admin.execute(scheduled).rowcount > 1, 30, "two runs of the schedule")

    old = "SELECT FROM pg_class WHERE relname = 'horsies_tasks_20200101' AND relnamespace = 'jobs'::regnamespace"
    admin.execute(
        "CREATE TABLE horsies_tasks_20200101 PARTITION OF horsies_tasks_history"
        " FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
    )
    owner = admin.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'horsies_tasks'").fetchone()
    assert owner is not None
    admin.execute(
        sql.SQL("ALTER TABLE horsies_tasks_20200101 OWNER TO {}").format(sql.Identifier(owner["tableowner"]))
    )
    eventually(lambda: admin.execute(old).rowcount == 0, 30, "the old day of history being dropped")
    rollups = "SELECT FROM horsies_rollups"
    eventually(lambda: admin.execute(rollups).rowcount > 0, 90, "the first minute being counted")
    assert worker.stop() == 0, worker.log
    assert "permission denied" not in worker.log
    assert "Traceback" not in worker.log


def test_the_doctor_says_what_it_may_not_see(place: Workplace, admin: Db) -> None:
    place.run("migrate", "--app", "app:app")

    told = place.run("doctor", "--app", "app:app", "--json")

    assert told.returncode == 0, told.stdout + told.stderr
    found = {each["check"]: each for each in json.loads(told.stdout)["findings"]}
    assert "pg_read_all_stats" in found["hidden_sessions"]["remedy"]
    assert "could not be checked" not in told.stdout


def test_pages_actions_and_commands_work(place: Workplace, admin: Db) -> None:
    tasks = place.load()
    task_id = tasks.add.send(1).unwrap().task_id

    answers = calls(
        create_dashboard(tasks.app, enable_actions=True),
        *(
            get(path)
            for path in (
                "/",
                "/tasks",
                f"/tasks/{task_id}",
                "/queues",
                "/workers",
                "/workflows",
                "/schedules",
                "/metrics",
            )
        ),
        post(f"/api/tasks/{task_id}/cancel"),
    )

    assert [answer.status_code for answer in answers] == [200] * 9
    for words in (
        ["info"],
        ["tasks"],
        ["failed"],
        ["schedules", "list"],
        ["events", "--since", "1h"],
    ):
        told = place.run(*words, "--app", "app:app")
        assert told.returncode == 0, (words, told.stderr)


def test_the_role_is_told_that_it_may_not_make_roles_or_another_schema(
    place: Workplace, managed_url: str
) -> None:
    place.run("migrate", "--app", "app:app")
    roles = place.run("migrate", "--app", "app:app", "--roles").stdout
    with (
        psycopg.connect(managed_url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="role"),
    ):
        connection.execute(roles.encode())

    place.env["HORSIES_SCHEMA"] = "other"
    refused = place.run("migrate", "--database-url", managed_url)

    assert refused.returncode == 1
    assert 'CREATE SCHEMA "other" AUTHORIZATION "managed_' in refused.stderr
