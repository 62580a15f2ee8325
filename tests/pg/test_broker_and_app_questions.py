"""What a broker and an app can be asked: tasks by id, stale and expired tasks, workers, and the database itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from horsies import BrokerErrorCode, Horsies, OperationalErrorCode, TaskResult, TaskStatus
from horsies.db.ids import new_ids
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.support.proxy import Proxy

Db = psycopg.Connection[dict[str, Any]]


def test_a_task_is_found_by_its_id(app: Horsies, add: Add, hands: Hands) -> None:
    handle = add.delay(2, 3)
    hands.complete(hands.run_next())
    broker = app.get_broker()

    expected = handle.info(include_result=True, include_attempts=True).unwrap()
    assert expected is not None
    everything: dict[str, Any] = {"include_result": True, "include_attempts": True}
    for found in (
        app.get_task_info(handle.task_id, **everything),
        asyncio.run(app.get_task_info_async(handle.task_id, **everything)),
        broker.get_task_info(handle.task_id, **everything),
        asyncio.run(broker.get_task_info_async(handle.task_id, **everything)),
    ):
        assert found.unwrap() == expected
    assert expected.result == TaskResult(ok=5)
    for unknown in ("nonsense", new_ids(1)[0]):
        assert broker.get_task_info(unknown).unwrap() is None
        assert app.get_task_info(unknown).unwrap() is None


def test_a_result_is_found_by_the_id_of_its_task(app: Horsies, add: Add, hands: Hands) -> None:
    handle = add.delay(2, 3)
    hands.complete(hands.run_next())

    assert app.get_result(handle.task_id, timeout_ms=5_000) == TaskResult(ok=5)
    assert app.get_result(handle.task_id, timeout_ms=timedelta(seconds=5)) == TaskResult(ok=5)
    assert asyncio.run(app.get_result_async(handle.task_id, timedelta(seconds=5))) == TaskResult(ok=5)


def test_tasks_of_a_silent_worker_are_stale(app: Horsies, add: Add, hands: Hands, db: Db) -> None:
    hands.register("default", waiting=False)
    handle = add.delay(1)
    hands.run_next()
    broker = app.get_broker()
    assert asyncio.run(broker.get_stale_tasks()).unwrap() == []

    db.execute("UPDATE horsies_workers SET last_beat_at = now() - interval '3 minutes'")

    (found,) = asyncio.run(broker.get_stale_tasks()).unwrap()
    assert (found.task_id, found.status, found.task_name) == (handle.task_id, TaskStatus.RUNNING, "add")
    for longer in (4, timedelta(minutes=4)):
        assert asyncio.run(broker.get_stale_tasks(longer)).unwrap() == []


def test_pending_tasks_past_their_time_are_expired_tasks(app: Horsies, add: Add) -> None:
    late = add.with_options(good_until=datetime.now(UTC) - timedelta(seconds=1)).delay(1)
    add.with_options(good_until=datetime.now(UTC) + timedelta(hours=1)).delay(1)
    add.delay(1)

    (found,) = asyncio.run(app.get_broker().get_expired_tasks()).unwrap()
    assert (found.task_id, found.status) == (late.task_id, TaskStatus.PENDING)


def test_running_tasks_of_a_dead_worker_can_be_marked_as_failed(
    make_app: Callable[..., Horsies], hire: Callable[[], Hands], db: Db
) -> None:
    app = make_app()
    add = define_add(app)
    alive, dead = hire(), hire()
    alive.register("default", waiting=False)
    dead.register("default", waiting=False)
    healthy = add.delay(1)
    alive.run_next()
    lost = add.delay(2)
    dead.run_next()
    waiting = add.delay(3)
    dead.claim()
    db.execute("UPDATE horsies_workers SET dead_at = now() WHERE worker_id = %s", [dead.worker_id])
    broker = app.get_broker()

    assert asyncio.run(broker.mark_stale_tasks_as_failed()).unwrap() == 1

    assert lost.get(timeout_ms=0).unwrap_err().error_code is OperationalErrorCode.WORKER_CRASHED
    statuses = {task.task_id: task.info().unwrap() for task in (healthy, waiting)}
    assert [info and info.status for info in statuses.values()] == [TaskStatus.RUNNING, TaskStatus.CLAIMED]
    assert asyncio.run(broker.mark_stale_tasks_as_failed(timedelta(seconds=1))).unwrap() == 0
    assert asyncio.run(broker.requeue_stale_claimed()).unwrap() == 1
    assert [task.id for task in alive.run_next()] == [waiting.task_id]


def test_the_handler_of_a_failure_is_sent_when_a_stale_task_is_marked(
    app: Horsies, hands: Hands, db: Db
) -> None:
    define_add(app, on_failure="tell").delay(1)
    hands.run_next()

    assert asyncio.run(app.get_broker().mark_stale_tasks_as_failed()).unwrap() == 1

    rows = db.execute("SELECT task_name FROM horsies_tasks WHERE status = 'PENDING'").fetchall()
    assert [row["task_name"] for row in rows] == ["tell"]


@pytest.mark.parametrize("wrong", [-1, "5", True, float("nan"), 10**400, timedelta(seconds=-1)])
def test_a_threshold_that_is_none_is_refused(app: Horsies, wrong: Any) -> None:
    broker = app.get_broker()
    for ask in (broker.get_stale_tasks, broker.mark_stale_tasks_as_failed, broker.requeue_stale_claimed):
        with pytest.raises(ValueError, match="use a number from 0, or a timedelta"):
            asyncio.run(cast("Any", ask)(wrong))


def test_workers_are_listed_with_their_states(app: Horsies, hire: Callable[[], Hands], db: Db) -> None:
    alive, dead = hire(), hire()
    alive.register("default", waiting=False)
    dead.register("default", waiting=False)
    db.execute(
        "UPDATE horsies_workers SET dead_at = now(), state = 'dead' WHERE worker_id = %s", [dead.worker_id]
    )
    ids = {str(alive.worker_id): "alive", str(dead.worker_id): "dead"}

    listed = app.list_worker_states().unwrap()
    assert [ids[worker.worker_id] for worker in listed] == ["alive", "dead"]
    assert listed == asyncio.run(app.list_worker_states_async()).unwrap()
    for pinged in (app.ping_workers().unwrap(), asyncio.run(app.ping_workers_async()).unwrap()):
        assert [ids[worker.worker_id] for worker in pinged] == ["alive"]
    found = app.get_worker_state(dead.worker_id).unwrap()
    assert found is not None
    assert found.state == "dead"
    assert asyncio.run(app.get_worker_state_async(str(dead.worker_id))).unwrap() == found
    assert app.get_worker_state("nonsense").unwrap() is None


def test_the_history_of_a_worker_has_its_newest_snapshot_first(app: Horsies, hands: Hands, db: Db) -> None:
    hands.register("default", waiting=False)
    for minutes in (3, 1, 2):
        db.execute(
            """
            INSERT INTO horsies_worker_states (worker_id, snapshot_at, hostname, pid, state, processes, max_claim_batch,
                max_claim_per_worker, queues, queue_priorities, queue_max_concurrency, recovery_config, tasks_running,
                tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb, worker_started_at,
                current_task_ids)
            VALUES (%s, now() - make_interval(mins => %s), 'h', 1, 'busy', 1, 1, 1, '{default}', '{}', '{}', '{}', %s, 0, 1, 1, 1, 1,
                now(), '{}')
            """,
            [hands.worker_id, minutes, minutes],
        )

    history = app.get_worker_state_history(hands.worker_id).unwrap()
    assert [snapshot.tasks_running for snapshot in history] == [1, 2, 3]
    assert (
        asyncio.run(app.get_worker_state_history_async(str(hands.worker_id), limit=1)).unwrap() == history[:1]
    )
    assert app.get_worker_state_history("nonsense").unwrap() == []


def test_a_database_that_is_away_is_an_error_and_no_exception(
    make_app: Callable[..., Horsies], proxy: Proxy
) -> None:
    app = make_app(url=proxy.url)
    assert app.ping_database().unwrap() >= 0
    assert asyncio.run(app.ping_database_async()).unwrap() >= 0
    proxy.refusing = True
    proxy.cut()

    broker = app.get_broker()
    for result, code in (
        (app.ping_database(), BrokerErrorCode.MONITORING_QUERY_FAILED),
        (app.list_worker_states(), BrokerErrorCode.MONITORING_QUERY_FAILED),
        (broker.get_task_info(new_ids(1)[0]), BrokerErrorCode.TASK_INFO_QUERY_FAILED),
        (asyncio.run(broker.get_stale_tasks()), BrokerErrorCode.TASK_INFO_QUERY_FAILED),
        (asyncio.run(broker.requeue_stale_claimed()), BrokerErrorCode.RECOVERY_FAILED),
        (asyncio.run(broker.ensure_schema_initialized()), BrokerErrorCode.SCHEMA_INIT_FAILED),
    ):
        error = cast("Any", result).unwrap_err()
        assert (error.code, error.retryable) == (code, True)
    proxy.refusing = False
    assert app.ping_database().is_ok()


def test_a_closed_broker_opens_again(app: Horsies, add: Add) -> None:
    add.delay(1)
    assert app.get_broker().close().is_ok()
    add.delay(2)
    assert asyncio.run(app.get_broker().close_async()).is_ok()


def test_an_unreachable_server_is_told_with_its_reason(make_app: Callable[..., Horsies]) -> None:
    broker = make_app(url="postgresql://ann:s3cret@127.0.0.1:1/app").get_broker()

    error = asyncio.run(broker.ensure_schema_initialized()).unwrap_err()

    first = error.message.splitlines()[0]
    assert first.startswith("error[HRS-413]: cannot reach PostgreSQL at ")
    assert first.endswith("Connection refused")
    assert "s3cret" not in error.message
