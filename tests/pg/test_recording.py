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
from horsies.status import WorkerState
from horsies.storage.database import TRANSIENT, Connection, connect_worker
from horsies.worker import snapshot
from horsies.worker.snapshot import Activity, Meter, Record, Setup, Snapshots, Usage

Db = psycopg.Connection[dict[str, Any]]

WORKER = UUID(int=7)
SETUP = Setup(
    max_claim_batch=0,
    max_claim_per_worker=1,
    cluster_wide_cap=None,
    queue_priorities="{}",
    queue_max_concurrency="{}",
    recovery_config="{}",
)
REGISTER = """
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)
VALUES (%s, 'host', 1, 1, '{default}', now())
"""
RENEW = b"UPDATE horsies_workers SET lease_expires_at = now() + interval '1 hour'"


def snapshots(url: str, meter: Meter) -> Snapshots:
    doing = Activity(worker_id=WORKER, state=WorkerState.IDLE, running=0, claimed=0, at_work=[])
    return Snapshots(AppConfig.for_database_url(url), SETUP, meter, lambda: doing)


async def taken(keeper: Snapshots) -> Record:
    record = await keeper.take()
    assert record is not None
    assert await keeper.take() is None
    return record


async def worker_connection(url: str) -> Connection:
    return await connect_worker(PostgresConfig(database_url=url), "horsies-heartbeat")


async def beat(url: str, meanwhile: Callable[[Connection], object]) -> float:
    """Renew, and write the record in the same transaction; gives back how soon the next one is due."""
    keeper = snapshots(url, Meter())
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
        db.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    with pytest.raises(TRANSIENT):
        asyncio.run(beat(database_url, cut))
    assert db.execute("SELECT FROM horsies_workers WHERE lease_expires_at > now()").rowcount == 0


def test_a_beat_does_not_wait_for_what_cannot_be_measured_in_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MEASURE_SECONDS", 0.05)
    let_go = threading.Event()

    class Slow(Meter):
        def measure(self) -> Usage:
            let_go.wait(20)
            return super().measure()

    async def look() -> tuple[Record | None, float]:
        keeper = snapshots(database_url, Slow())
        try:
            return await keeper.take(), keeper.pause()
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
