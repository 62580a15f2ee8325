"""Where one peer plays: a store with nothing in it, its script, its worker, and what its tasks have written down."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from urllib.parse import urlsplit
from uuid import uuid4

import psutil
import psycopg
from psycopg import sql

from bench.harness import Bench
from bench.peers.catalogue import Peer

SCRIPTS = Path(__file__).parent / "scripts"
ANSWER_SECONDS, PATIENCE_SECONDS = 60.0, 300.0
_START = struct.Struct("<qd")


@dataclass(frozen=True, slots=True)
class Use:
    """What a worker with all its processes has taken so far; shared memory is counted once."""

    cpu_seconds: float
    memory_mb: float


class Stage:
    """One peer on a store of its own. `store` is a PostgreSQL server or a Redis, `command` what runs the script."""

    def __init__(self, peer: Peer, store: str, command: Sequence[str], folder: Path) -> None:
        self.peer = peer
        self._store = store
        self._command = command
        self._starts, self._log = folder / "starts", folder / f"{peer.script}.log"
        self._database = f"bench_{peer.script}_{uuid4().hex[:8]}"  # another run may use the same server
        self._template = f"{self._database}_empty"
        on_postgres = peer.store == "PostgreSQL"
        self.url = urlsplit(store)._replace(path=f"/{self._database}").geturl() if on_postgres else store
        self.bench: Bench | None = None

    def set_up(self) -> None:
        """Make the tables once; `clear` copies them."""
        if self.peer.store == "PostgreSQL":
            self._remake(self._database, "template1")
            self.run("setup")
            self._remake(self._template, self._database)

    def clear(self) -> None:
        """Start with an empty store."""
        self._starts.write_bytes(b"")
        if self.peer.store == "Redis":
            _ask_redis(self._store, "FLUSHALL")
            return
        if self.bench is not None:
            self.bench.session.close()
        self._remake(self._database, self._template)
        self.bench = Bench(self.url)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.bench is not None:
            self.bench.session.close()
        if self.peer.store == "PostgreSQL":
            for database in (self._database, self._template):
                self._remake(database, None)

    def _remake(self, database: str, template: str | None) -> None:
        """Make a database anew as a copy of another; of none, it is gone."""
        name = sql.Identifier(database)
        with psycopg.connect(self._store, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            if template is not None:
                source = sql.Identifier(template)
                admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, source))

    def settle(self) -> None:
        """What was filled in is on disk, and the planner knows it."""
        if self.bench is not None:
            self.bench.session.execute("VACUUM ANALYZE")
            self.bench.session.execute("CHECKPOINT")

    def left(self) -> int:
        """How many tasks have not ended for good. Redis is not asked: there, the last start counts as the end."""
        return 0 if self.bench is None else int(self.bench.value(self.peer.left))

    def starts(self) -> list[tuple[int, float]]:
        """The number of each task that has begun, with the time."""
        return list(_START.iter_unpack(self._starts.read_bytes()))

    def started(self) -> int:
        return self._starts.stat().st_size // _START.size

    def note(self, text: str) -> Path:
        """Write down what a script is to read."""
        path = self._log.with_suffix(".note")
        path.write_text(text)
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **self.peer.environment,
            "BENCH_URL": self.url,
            "BENCH_STARTS": str(self._starts),
            "PYTHONPATH": str(SCRIPTS),
            "PYTHONWARNINGS": "ignore",
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *map(str, arguments)],
                cwd=SCRIPTS,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def complaint(self) -> str:
        """What a script wrote to its error stream last: the error, not the remarks after it."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        errors = [line.strip() for line in lines if re.match(r"\S*(error|exception)\b", line, re.IGNORECASE)]
        return errors[-1] if errors else "nothing was said about it"

    def run(self, *arguments: object) -> None:
        with _ended(self.start(*arguments)) as script:
            if script.wait(ANSWER_SECONDS):
                raise RuntimeError(f"{arguments} ended with {script.returncode}")

    @contextmanager
    def together(self, processes: int, *arguments: object) -> Generator[list[subprocess.Popen[str]]]:
        """As many scripts, all ready and none begun; the block says go."""
        with ExitStack() as stack:
            scripts = [stack.enter_context(_ended(self.start(*arguments))) for _ in range(processes)]
            for script in scripts:
                # Whoever listens to a script that hangs hears its end.
                alarm = Timer(PATIENCE_SECONDS, _signal, [script, signal.SIGKILL])
                alarm.start()
                stack.callback(alarm.cancel)
            for script in scripts:
                heard(script, "ready")
            yield scripts

    @contextmanager
    def worker(self, processes: int) -> Generator[subprocess.Popen[str]]:
        with _ended(self.start("worker", processes)) as worker:
            yield worker


def heard(script: subprocess.Popen[str], word: str) -> list[str]:
    """What a script says up to this word."""
    assert script.stdout is not None
    said: list[str] = []
    for line in script.stdout:
        if line.strip() == word:
            return said
        said.append(line.strip())
    raise RuntimeError(f"it ended with {script.wait()} before it said {word!r}")


def go(scripts: Sequence[subprocess.Popen[str]]) -> None:
    for script in scripts:
        assert script.stdin is not None
        script.stdin.write("\n")
        script.stdin.flush()


def use(worker: subprocess.Popen[str]) -> Use:
    cpu, memory = 0.0, 0
    for process in _family(worker.pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            cpu += times.user + times.system
            memory += process.memory_full_info().pss
    return Use(cpu, memory / 1_000_000)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def _ended(script: subprocess.Popen[str]) -> Generator[subprocess.Popen[str]]:
    try:
        yield script
    finally:
        _end(script)


def _end(script: subprocess.Popen[str]) -> None:
    """End a script and whatever it has started, politely first."""
    family = _family(script.pid)
    _signal(script, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, 5)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    script.wait(10)
    for stream in (script.stdin, script.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def _signal(script: subprocess.Popen[str], what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(script.pid, what)


def _ask_redis(url: str, command: str) -> None:
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), ANSWER_SECONDS) as connection:
        connection.sendall(f"{command}\r\n".encode())
        if not (answer := connection.recv(100)).startswith(b"+OK"):
            raise RuntimeError(f"Redis answered {answer!r} to {command}")
