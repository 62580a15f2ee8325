"""What the bench says to a peer: `python play.py MODULE COMMAND …`. The bench takes the times; nothing here computes a rate.

setup             make the tables
send N WIDTH      say «ready», wait for a line, send N tasks, WIDTH at a time, say «done»
bulk N SIZE       the same with the library's own call for SIZE tasks
latency N         send one at a time to an idle worker; for each say when it was sent and when the result came
arrive LOAD FILE  send tasks of this name at the times in the file; for each say when it was sent
worker PROCESSES  work until killed
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from protocol import Producer

WARM_UP = -1
Call = Callable[[Any], Any]


def main(module: str, command: str, *arguments: str) -> None:
    """A library that is async gets a loop; one that is not must not notice any."""
    peer = importlib.import_module(module)
    if command == "worker":
        peer.worker(int(arguments[0]))
        return
    values = [int(value) if value.isdecimal() else value for value in arguments]
    opened = peer.producer()
    with asyncio.Runner() as runner:

        def call(value: Any) -> Any:
            return runner.run(_awaited(value)) if inspect.isawaitable(value) else value

        if command == "setup":
            call(peer.setup())
        elif isinstance(opened, AbstractAsyncContextManager):
            library = call(opened.__aenter__())
            _commands[command](library, call, *values)
            call(opened.__aexit__(None, None, None))
        else:
            with opened as library:
                _commands[command](library, call, *values)


async def _awaited(value: Any) -> Any:
    return await value


def _ready(library: Producer, call: Call) -> None:
    """Everything is connected and has been used once."""
    call(library.send(WARM_UP))
    print("ready", flush=True)
    sys.stdin.readline()


def _send(library: Producer, call: Call, count: int, width: int) -> None:
    _ready(library, call)
    left = iter(range(count))
    if inspect.iscoroutinefunction(library.send):
        call(_send_async(library, left, width))
    elif width == 1:
        for number in left:
            library.send(number)
    else:
        with ThreadPoolExecutor(width) as threads:
            list(threads.map(library.send, left))
    print("done", flush=True)


async def _send_async(library: Producer, left: Iterator[int], width: int) -> None:
    async def send() -> None:
        for number in left:
            await library.send(number)

    await asyncio.gather(*(send() for _ in range(width)))


def _bulk(library: Producer, call: Call, count: int, size: int) -> None:
    assert library.bulk is not None
    _ready(library, call)
    for first in range(0, count, size):
        call(library.bulk(range(first, min(first + size, count))))
    print("done", flush=True)


def _latency(library: Producer, call: Call, count: int) -> None:
    is_async = inspect.iscoroutinefunction(library.send)
    pauses = random.Random(1)
    _ready(library, call)
    for number in range(count):
        seconds = pauses.uniform(0.005, 0.025) + (
            0.0 if library.wait else 0.03
        )  # the worker is to be idle again
        call(asyncio.sleep(seconds)) if is_async else time.sleep(seconds)
        sent_at = time.monotonic()
        task = call(library.send(number))
        if library.wait is None:
            print(number, sent_at, flush=True)
        else:
            call(library.wait(task))
            print(number, sent_at, time.monotonic(), flush=True)
    time.sleep(0.0 if library.wait else 0.2)  # for the last one to begin
    print("done", flush=True)


def _arrive(library: Producer, call: Call, load: str, path: str) -> None:
    """Tasks arrive when they are due, however many are waiting. A send that is late does not make the next one late."""
    assert library.work is not None
    arrivals = json.loads(Path(path).read_text())
    is_async = inspect.iscoroutinefunction(library.work)
    sent: list[float] = []
    _ready(library, call)
    began = time.monotonic()
    for number, (at, seconds) in enumerate(arrivals):
        if (early := began + at - time.monotonic()) > 0:
            call(asyncio.sleep(early)) if is_async else time.sleep(early)
        sent.append(time.monotonic())
        call(library.work(number, load, seconds))
    for number, sent_at in enumerate(sent):
        print(number, sent_at)
    print("done", flush=True)


_commands: dict[str, Callable[..., None]] = {
    "send": _send,
    "bulk": _bulk,
    "latency": _latency,
    "arrive": _arrive,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
