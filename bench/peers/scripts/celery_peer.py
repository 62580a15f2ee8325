"""Celery on Redis: prefork, no gossip, events or heartbeats."""

# pyright: basic, reportMissingImports=false

from contextlib import contextmanager

from celery import Celery
from protocol import URL, Producer, become, begun, burn, nap

app = Celery("celery_peer", broker=URL, backend=URL)
app.conf.update(
    worker_prefetch_multiplier=128,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(n: int) -> int:
    return begun(n)


tasks = {load: app.task(name=load)(do) for load, do in {"burn": burn, "rest": nap, "nap": nap}.items()}


@contextmanager
def producer():
    yield Producer(
        send=lambda n: noop.delay(n),
        wait=lambda result: result.get(timeout=30),
        work=lambda n, load, seconds: tasks[load].delay(n, seconds),
    )


def worker(processes: int) -> None:
    become(
        "celery",
        "-A",
        "celery_peer",
        "worker",
        "-c",
        str(processes),
        "-l",
        "ERROR",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    )
