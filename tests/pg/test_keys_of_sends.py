"""A task has its key however it is sent, and keeps it however it is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors

from horsies import Horsies, WorkflowValidationError, from_node, is_err, map_node
from horsies.db.queries.tasks import Failure
from horsies.db.queries.workers import Definition
from horsies.errors import MultipleValidationErrors
from horsies.task import BaseTask
from horsies.testing import drain
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def serve(app: Horsies) -> BaseTask[..., Any]:
    @app.task("serve", key="customer", key_concurrency=2, key_rate="600/m", cost="size")
    def serve(customer: str, size: float = 1.0) -> str:
        return customer

    return serve


def lanes(db: Db) -> dict[str, int]:
    rows = db.execute(
        "SELECT rate_key, count(*) AS tasks FROM horsies_tasks GROUP BY 1 ORDER BY 1"
    ).fetchall()
    return {row["rate_key"]: row["tasks"] for row in rows}


def test_each_way_to_send_computes_the_key(serve: BaseTask[..., Any], db: Db) -> None:
    serve.send("a").unwrap()
    serve.delay("a", size=2.5)
    serve.schedule(60, "a").unwrap()
    serve.send_many([("a",), {"customer": "b"}]).unwrap()
    serve.with_options(idempotency_key="once").send("a").unwrap()
    serve.with_options(key="vip").send("a").unwrap()
    serve.send_many([(f"c{number % 7}", 0.5) for number in range(1_400)]).unwrap()

    found = lanes(db)
    assert found == {"key=a": 5, "key=b": 1, "key=vip": 1, **{f"key=c{number}": 200 for number in range(7)}}
    costs = db.execute("SELECT DISTINCT cost FROM horsies_tasks ORDER BY 1").fetchall()
    assert [row["cost"] for row in costs] == [0.5, 1.0, 2.5]


def test_a_bulk_send_with_one_bad_key_stores_nothing(serve: BaseTask[..., Any], db: Db) -> None:
    sent = serve.send_many([*[("a",)] * 1_500, ("x" * 201,)])
    assert is_err(sent)
    assert "call 1500 of send_many" in sent.err_value.message
    assert lanes(db) == {}


def test_a_failed_send_is_repeated_with_its_key(serve: BaseTask[..., Any], db: Db) -> None:
    db.execute("ALTER TABLE horsies_tasks_live RENAME TO gone")
    sent = serve.send("a", 2.0)
    assert is_err(sent)
    db.execute("ALTER TABLE gone RENAME TO horsies_tasks_live")

    serve.retry_send(sent.err_value).unwrap()

    assert db.execute("SELECT rate_key, cost FROM horsies_tasks").fetchall() == [
        {"rate_key": "key=a", "cost": 2.0}
    ]


def define(hands: Hands, key_source: str | None) -> None:
    hands.register(
        waiting=False,
        definitions=[
            Definition(
                "serve", "default", 100, False, 0, None, None, key_source=key_source, key_concurrency=2
            )
        ],
    )


def test_sql_takes_the_key_from_the_arguments_or_is_given_it(hands: Hands, db: Db) -> None:
    define(hands, "customer")
    db.execute(
        "SELECT horsies_send('serve', '{\"customer\": \"a\"}'), horsies_send('serve', '{\"customer\": 7}'),"
        " horsies_send('serve', '{\"customer\": \"a\"}', key => 'vip'), horsies_send('other', '{}', key => 'b')"
    )
    assert lanes(db) == {"key=7": 1, "key=a": 1, "key=b": 1, "key=vip": 1}


@pytest.mark.parametrize(
    ("source", "call", "words"),
    [
        ("customer", "horsies_send('serve', '{}')", "the key of task 'serve' is not known here"),
        ("customer", "horsies_send('serve', '{\"customer\": null}')", "is not known here"),
        ("customer", "horsies_send('serve', '{\"customer\": [1]}')", "is not known here"),
        ("()", "horsies_send('serve', '{\"customer\": \"a\"}')", "is not known here"),
        (None, "horsies_send('serve', '{}', key => repeat('x', 201))", "the key has 201 characters"),
        (None, "horsies_send('serve', '{}', key => '')", "the key has 0 characters"),
    ],
)
def test_sql_is_told_what_is_wrong_with_a_key(
    hands: Hands, db: Db, source: str | None, call: str, words: str
) -> None:
    define(hands, source)
    with pytest.raises(errors.InvalidParameterValue, match=words):
        db.execute(f"SELECT {call}".encode())
    assert lanes(db) == {}


def test_the_task_that_a_failure_sends_has_its_key(hands: Hands, db: Db) -> None:
    hands.register(
        waiting=False,
        definitions=[Definition("alarm", "default", 100, False, 0, None, None, key_source="task_name")],
    )
    db.execute(
        "INSERT INTO horsies_tasks (task_name, task_options) VALUES ('pay', '{\"on_failure\":\"alarm\"}')"
    )
    (task,) = hands.run_next()
    hands.store([Failure(task.id, task.claim_seq, '{"err":{}}', "X", "no", on_failure="alarm")])

    row = db.execute("SELECT rate_key FROM horsies_tasks_live").fetchone()
    assert row == {"rate_key": "key=pay"}


def test_a_task_that_is_requeued_has_the_same_key(hands: Hands, db: Db) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name, rate_key, cost) VALUES ('serve', 'key=a', 3)")
    hands.fail(hands.claim_keys())

    assert hands.requeue() == 1

    assert db.execute("SELECT rate_key, cost, live FROM horsies_tasks").fetchall() == [
        {"rate_key": "key=a", "cost": 3.0, "live": True}
    ]
    assert len(hands.claim_keys()) == 1


# --- workflows


def test_nodes_and_items_have_keys(app: Horsies, serve: BaseTask[..., Any], db: Db) -> None:
    @app.task("names")
    def names() -> list[str]:
        return ["x", "y"]

    first = names.node()
    spec: Any = app.workflow(
        "keys",
        [
            first,
            serve.node("a"),
            serve.node(node_id="given", task_key="b")(customer="a"),
            map_node(serve, over=first, task_key="all", param="customer"),
        ],
        definition_key="test.keys.v1",
    )
    spec.start().unwrap()

    drain(app)

    found = lanes(db)
    assert {lane: found[lane] for lane in found if lane} == {"key=a": 1, "key=all": 2, "key=b": 1}


@pytest.mark.parametrize("is_map", [False, True])
def test_a_key_that_comes_from_another_node_is_rejected(
    app: Horsies, serve: BaseTask[..., Any], is_map: bool
) -> None:
    @app.task("name")
    def name() -> str:
        return "x"

    @app.task("names")
    def names() -> list[str]:
        return ["x"]

    nodes: list[Any]
    if is_map:
        nodes = [first := names.node(), map_node(serve, over=first, param="customer")]
    else:
        nodes = [first := name.node(), serve.node(from_node(first))]
    with pytest.raises((WorkflowValidationError, MultipleValidationErrors)) as caught:
        app.workflow("keys", nodes, definition_key="test.keys.v1")
    assert "which is not known yet" in str(caught.value)
    assert "task_key" in str(caught.value)


def test_what_runs_in_a_test_has_its_key(
    app: Horsies, serve: BaseTask[..., Any], make_app: Callable[..., Horsies]
) -> None:
    serve.send_many([(f"c{number}",) for number in range(5)]).unwrap()
    assert sorted(ran.result.unwrap() for ran in drain(app)) == [f"c{number}" for number in range(5)]


def test_an_open_transaction_that_sends_holds_up_nothing_of_its_key(
    serve: BaseTask[..., Any], hands: Hands, database_url: str
) -> None:
    hands.execute("SET lock_timeout = '5s'")
    hands.execute("SET statement_timeout = '10s'")
    with psycopg.connect(database_url) as connection:
        late = serve.with_options(conn=connection).delay("a")
        first, second = serve.delay("a"), serve.delay("a")

        claimed = hands.claim_keys()
        assert [task.id for task in claimed] == [first.task_id, second.task_id]
        connection.commit()
    assert [task.id for task in hands.claim_keys(completed=claimed)] == [late.task_id]
