"""The faults: each strikes a scene once and has healed when it returns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg import sql

from horsies.db.migrations import LATEST
from tests.faults.scene import OwnServer, Scene
from tests.faults.testimony import now
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

OURS = "datname = current_database() AND application_name IN ('horsies-worker', 'horsies-heartbeat', 'horsies-listener')"

UNLIMITED = "-c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0"


def nothing(scene: Scene) -> None:
    """How it goes when nothing goes wrong."""


# Processes


def kill_worker(scene: Scene) -> None:
    scene.kill(scene.any_worker())
    scene.hire(ready=False)


def kill_all_processes(scene: Scene) -> None:
    """As when a machine loses power."""
    scene.kill(scene.any_worker(), whole=True)
    scene.hire(ready=False)


def kill_child(scene: Scene) -> None:
    scene.kill_child(scene.any_worker())


def freeze_parent(scene: Scene) -> None:
    scene.freeze(scene.any_worker(), 2 * scene.lease, whole=False)


def freeze_all_processes(scene: Scene) -> None:
    scene.freeze(scene.any_worker(), 2 * scene.lease, whole=True)


def freeze_child(scene: Scene) -> None:
    """Its worker is alive, and so is it: nobody takes it for dead."""
    scene.freeze_child(scene.any_worker(), 2 * scene.lease)


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
    began = now()
    server.crash()
    scene.pause(scene.random.uniform(0.0, 0.5))
    server.start()
    scene.server_crashes.append((began, now()))


def undo_a_claim(server: OwnServer, scene: Scene) -> None:
    """Crash the server while the claim of a running task is not on disk, until such a claim was undone.

    Such claims are those of tasks that come while a child is idle, so few tasks are sent, for as long as it takes.
    """
    assert any(_undoes_a_claim(server, scene) for _ in range(10)), "no crash has undone a claim"


# Claims since the last look, if the log from then on is not on disk: their own part of it is not, either.
_NOT_ON_DISK = """SELECT id, claim_seq, started_at FROM horsies_tasks_live
                   WHERE status = 'RUNNING' AND started_at > %s AND pg_current_wal_flush_lsn() <= %s"""


def _undoes_a_claim(server: OwnServer, scene: Scene) -> bool:
    with psycopg.connect(scene.url, autocommit=True) as connection:
        claims: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + 60
        while not claims:
            assert time.monotonic() < deadline, "there was no claim that is not on disk"
            scene.keep_sending(10, 5.0)
            look = connection.execute("SELECT clock_timestamp(), pg_current_wal_insert_lsn()").fetchone()
            assert look is not None
            scene.pause(0.002)
            claims = connection.execute(_NOT_ON_DISK, look).fetchall()
        crash_server(server, scene)
    rows = {
        task_id: tuple(claim)
        for task_id, *claim in scene.execute("SELECT id, claim_seq, started_at FROM horsies_tasks")
    }
    # A task whose claim was undone may have been claimed again, under the same number and at another time.
    return any(
        rows[task_id][0] < claim_seq or (rows[task_id][0] == claim_seq and rows[task_id][1] != started_at)
        for task_id, claim_seq, started_at in claims
    )


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
        scene.pause(min(scene.plan.seconds, 5.0))
        scene.execute("VACUUM horsies_tasks_live")


def lock_rows(scene: Scene) -> None:
    """Another session locks some live tasks and keeps them for a moment; a task that ends meanwhile leaves it none."""
    with suppress(psycopg.errors.SerializationFailure), psycopg.connect(scene.url) as connection:
        connection.execute(
            "SELECT id FROM horsies_tasks_live ORDER BY random() LIMIT 30 FOR UPDATE SKIP LOCKED"
        )
        scene.pause(scene.random.uniform(0.005, 0.08))


def lock_table(scene: Scene) -> None:
    """Nobody gets at a task; leases are renewed all the same."""
    with psycopg.connect(scene.url) as connection:
        connection.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        scene.pause(3 * scene.lease)  # long enough for somebody to look for work that was lost


def kill_backend(scene: Scene) -> None:
    """The server ends all other sessions and recovers when one of its processes is killed."""
    (pid,) = scene.random.choice(scene.execute(f"SELECT pid FROM pg_stat_activity WHERE {OURS}"))
    began = now()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: scene.live() >= 0, what="the server having recovered")
    scene.server_crashes.append((began, now()))


def take_all_connections(scene: Scene) -> None:
    """All sessions end, and somebody else takes every connection that there is."""
    end_sessions(scene)
    with ExitStack() as taken:
        with suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(scene.url))
        scene.pause(1.0)


def refuse_writes(scene: Scene) -> None:
    """Nothing can be written, as after a switch to a server that is not the first one yet."""
    _set(scene, "default_transaction_read_only", "on")
    scene.pause(1.0)
    _set(scene, "default_transaction_read_only", None)


def hurry(scene: Scene) -> None:
    """Statements and locks have less time than they need."""
    _set(scene, "lock_timeout", "1ms")
    _set(scene, "statement_timeout", "8ms")
    scene.pause(1.0)
    _set(scene, "lock_timeout", None)
    _set(scene, "statement_timeout", None)


def isolate(scene: Scene) -> None:
    """The database would rather have transactions fail than see what others wrote."""
    _set(scene, "default_transaction_isolation", "serializable")


def _set(scene: Scene, name: str, value: str | None) -> None:
    """Change a setting of the database for all who connect from now on, and have everyone connect."""
    with psycopg.connect(scene.url, autocommit=True, options=UNLIMITED) as admin:
        how = sql.SQL("ALTER DATABASE {} SET {} = {}")
        new = sql.SQL("DEFAULT") if value is None else sql.Literal(value)
        admin.execute(how.format(sql.Identifier(admin.info.dbname), sql.Identifier(name), new))
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


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
    _lose_replies(scene, [scene.producer_proxy], 0.1)


def lose_replies_to_workers(scene: Scene) -> None:
    """Tasks are claimed, started and ended, and their worker never hears of it."""
    _lose_replies(scene, scene.worker_proxies, 0.05)


def lose_many_replies(count: int, scene: Scene, *, of_producers: bool) -> None:
    """Half of all replies are lost until so many have been."""
    proxies = [proxy for proxy in (scene.producer_proxy,) if proxy] if of_producers else scene.worker_proxies
    for proxy in proxies:
        proxy.lose_replies(0.5, scene.random)
    eventually(lambda: sum(proxy.lost for proxy in proxies) >= count, 300, f"{count} replies being lost")
    for proxy in proxies:
        proxy.lose_replies(0.0, scene.random)


def _lose_replies(scene: Scene, proxies: Sequence[Proxy], share: float) -> None:
    for proxy in proxies:
        proxy.lose_replies(share, scene.random)
    scene.pause(min(scene.plan.seconds, 5.0))
    for proxy in proxies:
        proxy.lose_replies(0.0, scene.random)


def partition_worker(scene: Scene) -> None:
    """One worker is heard of no more for longer than its lease, and hears nothing; the others go on."""
    proxy = scene.proxy_of(scene.any_worker())
    proxy.hold()
    scene.pause(2 * scene.lease)
    proxy.release()


def deafen_listeners(scene: Scene) -> None:
    """The connections that listen are open, and nothing comes over them."""
    for proxy in scene.worker_proxies:
        proxy.deaf = "horsies-listener"
    scene.pause(min(scene.plan.seconds, 5.0))
    for proxy in scene.worker_proxies:
        proxy.deaf = ""


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
    scene.execute("ALTER TABLE horsies_tasks ADD COLUMN of_the_next_release text")
    scene.execute("ALTER TABLE horsies_workers ADD COLUMN of_the_next_release text")
    scene.execute("INSERT INTO horsies_schema_version (version) VALUES (%s)", (LATEST + 1,))
    late = scene.hire(ready=False)
    scene.workers.remove(late)
    assert late.wait() == 1
    assert f"schema version {LATEST + 1}" in late.log
    for table in ("horsies_tasks", "horsies_workers"):
        scene.execute(f"ALTER TABLE {table} DROP COLUMN of_the_next_release")
    scene.execute("DELETE FROM horsies_schema_version WHERE version = %s", (LATEST + 1,))
    scene.hire()
