"""Three PostgreSQL servers that Patroni manages with its own Raft, from Debian's packages `patroni` and `python3-pysyncobj`."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.support.failover import (
    DATABASE,
    SETTINGS,
    missing_programs,
    process_tree,
    programs,
    several_hosts,
)
from tests.support.waiting import eventually

PROGRAM = shutil.which("patroni")
# What Patroni allows at least: a leader that is silent for `ttl` seconds is replaced.
TIMES = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
START_SECONDS = 90.0


def why_not() -> str | None:
    """Return why Patroni cannot run here, None if it can."""
    if PROGRAM is None:
        return "Patroni is not installed: apt-get install patroni python3-pysyncobj"
    python = Path(PROGRAM).read_text().partition("\n")[0].removeprefix("#!").split()[0]
    if subprocess.run([python, "-c", "import pysyncobj"], capture_output=True, check=False).returncode:
        return "Patroni has no Raft: apt-get install python3-pysyncobj"
    return missing_programs()


class PatroniNode:
    """A Patroni process and the server that it runs."""

    def __init__(self, folder: Path, number: int, port: int) -> None:
        self.name = f"node{number}"
        self.data = folder / f"{self.name}-data"
        self.port = port
        self._folder = folder
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self._rest = ""

    def start(self) -> None:
        """Start Patroni, which starts the server as what it has to be."""
        assert PROGRAM is not None
        user = self._user
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, str(self._folder / f"{self.name}.json")],
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )

    def kill(self) -> None:
        """Kill Patroni and the server with all their processes, as when the machine loses power."""
        assert self._process is not None
        pids = process_tree(self._process.pid)
        with suppress(OSError, ValueError, IndexError):
            pids += process_tree(int((self.data / "postmaster.pid").read_text().split()[0]))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def is_primary(self) -> bool:
        with suppress(psycopg.Error), psycopg.connect(self.url, connect_timeout=2) as connection:
            return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        return False

    def roles(self) -> set[str]:
        """Return the roles of all nodes as this node knows them."""
        with suppress(OSError), urllib.request.urlopen(f"{self._rest}/cluster", timeout=2) as answer:
            return {member["role"] for member in json.load(answer)["members"]}
        return set()

    def write_config(
        self, nodes: Sequence[PatroniNode], ports: Sequence[int], password: str, *, is_sync: bool
    ) -> None:
        """Write the configuration; JSON is YAML. `ports` are those of Raft, then those of the REST interfaces."""
        number, count = nodes.index(self), len(nodes)
        raft = [f"127.0.0.1:{port}" for port in ports[:count]]
        rest = f"127.0.0.1:{ports[count + number]}"
        self._rest = f"http://{rest}"
        login = {"username": "horsies", "password": password}
        config = {
            "scope": "shop",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "raft": {
                "data_dir": str(self._folder / f"{self.name}-raft"),
                "self_addr": raft[number],
                "partner_addrs": [each for each in raft if each != raft[number]],
            },
            "bootstrap": {
                "dcs": {
                    **TIMES,
                    "synchronous_mode": is_sync,
                    "postgresql": {"use_pg_rewind": True, "parameters": SETTINGS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, {"auth": "scram-sha-256"}],
                "pg_hba": [f"host {name} all 127.0.0.1/32 scram-sha-256" for name in ("all", "replication")],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data),
                "bin_dir": str(programs()),
                "basebackup": {"checkpoint": "fast"},
                "authentication": {"superuser": login, "replication": login, "rewind": login},
                "parameters": {"unix_socket_directories": str(self._folder)},
            },
        }
        path = self._folder / f"{self.name}.json"
        path.write_text(json.dumps(config))
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        path.chmod(0o600)
        self.url = f"postgresql://horsies:{password}@127.0.0.1:{self.port}/postgres"


class PatroniCluster:
    """The servers, one of which is the primary."""

    def __init__(self, nodes: Sequence[PatroniNode]) -> None:
        self.nodes = list(nodes)

    @property
    def url(self) -> str:
        return several_hosts([node.url for node in self.nodes], "?target_session_attrs=read-write")

    def primary(self, among: Sequence[PatroniNode] | None = None) -> PatroniNode:
        """Return the primary as soon as there is one."""
        nodes = self.nodes if among is None else among
        found = eventually(
            lambda: next((node for node in nodes if node.is_primary()), None), START_SECONDS, "a primary"
        )
        assert found is not None
        return found

    def wait_until_streaming(self, *, is_sync: bool) -> None:
        """Wait until both standbys stream from the primary.

        With `is_sync`, one of them must be synchronous, and Patroni must have stored that: otherwise it would promote none.
        """
        streams = "SELECT count(*) = 2 AND bool_or(sync_state = 'sync') = %s FROM pg_stat_replication WHERE state = 'streaming'"

        def stream() -> bool:
            primary = self.primary()
            with suppress(psycopg.Error), psycopg.connect(primary.url) as connection:
                is_streaming = connection.execute(streams, (is_sync,)).fetchone() == (True,)
                return is_streaming and (not is_sync or "sync_standby" in primary.roles())
            return False

        eventually(stream, START_SECONDS, "both standbys streaming")

    def replace_primary(self) -> tuple[PatroniNode, int]:
        """Kill the primary, and wait until Patroni has promoted a standby; return the old one, and when that was."""
        old = self.primary()
        old.kill()
        self.primary([node for node in self.nodes if node is not old])
        return old, time.monotonic_ns()


@contextmanager
def patroni(*, is_sync: bool) -> Generator[PatroniCluster]:
    """Run three servers under Patroni for as long as the block lasts, with an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-patroni-"))
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
    ports = _free_ports(9)
    nodes = [PatroniNode(folder, number, ports[number]) for number in range(3)]
    cluster = PatroniCluster(nodes)
    password = secrets.token_hex(12)
    for node in nodes:
        node.write_config(nodes, ports[3:], password, is_sync=is_sync)
    try:
        for node in nodes:
            node.start()
        with psycopg.connect(cluster.primary().url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {DATABASE}".encode())
        cluster.wait_until_streaming(is_sync=is_sync)
        yield cluster
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
