"""horsies, as it is here."""

import os
from contextlib import contextmanager

from protocol import URL, Producer, become, begun

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.db.migrations import migrate

config = PostgresConfig(database_url=URL)
app = Horsies(AppConfig(broker=config, claim_lease_ms=30_000))


@app.task("noop")
def noop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=begun(n))


async def setup() -> None:
    await migrate(config)


@contextmanager
def producer():
    yield Producer(
        send=lambda n: noop.send(n).unwrap(),
        bulk=lambda numbers: noop.send_many([(n,) for n in numbers]).unwrap(),
        wait=lambda handle: handle.get(30_000).unwrap(),
    )


def worker(processes: int) -> None:
    become(
        "horsies",
        "worker",
        "horsies_peer:app",
        "--processes",
        str(processes),
        "--max-tasks-per-child",
        "0",
        "--loglevel",
        "CRITICAL",
        *os.environ.get("BENCH_HORSIES", "").split(),
    )
