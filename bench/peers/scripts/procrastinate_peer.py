"""Procrastinate: sync sends, async workers. It keeps no results."""

# pyright: basic, reportMissingImports=false

import logging
from contextlib import contextmanager

import procrastinate
from protocol import URL, Producer, begun, burn, copies, nap, rest

logging.getLogger("procrastinate").setLevel(logging.ERROR)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=1, max_size=20))


@app.task(name="noop")
async def noop(n: int) -> None:
    begun(n)


# A task that is no coroutine function runs in a thread.
tasks = {load: app.task(do, name=load) for load, do in {"burn": burn, "rest": rest, "nap": nap}.items()}


def setup() -> None:
    with app.open():
        app.schema_manager.apply_schema()


@contextmanager
def producer():
    with app.open():
        yield Producer(
            send=lambda n: noop.defer(n=n),
            bulk=lambda numbers: noop.batch_defer(*({"n": n} for n in numbers)),
            work=lambda n, load, seconds: tasks[load].defer(n=n, seconds=seconds),
        )


def worker(processes: int) -> None:
    copies(processes, lambda: app.run_worker(concurrency=20, install_signal_handlers=False))
