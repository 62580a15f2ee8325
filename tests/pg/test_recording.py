"""The record of a worker goes along with its beat, and the lease depends on nothing in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import AppConfig, PostgresConfig
from horsies.db.connection import TRANSIENT, Connection, connect_worker
from horsies.status import WorkerState
from horsies.worker import stats
from horsies.worker.claim import Limits
from horsies.worker.stats import Activity, ResourceMeter, StatsRecord, Usage, WorkerStats
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]

WORKER = UUID(int=7)
LIMITS = Limits(
    prefetch=0,
    max_claim_per_worker=1,
    max_claim_batch=0,
    cluster_wide_cap=None,
    poll_seconds=5.0,
    hold_seconds=180.0,
)
DOING = Activity(worker_id=WORKER, state=WorkerState.IDLE, running=0, claimed=0, at_work=[])
REGISTER = """
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)
VALUES (%s, 'host', 1, 1, '{default}', now())
"""
RENEW = b"UPDATE horsies_workers SET lease_expires_at = now() + interval '1 hour'"


def stats_of(url: str, meter: ResourceMeter) -> WorkerStats:
    return WorkerStats(AppConfig.for_database_url(url), LIMITS, [], 1, meter)


async def taken(keeper: WorkerStats) -> StatsRecord:
    record = await keeper.take(DOING)
    assert record is not None
    assert await keeper.take(DOING) is None
    return record


async def worker_connection(url: str) -> Connection:
    return await connect_worker(PostgresConfig(database_url=url), "horsies-heartbeat")


async def beat(url: str, meanwhile: Callable[[Connection], object]) -> float:
    """Renew, and write the record in the same transaction; gives back how soon the next one is due."""
    keeper = stats_of(url, ResourceMeter())
    async with await worker_connection(url) as connection:
        record = await taken(keeper)
        async with connection.transaction():
            await connection.execute(RENEW)
            meanwhile(connection)
            await keeper.write(connection, record)
    return keeper.pause()


def test_a_record_that_is_refused_leaves_the_beat_as_it_was_and_is_due_again_soon(
    database_url: str, db: Db
) -> None:
    db.execute(REGISTER, (WORKER,))
    db.execute("ALTER TABLE horsies_worker_states ADD CONSTRAINT refused CHECK (pid > 1) NOT VALID")

    assert asyncio.run(beat(database_url, lambda _: None)) <= 2
    assert db.execute("SELECT FROM horsies_workers WHERE lease_expires_at > now()").rowcount == 1
    assert db.execute("SELECT FROM horsies_worker_states").rowcount == 0


def test_a_beat_whose_connection_is_lost_with_the_record_is_not_taken_for_done(
    database_url: str, db: Db
) -> None:
    db.execute(REGISTER, (WORKER,))

    def cut(connection: Connection) -> None:
        pid = connection.info.backend_pid
        db.execute("SELECT pg_terminate_backend(%s)", (pid,))
        sessions = "SELECT FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: db.execute(sessions, (pid,)).rowcount == 0, what="the session's end")

    with pytest.raises(TRANSIENT):
        asyncio.run(beat(database_url, cut))
    assert db.execute("SELECT FROM horsies_workers WHERE lease_expires_at > now()").rowcount == 0


def test_a_beat_does_not_wait_for_what_cannot_be_measured_in_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "MEASURE_SECONDS", 0.05)
    let_go = threading.Event()

    class Slow(ResourceMeter):
        def measure(self) -> Usage:
            let_go.wait(20)
            return super().measure()

    async def look() -> tuple[StatsRecord | None, float]:
        keeper = stats_of(database_url, Slow())
        try:
            return await keeper.take(DOING), keeper.pause()
        finally:
            let_go.set()

    record, pause = asyncio.run(look())
    assert record is None
    assert pause <= 2


def test_a_worker_that_stops_within_a_transaction_does_not_hold_its_locks_for_ever(database_url: str) -> None:
    async def ask() -> object:
        async with await worker_connection(database_url) as connection:
            row = await (await connection.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
        return row and row[0]

    assert asyncio.run(ask()) == "12s"
    assert psycopg.errors.IdleInTransactionSessionTimeout in TRANSIENT
