"""The doctor: nothing to say of a sound database, and a word for each thing that is not as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from horsies import PostgresConfig
from horsies.db.connection import Connection, connect
from horsies.db.migrations import migrate
from horsies.db.queries.doctor import (
    CHECKS,
    COMMANDS,
    HEALTH,
    INVARIANTS,
    Finding,
    Thresholds,
    examine,
    utc_now,
)
from tests.pg.conftest import Add
from tests.pg.hands import Hands
from tests.support.servers import extra_server
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
Examine = Callable[..., dict[str, Finding]]


def look(
    url: str,
    thresholds: Thresholds | None = None,
    here: Callable[[], datetime] = utc_now,
    kind: type[psycopg.AsyncConnection[Any]] | None = None,
) -> dict[str, Finding]:
    """What the doctor finds in a database, by check, over a connection of some kind."""

    async def run() -> dict[str, Finding | None]:
        opening = (
            connect(PostgresConfig(database_url=url)) if kind is None else kind.connect(url, autocommit=True)
        )
        connection: Connection = await opening
        async with connection:
            return await examine(connection, thresholds, here)

    return {name: finding for name, finding in asyncio.run(run()).items() if finding is not None}


@pytest.fixture
def found(database_url: str) -> Examine:
    """Return what the doctor finds in this test's database, but for the server's settings: the run may choose unsafe ones."""

    def find(*arguments: Any, **more: Any) -> dict[str, Finding]:
        findings = look(database_url, *arguments, **more)
        findings.pop("durability", None)
        return findings

    return find


@pytest.fixture(scope="module")
def careful_url() -> Iterator[str]:
    """A server of its own with PostgreSQL's own settings, on which prepared transactions and slots are possible."""
    with extra_server({"wal_level": "logical", "max_prepared_transactions": "5"}) as url:
        asyncio.run(migrate(PostgresConfig(database_url=url)))
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # which has it before PostgreSQL 15
        yield url


def test_there_is_nothing_to_say_of_a_sound_database(careful_url: str) -> None:
    assert look(careful_url) == {}


def test_there_is_nothing_to_say_of_work_in_progress(add: Add, hands: Hands, found: Examine) -> None:
    hands.register(waiting=True)
    add.send_many([(number,) for number in range(6)]).unwrap()
    add.with_options(idempotency_key="k").send(7).unwrap()
    held = hands.run_next(limit=4)
    hands.complete(held[:1])
    hands.fail(held[1:2])
    hands.fail(held[2:3], delay_seconds=60)
    hands.claim(limit=1)

    assert found() == {}


# What must hold

TASK = "INSERT INTO horsies_tasks (task_name, status, live, claimed_by_worker_id, claimed_at, started_at, terminal_at)"
WORKER = "INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, started_at, last_beat_at, lease_expires_at, dead_at)"
GONE, HERE = uuid4(), uuid4()

DEAD = f"{WORKER} VALUES ('{GONE}', 'host', 1, 1, '{{default}}', now() - interval '1 day', now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour');"
LATE = DEAD.replace("now() - interval '1 hour')", "NULL)")
ALIVE = f"{WORKER} VALUES ('{HERE}', 'host', 2, 1, '{{default}}', now() - interval '1 day', now(), now() + interval '1 hour', NULL);"
HELD = f"{TASK} VALUES ('add', 'RUNNING', true, '{GONE}', now() - interval '1 hour', now() - interval '1 hour', NULL);"
HELD_NOW = HELD.replace("now() - interval '1 hour'", "now()")
UNCHECKED = "ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_new;"
UNOWNED = "ALTER TABLE horsies_tasks_live DROP CONSTRAINT horsies_tasks_live_owner;"

FLOW = (
    "INSERT INTO horsies_workflows (id, root_workflow_id, on_error, name, definition_key, status, open_tasks)"
    f" VALUES ('{HERE}', '{HERE}', 'FAIL', 'w', 'k',"
)
NODE = (
    "INSERT INTO horsies_workflow_tasks (workflow_id, kind, join_type, node_id, task_name, task_index, status, open_deps,"
    f" dependencies) VALUES ('{HERE}', 'task', 'all', 'n', 'add',"
)
PARK = "UPDATE horsies_tasks_live SET parked_at = now(), enqueued_at = '9999-01-01';"
BROKEN = [
    ("limbo", HELD),
    ("limbo", DEAD + HELD_NOW),
    ("limbo", LATE + ALIVE + HELD),
    ("misplaced", UNCHECKED + UNOWNED + f"{TASK} VALUES ('add', 'FAILED', true, NULL, NULL, NULL, now());"),
    ("misplaced", UNCHECKED + f"{TASK} VALUES ('add', 'RUNNING', false, '{HERE}', now(), now(), now());"),
    ("misplaced", UNCHECKED + f"{TASK} VALUES ('add', 'PENDING', false, NULL, NULL, NULL, NULL);"),
    ("misplaced", UNCHECKED + f"{TASK} VALUES ('add', 'DONE', false, NULL, NULL, NULL, now());"),
    ("ownership", UNOWNED + f"{TASK} VALUES ('add', 'PENDING', true, '{HERE}', now(), NULL, NULL);"),
    ("ownership", UNOWNED + f"{TASK} VALUES ('add', 'RUNNING', true, NULL, now(), now(), NULL);"),
    ("ownership", f"{TASK} VALUES ('add', 'RUNNING', true, '{HERE}', NULL, now(), NULL);"),
    ("stalled_steps", f"{TASK} VALUES ('add', 'PENDING', true, NULL, NULL, NULL, NULL); {PARK}"),
    (
        "stalled_steps",
        f"{TASK} VALUES ('add', 'PENDING', true, NULL, NULL, NULL, NULL); {PARK}"
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, open_calls, calls)"
        " SELECT id, 'double', 'call', 1, 1, 1, ARRAY[gen_random_uuid()] FROM horsies_tasks;",
    ),
    ("undated", f"{TASK} VALUES ('add', 'COMPLETED', false, NULL, NULL, NULL, NULL);"),
    (
        "twins",
        f"{TASK} VALUES ('add', 'PENDING', true, NULL, NULL, NULL, NULL);"
        "INSERT INTO horsies_tasks (id, task_name, status, live, terminal_at)"
        " SELECT id, task_name, 'COMPLETED', false, now() FROM horsies_tasks;",
    ),
    ("dead_shares", DEAD + f"INSERT INTO horsies_in_flight VALUES ('', '{GONE}', 1);"),
    (
        "dead_shares",
        "ALTER TABLE horsies_in_flight DROP CONSTRAINT horsies_in_flight_worker_id_fkey;"
        f"INSERT INTO horsies_in_flight VALUES ('mail', '{GONE}', 1);",
    ),
    ("negative_shares", ALIVE + f"INSERT INTO horsies_in_flight VALUES ('', '{HERE}', -1);"),
    (
        "uncounted",
        ALIVE
        + f"INSERT INTO horsies_in_flight VALUES ('default', '{HERE}', 1);"
        + 2 * f"{TASK} VALUES ('add', 'RUNNING', true, '{HERE}', now(), now(), NULL);",
    ),
    ("rates", "INSERT INTO horsies_rates VALUES ('add', 1, 1, now() + interval '1 hour');"),
    (
        "key_slots",
        "INSERT INTO horsies_key_slots (rate_key, task_id, claim_seq, taken_at)"
        " VALUES ('key=a', gen_random_uuid(), 1, now() - interval '1 hour');",
    ),
    (
        "uncounted_keys",
        ALIVE
        + f"{TASK} VALUES ('add', 'RUNNING', true, '{HERE}', now(), now(), NULL);"
        + "UPDATE horsies_tasks_live SET rate_key = 'key=a';",
    ),
    ("workflow_lag", f"{FLOW} 'RUNNING', 1); {NODE} 0, 'ENQUEUED', 0, '{{}}');"),
    ("workflow_stalls", f"{FLOW} 'RUNNING', 1); {NODE} 0, 'READY', 0, '{{}}');"),
    ("workflow_stalls", f"{FLOW} 'RUNNING', 1); {NODE} 0, 'PENDING', 0, '{{}}');"),
    ("workflow_counts", f"{FLOW} 'RUNNING', 0); {NODE} 0, 'COMPLETED', 0, '{{}}');"),
    ("workflow_counts", f"{FLOW} 'PAUSED', 2); {NODE} 0, 'RUNNING', 0, '{{}}');"),
    (
        "workflow_counts",
        f"{FLOW} 'PAUSED', 1); {NODE} 0, 'COMPLETED', 0, '{{}}'); {NODE} 1, 'PENDING', 1, '{{0}}');",
    ),
]


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(("check", "harm"), BROKEN)
def test_what_must_hold_and_does_not_is_a_violation(check: str, harm: str, db: Db, found: Examine) -> None:
    db.execute(harm.encode())

    finding = found(Thresholds(grace_seconds=0))[check]  # the server itself has been there for no longer

    assert finding.level == "violation"
    assert finding.message.startswith("1 ")
    assert finding.remedy
    assert (finding.count, len(finding.examples)) == (1, 1)


def test_every_invariant_can_be_seen_broken() -> None:
    assert [check.name for check in INVARIANTS] == list(dict.fromkeys(check for check, _ in BROKEN))


@pytest.mark.parametrize(
    "harmless",
    [
        LATE + HELD,  # nobody is there to rescue it
        DEAD.replace("now() - interval '1 hour')", "now())") + HELD,  # it is being rescued right now
        HELD_NOW,  # who claimed it will be known in a moment
    ],
)
def test_a_task_may_be_in_limbo_until_it_can_have_been_rescued(harmless: str, db: Db, found: Examine) -> None:
    db.execute(harmless.encode())

    assert "limbo" not in found()


@pytest.mark.breaks_invariants
def test_nobody_can_have_noticed_a_lease_that_ran_out_while_the_server_was_down(
    db: Db, found: Examine
) -> None:
    db.execute(
        (ALIVE + LATE + HELD).encode().replace(b"'1 hour'", b"'2 days'").replace(b"'1 day'", b"'2 days'")
    )

    assert "limbo" not in found(Thresholds(grace_seconds=86_400))


def test_a_rescuer_is_given_the_same_time(db: Db, found: Examine) -> None:
    to_come = ALIVE.replace("now() - interval '1 day'", "now() + interval '1 day'")
    db.execute((to_come + LATE + HELD).encode())

    assert "limbo" not in found(Thresholds(grace_seconds=0))


@pytest.mark.breaks_invariants
def test_the_grace_may_be_longer(db: Db, found: Examine) -> None:
    db.execute((DEAD + HELD).encode())

    assert "limbo" in found(Thresholds(grace_seconds=3_000))
    assert "limbo" not in found(Thresholds(grace_seconds=4_000))


@pytest.mark.breaks_invariants
def test_many_are_counted_and_a_few_are_named(db: Db, found: Examine) -> None:
    db.execute(1_200 * HELD)

    finding = found()["limbo"]

    assert finding.message == "1,200 tasks held by a worker that has been gone for more than 60 s"
    assert (finding.count, len(finding.examples)) == (1_200, 5)


def test_prefetched_tasks_need_not_be_counted_before_the_next_claim(
    add: Add, hands: Hands, db: Db, found: Examine
) -> None:
    hands.register(waiting=False)
    db.execute("INSERT INTO horsies_in_flight VALUES ('default', %s, 0)", (hands.worker_id,))
    add.send(1).unwrap()
    hands.start(hands.claim())

    assert found() == {}


# Other versions of the schema


@pytest.mark.breaks_invariants
def test_a_newer_schema_is_a_violation_and_nothing_else_is_looked_at(db: Db, found: Examine) -> None:
    db.execute("INSERT INTO horsies_schema_version VALUES (999999)")
    db.execute(HELD.encode())

    assert list(found()) == ["schema"]
    assert "999999" in found()["schema"].examples[0]


def test_a_missing_schema_is_a_violation(empty_database_url: str) -> None:
    finding = look(empty_database_url)["schema"]

    assert finding.level == "violation"
    assert "horsies migrate" in finding.remedy


# The health of the database

PENDING = "INSERT INTO horsies_tasks (task_name, enqueued_at) VALUES ('add', now() - interval '1 hour');"
NOW = Thresholds(
    idle_seconds=0,
    snapshot_seconds=0,
    transactions=0,
    dead_rows=100,
    connection_share=0,
    notification_share=0,
)
SCHEDULE = (
    "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash, next_run_at, error)"
    " VALUES ('nightly', '{}', '', NULL, NULL)"
)
PARKED = "UPDATE horsies_tasks_live SET status = 'FAILED', error_code = 'POISONED_ROW', claimed_by_worker_id = gen_random_uuid()"
UNWELL = [
    ("poisoned", PENDING + PARKED),
    (
        "lost_keys",
        "INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha) VALUES ('k', gen_random_uuid(), '')",
    ),
    (
        "missing_partitions",
        "DO $$ BEGIN EXECUTE 'DROP TABLE horsies_tasks_' || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD'); END $$",
    ),
    (
        "default_partition",
        f"{TASK} VALUES ('add', 'COMPLETED', false, NULL, NULL, NULL, now() - interval '9 days')",
    ),
    ("unserved_queues", PENDING),
    ("overdue_queues", PENDING + ALIVE + "UPDATE horsies_workers SET waiting = true"),
    ("overdue_schedules", SCHEDULE.replace("NULL, NULL", "now() - interval '1 hour', NULL")),
    ("broken_schedules", SCHEDULE.replace("NULL, NULL", "NULL, 'no such task'")),
    ("late_workers", LATE),
    ("autovacuum", "ALTER TABLE horsies_tasks_live SET (autovacuum_enabled = off)"),
    ("creators", "GRANT CREATE ON SCHEMA public TO PUBLIC"),
    ("notification_queue", ""),
    ("connections", ""),
]


@pytest.mark.parametrize(("check", "harm"), UNWELL, ids=[check for check, _ in UNWELL])
def test_what_is_not_well_is_a_warning(check: str, harm: str, db: Db, found: Examine) -> None:
    db.execute(harm.encode())

    finding = found(NOW)[check]

    assert finding.level == "warning"
    assert finding.remedy
    assert (finding.count, len(finding.examples)) == (1, 1)


@pytest.mark.parametrize(
    "harm",
    [
        f"{TASK} VALUES ('add', 'FAILED', false, NULL, NULL, NULL, now());"
        " UPDATE horsies_tasks SET error_code = 'POISONED_ROW'",
        "INSERT INTO horsies_workflows (id, root_workflow_id, open_tasks, status, on_error, name, definition_key, completed_at,"
        " error) VALUES (gen_random_uuid(), gen_random_uuid(), 0, 'FAILED', 'FAIL', 'flow', '', now(),"
        """ '{"error_code":{"__builtin_task_code__":"POISONED_ROW"}}')""",
    ],
    ids=["task", "workflow"],
)
def test_what_was_parked_in_the_last_day_is_listed(harm: str, db: Db, found: Examine) -> None:
    db.execute("ALTER TABLE horsies_tasks_history DISABLE TRIGGER USER")
    db.execute(harm.encode())

    assert found()["poisoned"].count == 1


def test_every_warning_can_be_seen() -> None:
    others = {"durability", "dead_rows", "old_snapshots", "prepared_transactions", "replication_slots"}
    others |= {"idle_transactions", "invalid_indexes", "clock", "hidden_sessions"}

    assert {check.name for check in HEALTH} == {check for check, _ in UNWELL} | others


def test_whoever_may_create_in_the_schema_is_named_with_the_remedy(db: Db, found: Examine) -> None:
    name = f"Creator {uuid4().hex}"
    db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
    try:
        db.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}, PUBLIC").format(sql.Identifier(name)))

        finding = found()["creators"]

        assert finding.level == "warning"
        assert finding.examples == [
            f'REVOKE CREATE ON SCHEMA public FROM "{name}"',
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        ]
        for remedy in finding.examples:
            db.execute(remedy.encode())
        assert "creators" not in found()
    finally:
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_settings_that_can_lose_what_was_committed_are_named() -> None:
    with extra_server({"fsync": "off", "full_page_writes": "off"}) as url:
        asyncio.run(migrate(PostgresConfig(database_url=url)))

        assert look(url)["durability"].examples == ["fsync = off", "full_page_writes = off"]


@pytest.mark.parametrize(
    "harmless",
    [
        dict(UNWELL)["lost_keys"]
        .replace("enqueue_sha)", "enqueue_sha, created_at)")
        .replace("'')", "'', now() - interval '2 days')"),
        DEAD,
        PENDING + ALIVE,  # the worker is busy
        PENDING.replace("(task_name", "(rate_key, task_name").replace("('add'", "('add', 'add'")
        + ALIVE
        + "UPDATE horsies_workers SET waiting = true",
        PENDING.replace("'1 hour'", "'1 minute'") + ALIVE + "UPDATE horsies_workers SET waiting = true",
        PENDING + ALIVE + "UPDATE horsies_workers SET waiting_async = true",  # it has no room for a plain one
        PENDING
        + ALIVE
        + f"UPDATE horsies_workers SET waiting = true; INSERT INTO horsies_in_flight VALUES ('', '{HERE}', 1)",
    ],
)
def test_what_has_a_good_reason_is_not_worth_a_warning(harmless: str, db: Db, found: Examine) -> None:
    db.execute(harmless.encode())

    assert found() == {}


def test_dead_rows_are_seen_when_there_are_many_more_than_live_ones(
    db: Db, database_url: str, found: Examine
) -> None:
    db.execute("ALTER TABLE horsies_tasks_live SET (autovacuum_enabled = off)")
    with psycopg.connect(database_url, autocommit=True) as other:  # which reports its statistics when it ends
        other.execute("INSERT INTO horsies_tasks (task_name) SELECT 'add' FROM generate_series(1, 300)")
        other.execute("DELETE FROM horsies_tasks")

    # before PostgreSQL 15, what a session reports is seen a moment later
    seen = eventually(lambda: found(NOW).get("dead_rows"), what="the dead rows being seen")
    (example,) = seen.examples
    assert example == "horsies_tasks_live: 300 dead, 0 live, last vacuumed never"
    assert "dead_rows" not in found()

    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("INSERT INTO horsies_tasks (task_name) SELECT 'add' FROM generate_series(1, 50)")
    eventually(lambda: "dead_rows" not in found(NOW), what="the live rows being seen")


def test_whoever_holds_back_vacuum_is_named(database_url: str, found: Examine) -> None:
    with psycopg.connect(database_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT FROM horsies_tasks")
        pid = f"pid {reader.info.backend_pid} of "
        seen = found(NOW)
        calm = found()

    assert seen["old_snapshots"].examples[0].startswith(pid)
    assert seen["idle_transactions"].examples[0].startswith(pid)
    assert calm == {}


def test_prepared_transactions_and_replication_slots_hold_back_vacuum_too(careful_url: str) -> None:
    with psycopg.connect(careful_url, autocommit=True) as session:
        session.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
        try:
            prepared = look(careful_url, NOW)["prepared_transactions"]
        finally:
            session.execute("ROLLBACK PREPARED 'forgotten'")
        session.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
        try:
            slot = look(careful_url, NOW)["replication_slots"]
        finally:
            session.execute("SELECT pg_drop_replication_slot('left_behind')")

    assert prepared.examples[0].startswith("forgotten of ")
    assert slot.examples[0].startswith("left_behind (inactive), ")


def test_an_index_that_could_not_be_built_is_named(add: Add, db: Db, found: Examine) -> None:
    add.send_many([(1,), (2,)]).unwrap()
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute("CREATE UNIQUE INDEX CONCURRENTLY failed ON horsies_tasks_live (task_name)")

    assert found()["invalid_indexes"].examples == ["failed on horsies_tasks_live"]


@pytest.mark.parametrize(("off", "said"), [(7.5, "7.5 s ahead"), (-7.5, "7.5 s behind")])
def test_a_clock_that_is_off_is_noticed(off: float, said: str, found: Examine) -> None:
    shift = timedelta(seconds=off)

    finding = found(here=lambda: datetime.now(UTC) + shift)["clock"]

    assert abs(float(finding.examples[0].split()[0]) - 7.5) < 2
    assert finding.examples[0].split()[1:] == said.split()[1:]


class Pooled(psycopg.AsyncConnection[Any]):
    """As behind a pooler in transaction mode, what one statement does to its session is gone with the next."""

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        done = await super().execute(*arguments, **options)
        if self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            await super().execute("UNLISTEN *")
        return done


def test_a_pooler_that_swallows_notifications_is_noticed(found: Examine) -> None:
    finding = found(Thresholds(notification_seconds=0.2), kind=Pooled)["listen"]

    assert "session_database_url" in finding.remedy
    assert found(kind=psycopg.AsyncConnection) == {}


# Who may look, and for how long


@pytest.fixture
def reader_url(role_maker: str, database_url: str, db: Db) -> Iterator[str]:
    """The URL of a role that may read the tables and nothing else."""
    role = f"reader_{uuid4().hex}"
    db.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 's3cret'").format(sql.Identifier(role)))
    db.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(role)))
    try:
        yield f"postgresql://{role}:s3cret@{database_url.rpartition('@')[2]}"
    finally:
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_a_role_that_may_only_read_is_told_what_it_cannot_see(reader_url: str, db: Db) -> None:
    found = look(reader_url)

    assert set(found) - {"durability"} == {"hidden_sessions"}
    assert f"pid {db.info.backend_pid} of " in found["hidden_sessions"].examples[0]


def test_a_reader_sees_by_its_age_who_holds_back_vacuum(reader_url: str, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT pg_current_xact_id()")
        pid = f"pid {other.info.backend_pid} of "

        example = look(reader_url, NOW)["old_snapshots"].examples[0]

    assert example.startswith(pid)
    assert "hidden" in example


def test_what_a_role_may_not_read_is_said_and_the_rest_is_looked_at(reader_url: str, db: Db) -> None:
    role = reader_url.split("/")[2].partition(":")[0]
    db.execute(sql.SQL("REVOKE ALL ON horsies_rates FROM {}").format(sql.Identifier(role)))
    db.execute(PENDING.encode())

    found = look(reader_url)

    assert found["rates"].level == "warning"
    assert found["rates"].message == "could not be checked: permission denied for table horsies_rates"
    assert "unserved_queues" in found


def test_a_table_that_is_missing_is_said(db: Db, found: Examine) -> None:
    db.execute("DROP TABLE horsies_idempotency_keys")

    assert "horsies_idempotency_keys" in found()["lost_keys"].message


def test_a_check_that_takes_too_long_is_given_up_and_says_so(database_url: str, found: Examine) -> None:
    with psycopg.connect(database_url) as locker:
        locker.execute("LOCK TABLE horsies_rates")

        finding = found(Thresholds(timeout_seconds=0.2))["rates"]

    assert finding.level == "warning"
    assert finding.message == "could not be checked: canceling statement due to statement timeout"


def test_nothing_is_written_whatever_the_tables_have_become(db: Db, found: Examine) -> None:
    db.execute("""
        ALTER TABLE horsies_rates RENAME TO real_rates;
        CREATE FUNCTION spend() RETURNS SETOF real_rates LANGUAGE sql
            AS $$ INSERT INTO real_rates VALUES ('add', 1, 1, now()) RETURNING * $$;
        CREATE VIEW horsies_rates AS SELECT * FROM spend();
    """)

    assert "read-only transaction" in found()["rates"].message
    assert db.execute("SELECT FROM real_rates").fetchall() == []


def test_every_check_has_a_command() -> None:
    assert set(COMMANDS) == {check.name for check in CHECKS}
