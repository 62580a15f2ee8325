"""What is old is let go of: finished tasks by their queue's time, whole days at once where nothing in them is kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig, RetentionConfig
from horsies.db.connection import connect
from horsies.db.queries.retention import Old, Plan, plan
from horsies.worker.retention import sweep

Db = psycopg.Connection[dict[str, Any]]
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OLD_DAY = (
    "DO $$ BEGIN EXECUTE format('CREATE TABLE %I PARTITION OF horsies_tasks_history FOR VALUES FROM (%L) TO (%L)',"
    " 'horsies_tasks_' || to_char(now() - interval '3 days', 'YYYYMMDD'),"
    " date_trunc('day', now() - interval '3 days', 'UTC'), date_trunc('day', now() - interval '2 days', 'UTC')); END $$"
)


def test_everything_is_kept_for_thirty_days_unless_said_otherwise() -> None:
    month_ago = NOW - 720 * HOUR

    assert plan(RetentionConfig(), NOW) == Plan(month_ago, [Old(month_ago, others=[])], month_ago, None)


def test_a_queue_may_have_a_time_of_its_own() -> None:
    config = RetentionConfig(terminal_record_retention_hours=10, queue_retention={"sms": timedelta(hours=3)})

    found = plan(config, NOW)

    assert found.days_before == found.records_before == NOW - 10 * HOUR
    assert found.tasks == [
        Old(NOW - 3 * HOUR, queue="sms"),
        Old(NOW - 10 * HOUR, others=["sms"]),
    ]


def test_a_finished_task_is_kept_for_an_hour_whatever_its_queue_says() -> None:
    config = RetentionConfig(queue_retention={"sms": timedelta(seconds=500)})

    assert plan(config, NOW).tasks[0] == Old(NOW - HOUR, queue="sms")


@pytest.mark.parametrize(
    "config",
    [
        RetentionConfig(terminal_record_retention_hours=None, queue_retention={"sms": HOUR}),
        RetentionConfig(terminal_record_retention_hours=10, queue_retention={"sms": None}),
    ],
    ids=["default", "queue"],
)
def test_no_day_is_dropped_while_something_is_kept_for_ever(config: RetentionConfig) -> None:
    assert plan(config, NOW).days_before is None
    assert len(plan(config, NOW).tasks) == 1


def _end(db: Db, hours_ago: float, queue: str = "default", count: int = 1) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, queue_name, live, status, result, terminal_at)"
        " SELECT 'add', %s, false, 'COMPLETED', '{\"ok\":1}', now() - make_interval(secs => %s * 3600)"
        "   FROM generate_series(1, %s)",
        (queue, hours_ago, count),
    )


def _sweep(url: str, **settings: Any) -> int:
    async def work() -> int:
        async with await connect(PostgresConfig(database_url=url)) as connection:
            return await sweep(connection, RetentionConfig(**settings))

    return asyncio.run(work())


def _ages(db: Db) -> list[tuple[str, int]]:
    query = (
        "SELECT queue_name, round(extract(epoch FROM now() - terminal_at) / 3600)::int AS hours"
        " FROM horsies_tasks ORDER BY hours, queue_name"
    )
    return [tuple(row.values()) for row in db.execute(query).fetchall()]


def test_finished_tasks_go_when_the_time_of_their_queue_is_over(db: Db, database_url: str) -> None:
    for hours in (1, 4, 30):
        for queue in ("default", "sms", "audit"):
            _end(db, hours, queue)

    _sweep(
        database_url,
        terminal_record_retention_hours=10,
        queue_retention={"sms": timedelta(hours=2), "audit": None},
    )

    assert _ages(db) == [
        ("audit", 1),
        ("default", 1),
        ("sms", 1),
        ("audit", 4),
        ("default", 4),
        ("audit", 30),
    ]


def test_work_that_has_not_ended_is_never_deleted(db: Db, database_url: str) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name, enqueued_at) VALUES ('add', now() - interval '1 year')")

    _sweep(database_url, terminal_record_retention_hours=1)

    assert len(db.execute("SELECT 1 FROM horsies_tasks").fetchall()) == 1


def test_batches_go_on_until_nothing_old_is_left(db: Db, database_url: str) -> None:
    _end(db, 5, count=25)

    assert _sweep(database_url, terminal_record_retention_hours=2, retention_delete_batch_size=10) == 25
    assert _ages(db) == []


def test_whole_days_are_dropped_and_not_deleted_from(db: Db, database_url: str) -> None:
    db.execute(
        "CREATE TABLE horsies_tasks_20200102 (LIKE horsies_tasks_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
    )
    db.execute("ALTER TABLE horsies_tasks_20200102 ADD PRIMARY KEY (id)")
    db.execute(
        "ALTER TABLE horsies_tasks_history ATTACH PARTITION horsies_tasks_20200102"
        " FOR VALUES FROM ('2020-01-02 00:00Z') TO ('2020-01-03 00:00Z')"
    )
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at)"
        " VALUES ('add', false, 'COMPLETED', '2020-01-02 12:00Z')"
    )

    assert _sweep(database_url) == 0

    assert db.execute("SELECT to_regclass('horsies_tasks_20200102') AS day").fetchall() == [{"day": None}]
    assert _ages(db) == []


def test_a_day_that_somebody_reads_is_left_for_the_next_time(db: Db, database_url: str) -> None:
    db.execute(OLD_DAY)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM horsies_tasks_history")
        row = db.execute("SELECT horsies_drop_history(now()) AS dropped").fetchone()
        assert row == {"dropped": 0}

    row = db.execute("SELECT horsies_drop_history(now()) AS dropped").fetchone()
    assert row == {"dropped": 1}


def test_today_and_the_days_to_come_are_never_dropped(db: Db) -> None:
    days = "SELECT relname FROM pg_class WHERE relname ~ '^horsies_tasks_[0-9]{8}$' ORDER BY relname"
    before = db.execute(days.encode()).fetchall()

    row = db.execute("SELECT horsies_drop_history('infinity') AS dropped").fetchone()

    assert row == {"dropped": 0}
    assert db.execute(days.encode()).fetchall() == before


# What each kind of row that `horsies_forget` deletes looks like, so many hours ago.
KINDS = {
    "attempts": "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, finished_at)"
    " VALUES (gen_random_uuid(), 1, 1, 'FAILED', {then})",
    "progress": "INSERT INTO horsies_progress (task_id, claim_seq, done, at) VALUES (gen_random_uuid(), 1, 1, {then})",
    "logs": "INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)"
    " VALUES (gen_random_uuid(), 1, 0, 1, {then}, 'INFO', 'l', 'm')",
    "keys": "INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha, created_at)"
    " VALUES (gen_random_uuid()::text, gen_random_uuid(), 's', {then})",
    "results": "INSERT INTO horsies_tasks (task_name, live, status, result, terminal_at)"
    " VALUES ('add', false, 'COMPLETED', '{{}}', {then})",
    "workflows": "INSERT INTO horsies_workflows (id, root_workflow_id, open_tasks, status, on_error, name,"
    " definition_key, completed_at) VALUES (gen_random_uuid(), gen_random_uuid(), 0, 'COMPLETED', 'FAIL', 'w', 'k', {then})",
    "heartbeats": "INSERT INTO horsies_heartbeats (task_id, sender_id, role, hostname, pid, sent_at)"
    " VALUES (gen_random_uuid(), gen_random_uuid(), 'runner', 'h', 1, {then})",
    "actions": "INSERT INTO horsies_actions (actor, action, subject, acted_at) VALUES ('a', 'b', 'c', {then})",
    "counts": "INSERT INTO horsies_depths (minute, queue_name, pending, scheduled, running) VALUES ({then}, 'q', 0, 0, 0)",
}
LEAST_HOURS = {"actions": 7 * 24, "counts": 48}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_young_is_kept_whatever_a_worker_asks_for(db: Db, kind: str) -> None:
    least = LEAST_HOURS.get(kind, 1)
    for minutes in (-5, 5):
        then = f"now() - interval '{least * 60 + minutes} minutes'"
        db.execute(KINDS[kind].format(then=then).encode())
    forget = "SELECT horsies_forget(%s, %s, 100) AS forgotten"

    assert db.execute(forget, (kind, None)).fetchone() == {"forgotten": 0}
    assert db.execute(forget, (kind, "infinity")).fetchone() == {"forgotten": 1}
    assert db.execute(forget, (kind, "infinity")).fetchone() == {"forgotten": 0}


def test_a_worker_deletes_no_task_that_ended_within_the_hour(db: Db) -> None:
    _end(db, 0.9)
    _end(db, 1.1)

    row = db.execute(
        "SELECT horsies_delete_history(array_agg(id), array_agg(terminal_at)) AS deleted FROM horsies_tasks"
    ).fetchone()

    assert row == {"deleted": 1}
    assert len(db.execute("SELECT FROM horsies_tasks").fetchall()) == 1


def test_what_belongs_to_a_task_goes_with_it(db: Db, database_url: str) -> None:
    _end(db, 5)
    task = db.execute("SELECT id FROM horsies_tasks").fetchone()
    assert task is not None
    for task_id in (task["id"], None):  # one that is there, and one whose day was dropped
        db.execute(
            "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, finished_at)"
            " VALUES (coalesce(%s, gen_random_uuid()), 1, 1, 'FAILED', now() - interval '5 hours')",
            (task_id,),
        )
        db.execute(
            "INSERT INTO horsies_progress (task_id, claim_seq, done, at)"
            " VALUES (coalesce(%s, gen_random_uuid()), 1, 1, now() - interval '5 hours')",
            (task_id,),
        )
        db.execute(
            "INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)"
            " VALUES (coalesce(%s, gen_random_uuid()), 1, 0, 1, now() - interval '5 hours', 'INFO', 'l', 'm')",
            (task_id,),
        )
        db.execute(
            "INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha, created_at)"
            " VALUES (coalesce(%s::text, 'k'), coalesce(%s, gen_random_uuid()), 's', now() - interval '5 hours')",
            (task_id, task_id),
        )
    db.execute(
        "INSERT INTO horsies_actions (actor, action, subject, acted_at) VALUES ('a', 'b', 'c', now() - interval '8 days')"
    )

    _sweep(database_url, terminal_record_retention_hours=2)

    for table in ("attempts", "progress", "task_logs", "idempotency_keys", "actions"):
        assert db.execute(f"SELECT 1 FROM horsies_{table}".encode()).fetchall() == [], table


def test_the_keys_and_attempts_of_a_task_that_is_kept_are_kept(db: Db, database_url: str) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name) VALUES ('00000000-0000-0000-0000-000000000001', 'add')"
    )
    db.execute(
        "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, finished_at)"
        " VALUES ('00000000-0000-0000-0000-000000000001', 1, 1, 'FAILED', now() - interval '5 hours')"
    )

    _sweep(database_url, terminal_record_retention_hours=2)

    assert len(db.execute("SELECT 1 FROM horsies_attempts").fetchall()) == 1


def test_results_may_go_before_their_tasks(db: Db, database_url: str) -> None:
    _end(db, 5)
    _end(db, 1)

    _sweep(database_url, result_retention_hours=2)

    query = "SELECT result FROM horsies_tasks ORDER BY terminal_at"
    assert [row["result"] for row in db.execute(query).fetchall()] == [None, '{"ok":1}']
