"""What tasks and producers say of themselves, in files that no fault under test can reach.

A record is one line, written by one `write` to a file opened for appending: it is there whole or not at all, even when
its process is killed right after it. All times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes
of a machine, so whether two runs overlapped is a fact and not an estimate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

TASKS, PRODUCERS = "task", "producer"


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Witness:
    """Writes the records of one process; a fork gets a file of its own."""

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._role = role
        self._pid = 0
        self._file = -1

    def say(self, what: str, **facts: Any) -> int:
        """Put on record that something happens now; gives back when that was."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = self._folder / f"{self._role}-{self._pid}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        at = now()
        line = msgspec.json.encode({"what": what, "pid": self._pid, "at": at, **facts}) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError("a record was written in part")
        return at


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task, from the first to the last line of its code; `ended` is None if it never got there.

    `stopped` is the moment at which the code was cancelled.
    """

    number: int
    task: str
    queue: str
    pid: int
    began: int
    ended: int | None = None
    stopped: int | None = None

    @property
    def token(self) -> str:
        """What this run, and no other, gives as its result."""
        return token(self.number, self.pid, self.began)


def token(number: int, pid: int, began: int) -> str:
    return f"{number}:{pid}:{began}"


@dataclass(frozen=True, slots=True)
class Send:
    """What became of sending one task: how often it failed, and the id that was acknowledged at last."""

    number: int
    task: str
    failures: int = 0
    acknowledged: str | None = None


def pids(folder: Path) -> set[int]:
    """The processes that have run tasks."""
    return {int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{TASKS}-*.jsonl")}


def read_runs(folder: Path) -> list[Run]:
    found: dict[str, Run] = {}
    for record in _records(folder, TASKS):
        number, pid = record["number"], record["pid"]
        if record["what"] == "start":
            run = Run(number, record["task"], record["queue"], pid, record["at"])
            found[run.token] = run
        else:
            name = token(number, pid, record["began"])
            moment = "ended" if record["what"] == "end" else "stopped"
            found[name] = replace(found[name], **{moment: record["at"]})
    return list(found.values())


def read_sends(folder: Path) -> list[Send]:
    found: dict[int, Send] = {}
    for record in _records(folder, PRODUCERS):
        number = record["number"]
        match record["what"]:
            case "send":
                for each in range(number, number + record.get("count", 1)):
                    found[each] = Send(each, record["task"])
            case "failed":
                found[number] = replace(found[number], failures=found[number].failures + 1)
            case _:
                for each, task_id in enumerate(record.get("ids") or [record["id"]], number):
                    found[each] = replace(found[each], acknowledged=task_id)
    return list(found.values())


def _records(folder: Path, role: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"{role}-*.jsonl")):
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line)
