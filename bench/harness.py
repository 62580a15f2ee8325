"""A server, a database of the run's own, workers as users start them, and the server's own counters."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from tests.support import servers

ROOT = Path(__file__).parent.parent
# Of servers that the run starts: safe settings, and room enough for no checkpoint to fall into a short measurement.
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "300"}


# Flags of a worker, for settings other than the default ones.
PREFETCH = ("--prefetch-buffer", "1000")
STRICT = ("--prefetch-buffer", "0")
NO_RECYCLING = ("--max-tasks-per-child", "0")


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has done so far."""

    transactions: int
    wal_bytes: int
    updates: int
    hot_updates: int


class Bench:
    """One run's database, and a session on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)

    def value(self, sql: str) -> Any:
        row = self.session.execute(sql.encode()).fetchone()
        return None if row is None else row[0]

    def empty(self) -> None:
        """Start the next measurement from empty tables."""
        self.session.execute(
            "TRUNCATE horsies_tasks, horsies_attempts, horsies_workers, horsies_workflows, horsies_workflow_tasks CASCADE"
        )
        self.session.execute("VACUUM ANALYZE horsies_tasks_live")
        self.session.execute("CHECKPOINT")

    def settle_statistics(self) -> None:
        self.session.execute("VACUUM ANALYZE horsies_tasks_live")
        self.session.execute("CHECKPOINT")

    def counters(self) -> Counters:
        """To be read when the sessions that count have ended: a session tells what it did then, or once in a while."""
        time.sleep(0.3)  # for the last of them to be gone
        self.session.execute("SELECT pg_stat_clear_snapshot()")
        transactions = self.value(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        wal_bytes = self.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        updates = self.session.execute(
            "SELECT coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0) FROM pg_stat_user_tables"
        ).fetchone()
        assert updates is not None
        return Counters(int(transactions), int(wal_bytes), int(updates[0]), int(updates[1]))

    def wait_until(self, sql: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(sql):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {seconds} s: {sql}")
            time.sleep(0.05)

    @contextmanager
    def worker(
        self, *arguments: str, app: str = "bench.app:app", loglevel: str = "WARNING"
    ) -> Generator[None]:
        """Run a worker for as long as the block lasts, with default settings but for these flags."""
        command = [
            sys.executable,
            "-m",
            "horsies",
            "worker",
            app,
            "--loglevel",
            loglevel,
            *arguments,
        ]
        environment = {**os.environ, "HORSIES_DATABASE_URL": self.url}
        if _prefetches(arguments):
            environment["BENCH_PREFETCH"] = "yes"
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)

    def wait_for_idle_worker(self) -> None:
        self.wait_until("SELECT bool_and(waiting) FROM horsies_workers")


@contextmanager
def bench_database(server: str) -> Generator[Bench]:
    """Yield a database of the run's own on a server as `tests.support.servers` names them; it is dropped in the end."""
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        home = Path(folder)
        home.chmod(0o711)  # so that the server's user can enter
        url = servers.acquire(server, home, SETTINGS)
        try:
            with _new_database(url) as bench:
                yield bench
        finally:
            servers.release(server, home)


@contextmanager
def _new_database(server_url: str) -> Generator[Bench]:
    name = f"bench_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    bench = Bench(servers.named(server_url, name))
    try:
        yield bench
    finally:
        bench.session.close()
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _prefetches(arguments: Sequence[str]) -> bool:
    """True if these flags set a fixed prefetch."""
    flag = "--prefetch-buffer"
    return flag in arguments and arguments[arguments.index(flag) + 1] != "0"


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)
