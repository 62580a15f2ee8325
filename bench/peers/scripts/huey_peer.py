"""Huey on Redis: worker processes, blocking pop, results stored."""

# pyright: basic, reportMissingImports=false

from contextlib import contextmanager

from huey import RedisHuey
from protocol import URL, Producer, become, begun

huey = RedisHuey("bench", url=URL, blocking=True)


@huey.task()
def noop(n: int) -> int:
    return begun(n)


@contextmanager
def producer():
    yield Producer(send=noop, wait=lambda result: result(blocking=True, timeout=30))


def worker(processes: int) -> None:
    become("huey.bin.huey_consumer", "huey_peer.huey", "-w", str(processes), "-k", "process", "-q")
