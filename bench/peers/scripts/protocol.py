"""What a peer's module says to the bench. It runs in an environment of its own, and has

- `producer()`: a context manager, sync or async, that gives a `Producer`;
- `worker(processes)`: works until it is killed;
- `setup()`, sync or async, when there are tables to be made.

For the mix of loads it also has tasks named `burn`, `rest` and `nap`, made of the functions below.

A task calls `begun(n)`, which appends its number and the time to a file that the bench reads. All clocks are the
monotonic one that the processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

URL = os.environ.get("BENCH_URL", "")

_files: dict[int, int] = {}


def begun(number: int) -> int:
    """To be called by every task first; gives the number back, to be its result."""
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = os.open(os.environ["BENCH_STARTS"], os.O_WRONLY | os.O_APPEND)
    os.write(_files[pid], struct.pack("<qd", number, time.monotonic()))
    return number


def burn(n: int, seconds: float) -> None:
    """A task that computes for so much time of a processor."""
    begun(n)
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def nap(n: int, seconds: float) -> None:
    """A task that blocks its thread for so long, as most do that wait for something."""
    begun(n)
    time.sleep(seconds)


async def rest(n: int, seconds: float) -> None:
    """A task that lets its loop do other things while it waits."""
    begun(n)
    await asyncio.sleep(seconds)


@dataclass
class Producer:
    """How the library sends a task by its number, sends many, and waits for the result of one that was sent. `work` sends
    one of the tasks above by number, name and seconds."""

    send: Callable[[int], Any]
    bulk: Callable[[Sequence[int]], Any] | None = None
    wait: Callable[[Any], Any] | None = None
    work: Callable[[int, str, float], Any] | None = None


def copies(processes: int, work: Callable[[], Any]) -> None:
    """Run as many processes, for libraries whose worker is a single one. They end with their group."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    work()


def become(*command: str) -> None:
    """Go on as one of the programs that the library brings, with this folder to import from."""
    os.execv(sys.executable, [sys.executable, "-m", *command])
