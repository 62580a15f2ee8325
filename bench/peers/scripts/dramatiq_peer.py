"""Dramatiq on Redis: eight threads in each process, results stored. By default an idle process looks once a second."""

# pyright: basic, reportMissingImports=false

from contextlib import contextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from protocol import URL, Producer, become, begun, burn, nap

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop(n: int) -> int:
    return begun(n)


tasks = {
    load: dramatiq.actor(do, actor_name=load, store_results=True)
    for load, do in {"burn": burn, "rest": nap, "nap": nap}.items()
}


@contextmanager
def producer():
    yield Producer(
        send=noop.send,
        wait=lambda message: message.get_result(block=True, timeout=30_000),
        work=lambda n, load, seconds: tasks[load].send(n, seconds),
    )


def worker(processes: int) -> None:
    become("dramatiq", "dramatiq_peer", "-p", str(processes), "-t", "8")
