"""Plain SQL is a producer like any other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import Horsies, TaskStatus
from horsies.db.queries.workers import Definition
from tests.pg.conftest import define_add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]


def send(db: Db, arguments: str, *values: Any) -> Any:
    row = db.execute(f"SELECT horsies_send({arguments}) AS id".encode(), values).fetchone()
    assert row is not None
    return row["id"]


def task(db: Db) -> dict[str, Any]:
    (row,) = db.execute("SELECT * FROM horsies_tasks").fetchall()
    return row


def test_horsies_send_makes_a_task_that_a_worker_can_run(app: Horsies, hands: Hands, db: Db) -> None:
    add = define_add(app)

    task_id = send(db, """'add', '{"x": 2, "y": 3}'""")

    (claimed,) = hands.run_next()
    assert (claimed.task_name, claimed.queue_name, claimed.priority) == ("add", "default", 100)
    assert add.definition.signature.decode(claimed.args, claimed.kwargs) == {"x": 2, "y": 3}
    hands.complete([claimed])
    assert app.handle(task_id, add).get(timeout_ms=5_000).unwrap() == 5


def test_every_argument_can_be_named(db: Db) -> None:
    until = datetime.now(UTC) + timedelta(days=1)

    task_id = send(
        db,
        """task_name => 'add', kwargs => '{"x": 1}', queue_name => 'mail', priority => 3, delay_seconds => 1.5,
           good_until => %s, idempotency_key => 'k'""",
        until,
    )

    row = task(db)
    assert row["id"] == task_id
    assert (row["queue_name"], row["priority"], row["good_until"]) == ("mail", 3, until)
    assert json.loads(row["kwargs"]) == {"x": 1}
    assert row["enqueued_at"] - row["sent_at"] == timedelta(seconds=1.5)


def test_what_is_not_said_is_as_the_workers_know_the_task(hands: Hands, db: Db) -> None:
    definition = Definition("add", "mail", 7, True, 3, 5_000, '{"idempotent":true}')
    hands.register("mail", waiting=False, definitions=[definition])

    send(db, "'add'")

    row = task(db)
    assert (row["queue_name"], row["priority"], row["is_async"], row["max_retries"]) == ("mail", 7, True, 3)
    assert (row["timeout_ms"], row["task_options"], row["kwargs"]) == (5_000, '{"idempotent":true}', "{}")


def test_an_argument_that_is_null_is_one_that_is_not_said(db: Db) -> None:
    send(db, "'add', queue_name => NULL, priority => NULL, delay_seconds => NULL, idempotency_key => NULL")

    row = task(db)
    assert (row["queue_name"], row["priority"], row["enqueued_at"]) == ("default", 100, row["sent_at"])


@pytest.mark.parametrize(
    "arguments",
    [
        "'add', '[1]'",
        "'add', NULL",
        "'add', '5'",
        "'add', delay_seconds => -1",
        "'add', delay_seconds => 'NaN'",
        "'add', priority => 0",
        "'add', priority => 101",
        "'add', queue_name => ''",
        "''",
        "NULL",
        "repeat('x', 256)",
    ],
)
def test_a_call_that_makes_no_sense_is_an_error_and_leaves_nothing(db: Db, arguments: str) -> None:
    with pytest.raises(psycopg.DatabaseError):
        send(db, arguments)

    assert db.execute("SELECT 1 FROM horsies_tasks").fetchall() == []


def test_the_same_key_and_call_is_the_same_task_even_after_it_ended(hands: Hands, db: Db) -> None:
    first = send(db, """'add', '{"x": 1}', idempotency_key => 'k'""")
    assert send(db, """'add', '{"x": 1}', idempotency_key => 'k'""") == first
    hands.complete(hands.run_next())

    assert send(db, """'add', '{"x": 1}', idempotency_key => 'k'""") == first

    with pytest.raises(psycopg.errors.UniqueViolation, match="another call"):
        send(db, """'add', '{"x": 2}', idempotency_key => 'k'""")
    assert task(db)["status"] == "COMPLETED"


def test_one_key_makes_one_task_however_many_send_it_at_once(database_url: str, db: Db) -> None:
    def send_it(_: int) -> Any:
        with psycopg.connect(database_url) as connection:
            return connection.execute("SELECT horsies_send('add', idempotency_key => 'k')").fetchone()

    with ThreadPoolExecutor(8) as threads:
        answers = set(threads.map(send_it, range(24)))

    assert answers == {(task(db)["id"],)}


def test_a_trigger_can_send(db: Db) -> None:
    db.execute("CREATE TABLE orders (id integer)")
    db.execute(
        """CREATE FUNCTION on_order() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN PERFORM horsies_send('ship', jsonb_build_object('order', NEW.id)); RETURN NULL; END $$"""
    )
    db.execute("CREATE TRIGGER shipping AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION on_order()")

    db.execute("INSERT INTO orders VALUES (17)")

    assert json.loads(task(db)["kwargs"]) == {"order": 17}


def test_the_workers_are_woken_by_the_commit_of_a_send_in_a_long_transaction(
    database_url: str, db: Db
) -> None:
    db.execute("LISTEN task_queue_default")
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT horsies_send('add')")
        assert list(db.notifies(timeout=0.2)) == []
        connection.commit()

    assert [note.channel for note in db.notifies(timeout=10, stop_after=1)] == ["task_queue_default"]


def test_the_functions_keep_to_their_own_schema(database_url: str, db: Db) -> None:
    db.execute("CREATE SCHEMA other; CREATE TABLE other.horsies_tasks (id integer)")
    with psycopg.connect(database_url, options="-c search_path=other,public") as connection:
        connection.execute("SELECT public.horsies_send('add')")

    assert task(db)["task_name"] == "add"


def test_a_row_with_nothing_but_a_name_is_a_task(app: Horsies, hands: Hands, db: Db) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name) VALUES ('add')")

    task_id = task(db)["id"]
    info = app.handle(task_id).info().unwrap()
    assert info is not None
    assert (info.status, info.queue_name, info.priority) == (TaskStatus.PENDING, "default", 100)
    (claimed,) = hands.run_next()
    assert claimed.id == str(task_id)
    hands.complete([claimed])
    assert app.handle(task_id).get(timeout_ms=0).unwrap() == 5


@pytest.mark.parametrize("table", ["horsies_tasks", "horsies_tasks_live"])
@pytest.mark.parametrize(
    ("columns", "values", "words"),
    [
        ("priority", "0", "is 0; it must be from 1 to 100"),
        ("priority", "101", "is 101; it must be from 1 to 100"),
        ("task_name", "''", "has 0 characters; it must have 1 to 255"),
        ("task_name", "repeat('x', 256)", "has 256 characters; it must have 1 to 255"),
        ("queue_name", "''", "a name of 0 characters; it must have 1 to 100"),
        ("queue_name", "repeat('x', 101)", "a name of 101 characters; it must have 1 to 100"),
        (
            "status, claimed_by_worker_id",
            "'DONE', gen_random_uuid()",
            "is DONE, which does not go with live = t",
        ),
    ],
)
def test_a_row_that_cannot_be_a_task_is_refused_with_all_that_came_with_it(
    db: Db, table: str, columns: str, values: str, words: str
) -> None:
    name = "" if columns == "task_name" else "task_name, "
    given = values if columns == "task_name" else f"'add', {values}"

    with pytest.raises(psycopg.errors.CheckViolation, match=words):
        db.execute(f"INSERT INTO {table} (task_name) VALUES ('add')".encode() + b"; " + (
            f"INSERT INTO {table} ({name}{columns}) VALUES ({given})".encode()
        ))  # fmt: skip

    assert db.execute("SELECT FROM horsies_tasks").fetchall() == []


def test_a_finished_row_must_look_finished(db: Db) -> None:
    row = "INSERT INTO horsies_tasks (task_name, live, status, terminal_at) VALUES ('add', false, 'RUNNING', now())"

    with pytest.raises(psycopg.errors.CheckViolation, match="is RUNNING, which does not go with live = f"):
        db.execute(row.encode())


# --- ids


def made_at(task_id: UUID) -> float:
    return (task_id.int >> 80) / 1000


INSERT = "INSERT INTO horsies_tasks (task_name) VALUES ('add') RETURNING id"


def test_an_id_that_the_database_makes_is_of_version_7_and_of_its_moment(db: Db) -> None:
    now = "SELECT extract(epoch FROM clock_timestamp())::float8 AS at"
    (before,) = db.execute(now).fetchall()
    made = [send(db, "'add'"), *(row["id"] for row in db.execute(INSERT))]
    (after,) = db.execute(now).fetchall()

    for task_id in made:
        assert (task_id.version, task_id.variant) == (7, "specified in RFC 4122")
        assert before["at"] - 0.001 <= made_at(task_id) <= after["at"]


def test_tasks_of_python_of_plain_sql_and_of_defaults_are_listed_newest_first(app: Horsies, db: Db) -> None:
    add = define_add(app)
    sent: list[str] = []
    for _ in range(20):
        sent.append(add.send(1).unwrap().task_id)
        sent.append(str(send(db, "'add'")))
        sent += [str(row["id"]) for row in db.execute(INSERT)]

    listed = [str(row["id"]) for row in db.execute("SELECT id FROM horsies_tasks ORDER BY id DESC")]

    assert listed == sent[::-1]


def test_ids_of_one_statement_sort_as_they_were_made(db: Db) -> None:
    made = [row["id"] for row in db.execute("SELECT horsies_new_id() AS id FROM generate_series(1, 20000)")]
    stamps = [task_id.int >> 64 for task_id in made]

    assert stamps == sorted(stamps)
    assert len(set(made)) == 20_000
    assert len(set(stamps)) > 1_000  # not all of one millisecond


def test_ids_with_a_place_sort_by_it(db: Db) -> None:
    query = "SELECT horsies_new_id(place) AS id FROM generate_series(1, 20000) AS place"
    made = [row["id"] for row in db.execute(query)]

    assert [task_id.int >> 64 for task_id in made] == sorted({task_id.int >> 64 for task_id in made})


def test_making_an_id_is_inlined_for_a_call_per_row_would_be_slow(db: Db) -> None:
    plan = db.execute("EXPLAIN (VERBOSE, COSTS OFF) SELECT horsies_new_id(4)").fetchall()

    assert "gen_random_uuid" in str(plan)
    assert "horsies_new_id" not in str(plan)


def test_a_role_with_a_search_path_of_its_own_gets_ids_from_the_default(db: Db) -> None:
    db.execute("SET search_path = pg_temp")
    (row,) = db.execute("INSERT INTO public.horsies_tasks (task_name) VALUES ('add') RETURNING id").fetchall()

    assert row["id"].version == 7
