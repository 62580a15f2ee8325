"""The faults: each strikes a scene once and has healed when it returns."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from horsies.storage.migrate import LATEST
from tests.faults.scene import OwnServer, Scene
from tests.support.proxy import Proxy

OURS = "datname = current_database() AND application_name IN ('horsies-worker', 'horsies-heartbeat', 'horsies-listener')"


def nothing(scene: Scene) -> None:
    """How it goes when nothing goes wrong."""


# Processes


def kill_worker(scene: Scene) -> None:
    scene.kill(scene.any_worker())
    scene.hire(ready=False)


def kill_child(scene: Scene) -> None:
    scene.kill_child(scene.any_worker())


def freeze_parent(scene: Scene) -> None:
    scene.freeze(scene.any_worker(), 2 * scene.lease, whole=False)


def freeze_all_processes(scene: Scene) -> None:
    scene.freeze(scene.any_worker(), 2 * scene.lease, whole=True)


def replace_worker(scene: Scene) -> None:
    """A step of a rolling restart: a new worker comes, and the oldest one goes."""
    scene.hire()
    assert scene.dismiss(scene.workers[0]) == 0


# The server


def end_sessions(scene: Scene) -> None:
    scene.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")


def cancel_statements(scene: Scene) -> None:
    scene.execute(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OURS} AND state = 'active'")


def crash_server(server: OwnServer, scene: Scene) -> None:
    server.crash()
    scene.pause(scene.random.uniform(0.0, 0.5))
    server.start()


def lose_wake_ups(scene: Scene) -> None:
    """Nobody is notified of new tasks any more, and the listeners die."""
    for table in ("horsies_tasks", "horsies_tasks_live"):
        scene.execute(f"DROP TRIGGER IF EXISTS horsies_tasks_new ON {table}")
    scene.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'horsies-listener'"
    )


def hold_back_vacuum(scene: Scene) -> None:
    """A long transaction keeps every dead row."""
    with psycopg.connect(scene.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM horsies_tasks")
        scene.pause(scene.plan.seconds)
        scene.execute("VACUUM horsies_tasks_live")


def lock_rows(scene: Scene) -> None:
    """Another session locks some live tasks and keeps them for a moment; a task that ends meanwhile leaves it none."""
    with suppress(psycopg.errors.SerializationFailure), psycopg.connect(scene.url) as connection:
        connection.execute(
            "SELECT id FROM horsies_tasks_live ORDER BY random() LIMIT 30 FOR UPDATE SKIP LOCKED"
        )
        scene.pause(scene.random.uniform(0.005, 0.08))


# The network


def cut_connections(scene: Scene) -> None:
    for proxy in scene.proxies:
        proxy.cut()


def swallow_for_a_moment(scene: Scene) -> None:
    _swallow(scene, min(2.0, scene.lease / 4))


def swallow_everything(scene: Scene) -> None:
    """Longer than the lease: whoever is heard first afterwards may declare the others dead."""
    _swallow(scene, 2 * scene.lease)


def _swallow(scene: Scene, seconds: float) -> None:
    for proxy in scene.proxies:
        proxy.hold()
    scene.pause(seconds)
    for proxy in scene.proxies:
        proxy.release()


def delay_everything(scene: Scene) -> None:
    for proxy in scene.proxies:
        proxy.delay = 0.05
    scene.pause(1.0)
    for proxy in scene.proxies:
        proxy.delay = 0.0


def lose_statement(scene: Scene) -> None:
    for proxy in scene.proxies:
        proxy.lose_statement(scene.random.randrange(5))


def lose_replies_to_producers(scene: Scene) -> None:
    """Rows are stored, and their producers never hear of it."""
    assert scene.producer_proxy is not None
    _lose_replies(scene, scene.producer_proxy, 0.1)


def lose_replies_to_workers(scene: Scene) -> None:
    """Tasks are claimed, started and ended, and their worker never hears of it."""
    assert scene.worker_proxy is not None
    _lose_replies(scene, scene.worker_proxy, 0.05)


def _lose_replies(scene: Scene, proxy: Proxy, share: float) -> None:
    proxy.lose_replies(share, scene.random)
    scene.pause(min(scene.plan.seconds, 10.0))
    proxy.lose_replies(0.0, scene.random)


# The data

MALFORMED = {
    "NUL escape": ("plain", r'{"number": "\u0000"}'),
    "no JSON": ("plain", "{number: 1"),
    "wrong type": ("plain", '{"number": []}'),
    "wrong name": ("plain", '{"numeral": 1}'),
    "no object": ("plain", "[1, 2]"),
    "deep": ("plain", "[" * 5_000 + "]" * 5_000),
    "large": ("plain", '{"number": "' + "x" * 5_000_000 + '"}'),
    "unknown task": ("no_such_task", "{}"),
}


def insert_malformed_rows(scene: Scene) -> None:
    """Written by hand, and before all others in line."""
    for task, kwargs in MALFORMED.values():
        scene.strangers.add(_insert(scene, task, kwargs, priority=1))
    try:
        _insert(scene, "plain", "{}", priority=-5)
    except psycopg.errors.CheckViolation:
        return
    raise AssertionError("a priority of -5 was taken")


def _insert(scene: Scene, task: str, kwargs: str, priority: int) -> str:
    statement = (
        "INSERT INTO horsies_tasks (task_name, queue_name, priority, kwargs) VALUES (%s, 'wide', %s, %s)"
        " RETURNING id::text"
    )
    return scene.execute(statement, (task, priority, kwargs))[0][0]


def migrate_too_far(scene: Scene) -> None:
    """A newer release upgrades the schema: those who work go on, and those who start refuse until it is taken back."""
    scene.execute("INSERT INTO horsies_schema_version (version) VALUES (%s)", (LATEST + 1,))
    late = scene.hire(ready=False)
    scene.workers.remove(late)
    assert late.wait() == 1
    assert f"schema version {LATEST + 1}" in late.log
    scene.execute("DELETE FROM horsies_schema_version WHERE version = %s", (LATEST + 1,))
    scene.hire()
