"""The horsies that is on PyPI, with the settings that were the fastest of four."""

# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportAttributeAccessIssue=false

from contextlib import contextmanager

from protocol import URL, Producer, become, begun

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(
    AppConfig(
        broker=PostgresConfig(
            database_url=URL.replace("postgresql://", "postgresql+psycopg://"), worker_child_pool_check=False
        ),
        prefetch_buffer=64,
        claim_lease_ms=60_000,
    )
)


@app.task("noop")
def noop(*, n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=begun(n))


async def setup() -> None:
    (await app.get_broker().ensure_schema_initialized()).unwrap()


@contextmanager
def producer():
    yield Producer(send=lambda n: noop.send(n=n).unwrap(), wait=lambda handle: handle.get(30_000).ok)


def worker(processes: int) -> None:
    become(
        "horsies.core.cli",
        "worker",
        "released_peer:app",
        "--processes",
        str(processes),
        "--max-tasks-per-child",
        "0",
        "--loglevel",
        "CRITICAL",
    )
