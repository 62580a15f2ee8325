"""horsies, as it is here."""

import os
from contextlib import contextmanager

from protocol import URL, Producer, become, begun, burn, nap, rest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.db.migrations import migrate

config = PostgresConfig(database_url=URL)
FLAGS = os.environ.get("BENCH_HORSIES", "").split()
# A fixed prefetch needs a lease of a given length; everything else is as by default.
LEASE_MS = 30_000 if "1000" in FLAGS else None
app = Horsies(AppConfig(broker=config, claim_lease_ms=LEASE_MS))


@app.task("noop")
def noop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=begun(n))


tasks = {
    "burn": app.task("burn")(burn),
    "rest": app.task("rest")(rest if os.environ.get("BENCH_REST") == "async" else nap),
    "nap": app.task("nap")(nap),
}


async def setup() -> None:
    await migrate(config)


@contextmanager
def producer():
    yield Producer(
        send=lambda n: noop.send(n).unwrap(),
        bulk=lambda numbers: noop.send_many([(n,) for n in numbers]).unwrap(),
        wait=lambda handle: handle.get(30_000).unwrap(),
        work=lambda n, load, seconds: tasks[load].send(n, seconds).unwrap(),
    )


def worker(processes: int) -> None:
    become(
        "horsies",
        "worker",
        "horsies_peer:app",
        "--processes",
        str(processes),
        "--loglevel",
        "CRITICAL",
        *FLAGS,
    )
