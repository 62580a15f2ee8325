"""Each role can do its work, and nothing else: real logins on a schema whose owner is no superuser."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from horsies import Horsies, PostgresConfig
from horsies.db.migrations import migrate, roles_script
from horsies.db.sql import statements
from tests.docs.privileges import PAGE, described, written
from tests.pg.conftest import define_add, new_apps
from tests.pg.house import ROLES, House, drop_roles, new_house, run

SENDERS = {"producer", "worker", "scheduler"}
READERS = {"viewer", "operator"}
WATCHES = {"start", "watch", "look", "results", "nodes", "list", "show", "tree"}
VIEWS = {"horsies_task_attempts", "horsies_workflow_results"}
READS = {"workflows": WATCHES, "inspect": {"task", "attempts"}}
OWNERS = {"schedules": "scheduler", "inspect": ""}  # nobody who sends reads all
OPERATORS_ONLY = {("retention", "delete")}
SENDS = {"send", "send_keyed", "copy", "wake", "taken", "finished", "watch", "look", "progress", "log_lines"}

REQUEUE = """
    UPDATE horsies_tasks
       SET live = true, status = 'PENDING', claim_seq = claim_seq + 1, retry_count = 0, claimed_by_worker_id = NULL,
           claimed_at = NULL, started_at = NULL, failed_at = NULL, terminal_at = NULL,
           result = NULL, error_code = NULL, failed_reason = NULL, enqueued_at = now()
     WHERE NOT live AND status = 'FAILED'"""
CANCEL = """
    UPDATE horsies_tasks SET live = false, status = 'CANCELLED', error_code = 'TASK_CANCELLED', terminal_at = now()
     WHERE live AND status = 'PENDING'"""
CLAIM = """
    UPDATE horsies_tasks_live
       SET status = 'RUNNING', claimed_by_worker_id = gen_random_uuid(), claim_seq = claim_seq + 1, started_at = now()
     WHERE status = 'PENDING'"""

# Who may do what; everybody else is refused.
DEEDS: dict[str, set[str]] = {
    "SELECT horsies_send('add', '{\"x\": 1}', idempotency_key => 'k')": SENDERS,
    "INSERT INTO horsies_tasks (task_name) VALUES ('add')": SENDERS,
    "INSERT INTO horsies_tasks_live (task_name) VALUES ('add')": {*SENDERS, "operator"},
    "INSERT INTO horsies_idempotency_keys VALUES ('k', gen_random_uuid(), 'sha', 'infinity')": set(),
    "INSERT INTO horsies_tasks (task_name, result) VALUES ('add', '{\"ok\":1}')": set(),
    "INSERT INTO horsies_tasks (task_name, live, status) VALUES ('add', false, 'COMPLETED')": set(),
    "INSERT INTO horsies_tasks_live (task_name, claim_seq) VALUES ('add', 999)": set(),
    "INSERT INTO horsies_tasks_history (task_name) VALUES ('add')": set(),
    "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome) VALUES (gen_random_uuid(), 1, 1, 'FAILED')": {
        "worker",
        "operator",
    },
    "INSERT INTO horsies_tasks (task_name, workflow_id, workflow_index) VALUES ('add', gen_random_uuid(), 0)": set(),
    "INSERT INTO horsies_tasks_live (task_name, workflow_id, workflow_index) VALUES ('add', gen_random_uuid(), 0)": {
        "worker",
        "operator",
    },
    "INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES ('mail', 'ann')": {"operator"},
    "DELETE FROM horsies_suspensions": {"operator"},
    "DELETE FROM horsies_actions": set(),
    "UPDATE horsies_actions SET actor = 'somebody else'": set(),
    "INSERT INTO horsies_actions (actor, action, subject) VALUES ('ann', 'cancel', 'all')": {"operator"},
    "INSERT INTO horsies_actions (actor, action, subject, acted_at) VALUES ('ann', 'a', 's', 'epoch')": set(),
    "SELECT horsies_forget('actions', now(), 1)": {"worker"},
    "SELECT horsies_delete_history('{}', '{}')": {"worker"},
    "SELECT horsies_start_workflow(gen_random_uuid(), '[]', '[]')": {*SENDERS, "operator"},
    "SELECT horsies_store_sub_workflow(gen_random_uuid(), '[]', '[]', NULL, NULL)": {"worker", "operator"},
    "SELECT horsies_store_workflow(gen_random_uuid(), '[]', '[]', NULL, NULL)": {"worker", "operator"},
    "UPDATE horsies_tasks_live SET awaited = true": SENDERS,
    "SELECT FROM horsies_tasks_live FOR UPDATE": {*SENDERS, "operator"},
    "UPDATE horsies_tasks_live SET priority = 2": {"operator"},
    "UPDATE horsies_tasks_live SET kwargs = '{}'": {"operator"},
    CLAIM: {"worker"},
    CANCEL: {"worker", "operator"},
    REQUEUE: {"operator"},
    "UPDATE horsies_tasks SET result = NULL WHERE NOT live": {"operator"},
    "UPDATE horsies_tasks SET kwargs = '{}'": set(),
    "UPDATE horsies_tasks SET task_name = 'other'": set(),
    "UPDATE horsies_tasks_live SET queue_name = 'other'": set(),
    "UPDATE horsies_tasks_history SET result = NULL": set(),
    "UPDATE horsies_tasks_history SET error_code = NULL": set(),
    "SELECT horsies_drop_history(now())": {"worker"},
    "UPDATE horsies_idempotency_keys SET task_id = gen_random_uuid()": set(),
    "DELETE FROM horsies_tasks": set(),
    "DELETE FROM horsies_tasks_live": set(),
    "DELETE FROM horsies_tasks_history": {"operator"},
    "DELETE FROM horsies_attempts": {"operator"},
    "DELETE FROM horsies_idempotency_keys": {"operator"},
    "DELETE FROM horsies_progress": {"operator"},
    "DELETE FROM horsies_rollups": set(),
    "DELETE FROM horsies_depths": set(),
    "DELETE FROM horsies_heartbeats": set(),
    "DELETE FROM horsies_worker_states": set(),
    "DELETE FROM horsies_workers": {"worker"},
    "INSERT INTO horsies_workflows (id, root_workflow_id, open_tasks, status, on_error, name, definition_key)"
    " VALUES (gen_random_uuid(), gen_random_uuid(), 0, 'COMPLETED', 'FAIL', 'w', 'k')": {
        "worker",
        "operator",
    },
    "INSERT INTO horsies_workflows (id, root_workflow_id, open_tasks, status, on_error, name, definition_key, result)"
    " VALUES (gen_random_uuid(), gen_random_uuid(), 0, 'COMPLETED', 'FAIL', 'w', 'k', '{}')": set(),
    "INSERT INTO horsies_workflow_tasks (workflow_id, task_index, open_deps, status, kind, join_type, node_id, task_name)"
    " VALUES (gen_random_uuid(), 0, 0, 'COMPLETED', 'signal', 'all', 'n', 's')": {"worker", "operator"},
    "INSERT INTO horsies_workflow_tasks (workflow_id, task_index, open_deps, status, kind, join_type, node_id, task_name,"
    " result) VALUES (gen_random_uuid(), 0, 0, 'COMPLETED', 'signal', 'all', 'n', 's', '{}')": set(),
    "UPDATE horsies_workflows SET awaited = true": {*SENDERS, "operator"},
    "UPDATE horsies_workflows SET status = 'CANCELLED'": {"worker", "operator"},
    "UPDATE horsies_workflows SET name = 'other'": set(),
    "UPDATE horsies_workflow_tasks SET status = 'SKIPPED'": {"worker", "operator"},
    "UPDATE horsies_workflow_tasks SET task_kwargs = '{}'": set(),
    "DELETE FROM horsies_workflows": set(),
    "DELETE FROM horsies_workflow_tasks": set(),
    "UPDATE horsies_workers SET dead_at = now()": {"worker"},
    "UPDATE horsies_workers SET worker_id = gen_random_uuid()": set(),
    "SELECT hostname FROM horsies_workers": {"worker", *READERS},
    "SELECT * FROM horsies_attempts": {"worker", *READERS},
    "DELETE FROM horsies_task_logs": {"worker", "operator"},
    "UPDATE horsies_task_logs SET message = ''": set(),
    "UPDATE horsies_progress SET done = 1": {"worker"},
    "UPDATE horsies_rates SET spent_until = now()": {"worker"},
    "UPDATE horsies_task_definitions SET queue_name = 'other'": {"worker"},
    "DELETE FROM horsies_task_definitions": set(),
    "UPDATE horsies_heartbeats SET pid = 1": set(),
    "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash) VALUES ('s', '{}', '')": {
        "scheduler",
        "operator",
    },
    "UPDATE horsies_schedule_state SET definition = '{}'": {"scheduler", "operator"},
    "UPDATE horsies_tasks_live SET kwargs = '{}', priority = 1": {"operator"},
    "UPDATE horsies_schedule_state SET paused_at = now(), next_run_at = NULL": {"scheduler", "operator"},
    "DELETE FROM horsies_schedule_state": {"scheduler", "operator"},
    "SELECT * FROM horsies_schedule_state": {"scheduler", *READERS},
    "UPDATE horsies_tasks_live SET sent_at = now()": {"scheduler"},
    "SELECT horsies_prepare_history(1)": {"worker"},
    "SELECT horsies_refresh_statistics()": {"worker"},
    "INSERT INTO horsies_schema_version (version) VALUES (1000)": set(),
    "UPDATE horsies_schema_version SET version = 1000": set(),
    "CREATE TABLE mine (x integer)": set(),
    "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'": set(),
    "CREATE SCHEMA mine": set(),
    "CREATE OR REPLACE FUNCTION horsies_prepare_history(days integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'": set(),
    "ALTER TABLE horsies_tasks_history DISABLE TRIGGER horsies_tasks_final": set(),
    "COPY horsies_tasks TO PROGRAM 'cat'": set(),
}


@pytest.fixture(scope="module")
def house(role_maker: str) -> Iterator[House]:
    yield from new_house(role_maker)


@pytest.fixture
def make_app(house: House) -> Iterator[Callable[..., Horsies]]:
    yield from new_apps(house.owner_url)


@pytest.fixture
def failed_task(house: House) -> UUID:
    """A task that has failed, beside one that waits."""
    with house.owner() as owner:
        owner.execute("SELECT horsies_send('waits')")
        row = owner.execute(
            "INSERT INTO horsies_tasks (task_name, live, status, error_code, terminal_at, claimed_by_worker_id)"
            " VALUES ('add', false, 'FAILED', 'BROKEN', now(), gen_random_uuid()) RETURNING id"
        ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_its_work_and_nothing_else(house: House, failed_task: UUID, role: str) -> None:
    wrong: list[str] = []
    with house.connect(role) as connection:
        for deed, allowed in DEEDS.items():
            if is_allowed(connection, deed) != (role in allowed):
                wrong.append(f"{'refused' if role in allowed else 'allowed'}: {deed}")

    assert wrong == []


def is_allowed(connection: psycopg.Connection[Any], deed: str) -> bool:
    """Whether it can be done; nothing of it stays."""
    try:
        connection.execute(deed.encode())
    except errors.InsufficientPrivilege:
        return False
    finally:
        connection.rollback()
    return True


@pytest.fixture
def relations(house: House) -> list[str]:
    """All tables and views but the partitions of single days."""
    with house.owner() as owner:
        rows = owner.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')"
            " AND relname !~ '^horsies_tasks_(\\d+|history_default)$'"
        ).fetchall()
    assert len(rows) >= 13
    return [name for (name,) in rows]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_empties_changes_or_drops_a_table(house: House, relations: list[str], role: str) -> None:
    with house.connect(role) as connection:
        for name in relations:
            kind = "VIEW" if name in VIEWS else "TABLE"
            assert not is_allowed(connection, f"DROP {kind} {name} CASCADE"), name
            assert not is_allowed(connection, f"ALTER {kind} {name} RENAME TO gone"), name
            assert kind == "VIEW" or not is_allowed(connection, f"TRUNCATE {name} CASCADE"), name


@pytest.mark.parametrize("role", sorted(READERS))
def test_who_looks_on_can_read_everything(house: House, relations: list[str], role: str) -> None:
    with house.connect(role) as connection:
        assert [name for name in relations if not is_allowed(connection, f"SELECT * FROM {name}")] == []


def test_a_viewer_writes_nothing_at_all(house: House, relations: list[str]) -> None:
    with house.connect("viewer") as connection:
        for name in set(relations) - VIEWS:  # which nobody can write to
            column = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1", (name,)
            ).fetchone()
            assert column is not None
            for deed in (
                f"INSERT INTO {name} DEFAULT VALUES",
                f"UPDATE {name} SET {column[0]} = DEFAULT",
                f"DELETE FROM {name}",
            ):
                assert not is_allowed(connection, deed), deed


@pytest.mark.parametrize(
    "noun",
    [
        "tasks",
        "workers",
        "schedules",
        "retention",
        "workflows",
        "cancellation",
        "inspect",
    ],
)
def test_every_statement_is_allowed_to_who_runs_it(house: House, noun: str) -> None:
    """A plan is made with all parameters NULL: rights are checked when it is about to run."""
    for role in sorted(SENDERS):
        with psycopg.connect(house.url(role), cursor_factory=psycopg.ClientCursor) as connection:
            for verb, statement in statements(noun).items():
                if role != OWNERS.get(noun, "worker") and verb not in READS.get(noun, SENDS):
                    continue
                if (noun, verb) in OPERATORS_ONLY:
                    continue
                if statement.startswith(b"COPY"):  # which has no plan: it is run, with no row
                    with connection.cursor().copy(statement):
                        pass
                else:
                    connection.execute(b"EXPLAIN " + statement, defaultdict(lambda: None))


@pytest.mark.parametrize(
    ("noun", "roles"),
    [
        ("inspect", READERS),
        ("statistics", READERS),
        ("operations", {"operator"}),
        ("workflows", {"operator"}),
        ("cancellation", {"operator"}),
        ("events", {"operator"}),
    ],
)
def test_every_question_and_act_is_allowed_to_who_may_have_it(
    house: House, noun: str, roles: set[str]
) -> None:
    for role in sorted(roles):
        with psycopg.connect(house.url(role), cursor_factory=psycopg.ClientCursor) as connection:
            for statement in statements(noun).values():
                connection.execute(b"EXPLAIN " + statement, defaultdict(lambda: None))


@pytest.mark.parametrize("role", sorted(READERS))
def test_who_looks_on_can_check_the_health_of_a_host(house: House, role: str) -> None:
    with psycopg.connect(house.url(role), cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(b"EXPLAIN " + statements("workers")["on_host"], {"hostname": None})


@pytest.mark.parametrize("role", sorted(SENDERS))
def test_a_sender_sends_waits_and_asks(house: House, make_app: Callable[..., Horsies], role: str) -> None:
    add = define_add(make_app(url=house.url(role)))

    handle = add.send(1, 2).unwrap()
    keyed = [add.with_options(idempotency_key=role).send(1).unwrap() for _ in range(2)]
    many = add.send_many([(1,), (2,)]).unwrap()

    info = handle.info(include_attempts=True).unwrap()
    assert info is not None
    assert info.attempts == ()
    assert keyed[0].task_id == keyed[1].task_id
    assert len(many) == 2
    assert handle.get(timeout_ms=50).is_err()


def test_a_viewer_who_sends_is_told_that_it_may_not(house: House, make_app: Callable[..., Horsies]) -> None:
    error = define_add(make_app(url=house.url("viewer"))).send(1).unwrap_err()

    assert "permission denied" in error.message
    assert not error.retryable


def test_an_operator_requeues_and_deletes(house: House, failed_task: UUID) -> None:
    with house.connect("operator") as operator:
        operator.execute(f"{REQUEUE} AND id = %s".encode(), (failed_task,))
        operator.execute(f"{CANCEL} AND id = %s".encode(), (failed_task,))
        row = operator.execute(
            "DELETE FROM horsies_tasks_history WHERE id = %s RETURNING status, claim_seq", (failed_task,)
        ).fetchone()

    assert row == ("CANCELLED", 1)


def test_the_documentation_lists_the_privileges_that_the_server_reports(house: House) -> None:
    with house.owner() as owner:
        assert written(PAGE.read_text(encoding="utf-8")) == described(owner, house.prefix)


def test_the_script_may_be_run_again_and_takes_back_what_is_not_in_it(house: House) -> None:
    with house.owner() as owner:
        run(owner, "GRANT DELETE, UPDATE (kwargs) ON horsies_tasks TO {}", f"{house.prefix}producer")
        with house.connect("producer") as producer:
            assert is_allowed(producer, "DELETE FROM horsies_tasks")

            owner.execute(roles_script(house.prefix).encode())

            assert not is_allowed(producer, "DELETE FROM horsies_tasks")
            assert not is_allowed(producer, "UPDATE horsies_tasks SET kwargs = '{}'")
            assert is_allowed(producer, "SELECT horsies_send('add')")


def test_the_roles_are_made_for_the_schema_in_use(role_maker: str, empty_database_url: str) -> None:
    prefix = f"test_{uuid4().hex[:12]}_"
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        try:
            owner.execute('CREATE SCHEMA "the Jobs"; SET search_path TO "the Jobs"')
            url = f"{empty_database_url}?options=-csearch_path%3D%22the%5C%20Jobs%22"
            asyncio.run(migrate(PostgresConfig(database_url=url)))

            owner.execute(roles_script(prefix).encode())

            run(owner, "SET ROLE {}", f"{prefix}producer")
            owner.execute("SELECT \"the Jobs\".horsies_send('add')")
            owner.execute("RESET ROLE")
            held = owner.execute(
                "SELECT has_schema_privilege(%s, 'the Jobs', 'CREATE')", (f"{prefix}producer",)
            ).fetchone()
            assert held == (False,)
        finally:
            run(owner, "DROP SCHEMA {} CASCADE", "the Jobs")
            drop_roles(owner, prefix)
