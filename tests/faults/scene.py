"""The scene of a drill: workers, producers and a database, and someone who watches them from outside.

Everything here was started here, and signals go to nobody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg

from horsies import embedded
from horsies.config import DEFAULT_CLAIM_LEASE_MS
from tests.e2e.observing import children, descendants, is_alive
from tests.faults.checker import Freeze, Row
from tests.faults.testimony import PRODUCERS, now, pids
from tests.faults.workload import MIX
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker

ROOT = Path(__file__).parents[2]
ROWS = (
    "SELECT id::text, task_name, status, kwargs, result, error_code, claim_seq, crash_count, terminal_at"
    " FROM horsies_tasks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large a drill is and how its parts reach the database."""

    seed: int
    sends: int = 1_000
    seconds: float = 3.0
    producers: int = 2
    workers: int = 2
    processes: int = 2
    lease_ms: int | None = 1_500
    prefetch: int | None = 0
    narrow_cap: int | None = 3
    task_ms: int = 12
    proxied: bool = False
    pooler_url: str | None = None  # how all reach the database, but for sessions of their own
    clock_seconds: float = 0.0
    crashes: bool = True  # whether the fault may cost running tasks their process
    env: tuple[tuple[str, str], ...] = ()
    mix: tuple[str, ...] = MIX
    batch: int = 1
    watch_seconds: float = 0.05
    urls: tuple[str, ...] = ()  # how workers and producers reach the database, in turn
    promises: frozenset[str] | None = None  # those that the fault must not break; None for all


class Watch:
    """Notes who is alive and which rows are final, again and again, from a thread of its own."""

    def __init__(self, folder: Path, database_url: str, seconds: float) -> None:
        self.alive: dict[int, int] = {}
        self.seen: dict[str, tuple[int, Row]] = {}
        self._dead: set[int] = set()
        self._folder = folder
        self._url = database_url
        self._seconds = seconds
        self._latest: Any = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as connection:
                while not self._over.wait(self._seconds):
                    self._look_at_processes()
                    self._look_at_rows(connection)
            self._look_at_processes()
            self._over.wait(self._seconds)

    def _look_at_processes(self) -> None:
        for pid in pids(self._folder) - self._dead:
            at = now()
            if is_alive(pid):
                self.alive[pid] = at
            else:
                self._dead.add(pid)

    def _look_at_rows(self, connection: psycopg.Connection[Any]) -> None:
        """Rows that have become final; an end is written a moment before it can be seen."""
        since = " AND terminal_at > %(latest)s - interval '2 s'" if self._latest is not None else ""
        rows = connection.execute(f"{ROWS} WHERE NOT live{since}", {"latest": self._latest}).fetchall()
        at = now()
        for values in rows:
            self._latest = max(self._latest or values[-1], values[-1])
            if values[0] not in self.seen:
                self.seen[values[0]] = (at, row_of(values))


def row_of(values: tuple[Any, ...]) -> Row:
    task_id, task, status, kwargs, result, error_code, claim_seq, crash_count, _ = values
    return Row(
        task_id,
        _number(kwargs),
        task,
        status,
        None if result is None or not result.startswith('{"ok":') else str(msgspec.json.decode(result)["ok"]),
        error_code,
        claim_seq,
        crash_count,
    )


def _number(kwargs: str | None) -> int | None:
    try:
        number = msgspec.json.decode(kwargs or "")["number"]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None
    return number if isinstance(number, int) else None


class Scene:
    """Where a fault is let loose; `random` decides when, and on whom."""

    def __init__(self, folder: Path, database_url: str, plan: Plan, env: dict[str, str]) -> None:
        self.folder = folder
        self.plan = plan
        self.url = database_url
        self.random = Random(plan.seed)
        self.workers: list[RunningWorker] = []
        self.former: list[RunningWorker] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.freezes: list[Freeze] = []
        self.strangers: set[str] = set()
        self.known: set[int] = set()
        self.kills = 0
        self.strikes: list[tuple[int, int]] = []  # when each began, and when it had healed
        self.server_crashes: list[tuple[int, int]] = []
        self._env = env
        self._began = time.monotonic()
        self._proxies: dict[int, Proxy] = {}  # by the worker that has it
        self.producer_proxy = Proxy(database_url) if plan.proxied else None

    def __enter__(self) -> Scene:
        if self.producer_proxy is not None:
            self.producer_proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self.workers, *self.former):
            self._end(worker.process)
        for producer in self.producers:
            self._end(producer)
        for proxy in self.proxies:
            proxy.__exit__()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
            process.wait()

    def _env_for(self, proxy: Proxy | None, number: int) -> dict[str, str]:
        """Return the environment of a process; `number` counts workers and producers, each by themselves."""
        url = (self.plan.pooler_url or self.url) if proxy is None else proxy.url
        if self.plan.urls:
            url = self.plan.urls[number % len(self.plan.urls)]
        return self._env | {"HORSIES_DATABASE_URL": url}

    @property
    def lease(self) -> float:
        return (self.plan.lease_ms or DEFAULT_CLAIM_LEASE_MS) / 1000

    @property
    def worker_proxies(self) -> list[Proxy]:
        """The ways of all workers, past ones included: each has one of its own."""
        return list(self._proxies.values())

    @property
    def proxies(self) -> list[Proxy]:
        return [*self.worker_proxies, *([] if self.producer_proxy is None else [self.producer_proxy])]

    def proxy_of(self, worker: RunningWorker) -> Proxy:
        return self._proxies[worker.pid]

    # Who is here

    def hire(self, *, ready: bool = True) -> RunningWorker:
        """Start one more worker."""
        arguments = ["tests.faults.app:app", f"--processes={self.plan.processes}"]
        proxy = Proxy(self.url).__enter__() if self.plan.proxied else None
        env = self._env_for(proxy, len(self.workers) + len(self.former))
        worker = RunningWorker(self.folder, env | dict(self.plan.env), arguments)
        self.workers.append(worker)
        if proxy is not None:
            self._proxies[worker.pid] = proxy
        return worker.wait_until_ready() if ready else worker

    def dismiss(self, worker: RunningWorker) -> int:
        """Stop a worker and wait for its end."""
        self.note_processes(worker)
        worker.signal(signal.SIGTERM)
        code = worker.wait(40)
        self._leave(worker)
        return code

    def _leave(self, worker: RunningWorker) -> None:
        self.workers.remove(worker)
        self.former.append(worker)

    def start_producers(self) -> None:
        """Start them all; the time of the drill counts from when they send."""
        for _ in range(self.plan.producers):
            self._start_producer(self.plan.sends // self.plan.producers, self.plan.seconds)
        eventually(self._all_send, 60, "the producers sending")
        self._began = time.monotonic()

    def keep_sending(self, count: int, seconds: float) -> None:
        """If all producers have sent what they had to send, start another one, with so many tasks for so many seconds."""
        if all(producer.poll() is not None for producer in self.producers):
            self._start_producer(count, seconds)

    def _start_producer(self, count: int, seconds: float) -> None:
        name = len(self.producers)
        arguments = [str(name), str(count), str(seconds), str(self.plan.seed)]
        command = [sys.executable, "-m", "tests.faults.producer", *arguments]
        with (self.folder / f"producer-{name}.log").open("wb") as log:
            env = self._env_for(self.producer_proxy, name)
            producer = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
        self.producers.append(producer)

    def _all_send(self) -> bool:
        return len(list(self.folder.glob(f"{PRODUCERS}-*.jsonl"))) == len(self.producers)

    def note_processes(self, worker: RunningWorker) -> set[int]:
        """The processes below a worker, none of which may outlive it."""
        found = descendants(worker.pid)
        self.known |= found
        return found

    # The injector's schedule

    def strike(self, fault: Callable[[Scene], int | None], times: int) -> None:
        """Let a fault loose so many times while tasks are sent, at moments drawn at random.

        A fault returns the moment at which it had healed, if that was before it had done everything.
        """
        length = self.plan.seconds
        for at in sorted(self.random.uniform(0.1 * length, 0.8 * length) for _ in range(times)):
            self.pause(self._began + at - time.monotonic())
            began = now()
            healed = fault(self)
            self.strikes.append((began, healed or now()))

    def pause(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    # What can be done to it

    def any_worker(self) -> RunningWorker:
        return self.random.choice(self.workers)

    def kill(self, worker: RunningWorker, *, whole: bool = False) -> None:
        """Kill a worker; as a whole, as when its machine loses power, its children can do nothing more, either."""
        below = self.note_processes(worker)
        worker.signal(signal.SIGKILL)
        for pid in below if whole else ():
            _signal(pid, signal.SIGKILL)
        worker.wait()
        self._leave(worker)
        self.kills += 1

    def kill_child(self, worker: RunningWorker) -> None:
        """Kill one of a worker's children, the spare one included."""
        if found := sorted(children(worker.pid)):
            self.kills += _signal(self.random.choice(found), signal.SIGKILL)

    def freeze(self, worker: RunningWorker, seconds: float, *, whole: bool) -> None:
        """Stop a worker for a time; with its children, the code that they run is stopped, too."""
        _stop(worker.pid)
        stopped = {worker.pid}
        while whole and (more := self.note_processes(worker) - stopped):
            for pid in more:
                _stop(pid)
            stopped |= more
        at = now()
        self.pause(seconds)
        below, thawed = self.note_processes(worker), now()
        for pid in sorted(stopped):
            _signal(pid, signal.SIGCONT)
        until = at if whole else at + int(self.lease * 1e9)
        if thawed > at + self.lease * 1e9:
            self.freezes.append(Freeze(frozenset(stopped | below), until, thawed, whole))

    def freeze_child(self, worker: RunningWorker, seconds: float) -> None:
        """Stop one of a worker's children for a time."""
        pid = self.random.choice(sorted(children(worker.pid)))
        _stop(pid)
        self.pause(seconds)
        _signal(pid, signal.SIGCONT)

    def execute(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement past all proxies."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)  # pyright: ignore[reportArgumentType]
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[Row]:
        return [row_of(values) for values in self.execute(ROWS)]

    def slots(self) -> int:
        """How many places of keys are taken."""
        with suppress(psycopg.Error):
            return self.execute("SELECT count(*) FROM horsies_key_slots")[0][0]
        return -1

    def live(self) -> int:
        with suppress(psycopg.Error):
            return self.execute("SELECT count(*) FROM horsies_tasks WHERE live")[0][0]
        return -1


def _signal(pid: int, number: signal.Signals) -> bool:
    """Signal a process of ours, if it is still there."""
    if pid <= 1:
        raise ValueError(f"{pid} is none of our processes")
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _stop(pid: int) -> None:
    """Stop a process of ours and wait until it stands still, or has ended."""
    if _signal(pid, signal.SIGSTOP):
        eventually(lambda: _state(pid) in "TZX", what=f"process {pid} standing still")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (OSError, IndexError):
        return "X"


class OwnServer:
    """A PostgreSQL server of the drill's own, to be crashed."""

    def __init__(self, home: Path, **settings: str) -> None:
        self._home = home
        self._settings = {"fsync": "off", "max_connections": "100", **settings}
        self.url = self.start()

    @property
    def data_directory(self) -> Path:
        return embedded.data_directory(self._home)

    def start(self) -> str:
        return embedded.ensure(self._home, settings=self._settings, announce=lambda _: None).url

    def crash(self) -> None:
        """Immediate shutdown: no checkpoint, no goodbye."""
        server = embedded.status(self._home)
        assert server is not None
        _signal(server.pid, signal.SIGQUIT)
        eventually(lambda: embedded.status(self._home) is None, what="the server being gone")

    def remove(self) -> None:
        embedded.stop(self._home, remove=True)
