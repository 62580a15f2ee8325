"""A cluster of PostgreSQL servers in streaming replication, and everything that a failover manager does by hand.

Debian's programs are used: the wheel of `horsies[local]` has no pg_rewind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from horsies import embedded
from horsies.embedded import cluster
from horsies.embedded.binaries import Binaries
from horsies.embedded.paths import ServerPaths, create_folders, locked
from tests.support.servers import DEBIAN_PROGRAMS
from tests.support.waiting import eventually

DATABASE = "shop"
# In postgresql.conf, where pg_rewind reads them, too.
SETTINGS = {
    "max_connections": "120",
    "shared_buffers": "32MB",
    "wal_log_hints": "on",  # what pg_rewind needs
    "wal_keep_size": "256MB",
    "hot_standby_feedback": "on",
    "wal_retrieve_retry_interval": "200ms",
}
LSN = "SELECT coalesce(pg_last_wal_receive_lsn(), '0/0'), coalesce(pg_last_wal_replay_lsn(), '0/0')"


def programs() -> Path | None:
    """Return the folder of Debian's newest PostgreSQL with pg_rewind; None if there is none."""
    found = [path.parent for path in DEBIAN_PROGRAMS.glob("*/bin/pg_rewind")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def missing_programs() -> str | None:
    """Return why there can be no cluster here, None if there can."""
    if programs() is not None:
        return None
    return "Debian's PostgreSQL, which has pg_rewind, is not installed: apt-get install postgresql"


class Node:
    """One server of the cluster; `name` is its name in `synchronous_standby_names`."""

    def __init__(self, name: str, paths: ServerPaths, directory: Path) -> None:
        self.name = name
        self.paths = paths
        self.url = ""  # of the maintenance database, past all proxies
        version = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        self._binaries = Binaries(directory, (re.findall(r"\d+\.\d+", version.stdout) or ["15"])[0])
        self._replication_url = ""

    @property
    def replication_url(self) -> str:
        """Where standbys connect; `replicate_through` puts a proxy there."""
        return self._replication_url or self.url

    def replicate_through(self, url: str) -> None:
        self._replication_url = url

    # Processes

    def start(self) -> None:
        self.paths.version.write_text(self._binaries.version)
        cluster.start(self.paths, self._binaries, {})
        server = embedded.status(self.paths.home)
        assert server is not None
        self.url = server.url

    def stop(self) -> None:
        """Shut down as an administrator does; a standby that streams gets everything before."""
        cluster.stop(self.paths)

    def kill(self) -> None:
        """Kill the server with all its processes, as when its machine loses power."""
        running = cluster.running(self.paths.data)
        assert running is not None
        for pid in process_tree(running.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: cluster.running(self.paths.data) is None, what=f"the end of {self.name}")

    @property
    def is_running(self) -> bool:
        return cluster.running(self.paths.data) is not None

    # Roles

    def promote(self) -> None:
        """Make a standby the primary; it takes writes when this returns."""
        self.execute("SELECT pg_promote(wait => true)")

    def follow(self, primary: Node) -> None:
        """Stream from this server from now on, as a running standby does."""
        self.execute(f"ALTER SYSTEM SET primary_conninfo = '{self._conninfo(primary)}'")
        self.execute("SELECT pg_reload_conf()")

    def rejoin(self, primary: Node) -> None:
        """Come back as a standby: undo with pg_rewind what the new primary never had, then stream."""
        if self.is_running:
            self.stop()
        cluster.clear_stale(self.paths.data)
        # The new timeline is known to pg_rewind from the control file, which a promotion updates at its next checkpoint.
        primary.execute("CHECKPOINT")
        self._run(
            "pg_rewind",
            f"--target-pgdata={self.paths.data}",
            f"--source-server={primary.url}",
            f"--config-file={self.paths.data / 'postgresql.conf'}",
        )
        # pg_rewind copies the settings of the source, too.
        self.configure(self._conninfo(primary))
        self.start()
        eventually(lambda: self.name in primary.streams(), what=f"{self.name} streaming from {primary.name}")

    def configure(self, primary_conninfo: str) -> None:
        """Write that this server is a standby of another one."""
        signal_file, auto = self.paths.data / "standby.signal", self.paths.data / "postgresql.auto.conf"
        kept = [line for line in auto.read_text().splitlines() if not line.startswith("primary_conninfo")]
        auto.write_text("\n".join([*kept, f"primary_conninfo = '{primary_conninfo}'", ""]))
        signal_file.touch()
        self.paths.give_to_user(signal_file)

    def _conninfo(self, primary: Node) -> str:
        # A short timeout: a standby that was cut off must soon try again.
        return f"{primary.replication_url}?application_name={self.name}&connect_timeout=2"

    # Facts

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def streams(self) -> list[str]:
        """Return the names of the standbys that stream from this server."""
        return [
            name
            for (name,) in self.execute(
                "SELECT application_name FROM pg_stat_replication WHERE state = 'streaming'"
            )
        ]

    def received(self) -> int:
        """Return up to which position a standby has the log of its primary."""
        return max(_position(lsn) for lsn in self.execute(LSN)[0])

    def _run(self, program: str, *arguments: str) -> None:
        user = self.paths.user
        done = subprocess.run(
            [self._binaries.directory / program, *arguments],
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout}{done.stderr}"


class Cluster:
    """Three servers, one of which is the primary. `is_sync`: a commit returns when one standby has it on disk, too."""

    def __init__(self, nodes: Sequence[Node], *, is_sync: bool) -> None:
        self.nodes = list(nodes)
        self.primary = self.nodes[0]
        self.is_sync = is_sync
        self.promoted_at = 0  # when the last promotion began, by the clock that counts nanoseconds

    @property
    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.primary]

    @property
    def url(self) -> str:
        """The URL of the drills' database on all servers, for clients of psycopg that want the primary."""
        return several_hosts([node.url for node in self.nodes], "?target_session_attrs=read-write")

    def best_standby(self) -> Node:
        """Return the standby that has the most of the primary's log: no other one may be promoted."""
        return max((node for node in self.standbys if node.is_running), key=Node.received)

    def fail_over(self) -> Node:
        """Promote the best standby of a primary that is gone, and let the other one follow it; return the old primary."""
        old, new = self.primary, self.best_standby()
        self.promoted_at = time.monotonic_ns()
        for other in self.standbys:
            if other is not new:
                other.follow(new)
        new.promote()
        self.primary = new
        return old

    def switch_over(self) -> None:
        """Change the primary on purpose: stop it, which sends all it has to the standbys, and promote one of these."""
        self.primary.stop()
        self.fail_over().rejoin(self.primary)

    @contextmanager
    def stalled(self) -> Generator[None]:
        """No standby receives anything within the block: with synchronous replication no commit returns."""
        receiver = "SELECT pid FROM pg_stat_wal_receiver"
        pids = [pid for standby in self.standbys for (pid,) in standby.execute(receiver)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def wait_until_streaming(self) -> None:
        names = {node.name for node in self.standbys}
        eventually(lambda: names <= set(self.primary.streams()), what=f"{names} streaming")

    def remove(self) -> None:
        for node in self.nodes:
            embedded.stop(node.paths.home, remove=True)


def several_hosts(urls: Sequence[str], query: str = "") -> str:
    """Return one URL for the database of the drills on all of these servers; they have the same user and password."""
    split = [urlsplit(url) for url in urls]
    login = split[0].netloc.rpartition("@")[0]
    places = ",".join(f"{each.hostname}:{each.port}" for each in split)
    return f"postgresql://{login}@{places}/{DATABASE}{query}"


@contextmanager
def servers(*, is_sync: bool, settings: Mapping[str, str] | None = None) -> Generator[Cluster]:
    """Run a cluster for as long as the block lasts, with an empty database."""
    directory = programs()
    assert directory is not None, "Debian's PostgreSQL is not installed"
    folder = Path(tempfile.mkdtemp(prefix="horsies-failover-"))
    folder.chmod(0o711)
    nodes = [
        Node(f"node{number}", create_folders(folder / f"node{number}"), directory) for number in range(3)
    ]
    found = Cluster(nodes, is_sync=is_sync)
    try:
        _create(nodes, directory, {**SETTINGS, **(settings or {})})
        found.primary.execute(f"CREATE DATABASE {DATABASE}")
        found.wait_until_streaming()
        if is_sync:  # from now on, so that the servers could be set up one by one
            for node in nodes:
                node.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({_names(nodes)})'")
                node.execute("SELECT pg_reload_conf()")
        yield found
    finally:
        found.remove()
        shutil.rmtree(folder)


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _create(nodes: Sequence[Node], directory: Path, settings: Mapping[str, str]) -> None:
    """Start all servers. The standbys begin as copies of a primary that never ran."""
    primary, *standbys = nodes
    paths = primary.paths
    with locked(paths.lock) as lock:
        cluster.create_data(paths, Binaries(directory, "15"), sync=False, lock=lock)
    conf = paths.data / "postgresql.conf"
    with conf.open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    hba = paths.data / "pg_hba.conf"
    with hba.open("a") as file:
        file.write("host replication all 127.0.0.1/32 scram-sha-256\n")
    for standby in standbys:
        shutil.copytree(paths.data, standby.paths.data)
        for path in (standby.paths.data, *standby.paths.data.rglob("*")):
            standby.paths.give_to_user(path)
        shutil.copy(paths.password, standby.paths.password)
    primary.start()
    for standby in standbys:
        standby.configure(standby._conninfo(primary))  # pyright: ignore[reportPrivateUsage]
        standby.start()


def process_tree(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        children = [int(child) for child in path.read_text().split()]
    except FileNotFoundError:
        return []
    return [pid, *(each for child in children for each in process_tree(child))]


def _position(lsn: str) -> int:
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
