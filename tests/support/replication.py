"""Two PostgreSQL servers in synchronous streaming replication: a commit returns when the standby has it on disk."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from horsies import embedded
from horsies.embedded import cluster
from horsies.embedded.binaries import Binaries
from horsies.embedded.paths import ServerPaths, create_folders, locked
from tests.support import servers
from tests.support.waiting import eventually

# Neither side gives up on the other while the standby is paused.
PRIMARY = {"fsync": "off", "wal_sender_timeout": "0", "synchronous_standby_names": "*"}
STANDBY = {"fsync": "off", "wal_receiver_timeout": "0"}


@dataclass(frozen=True, slots=True)
class Replication:
    """The maintenance databases of the primary and of its standby, which takes queries that only read."""

    url: str
    standby_url: str

    def pause(self) -> None:
        """Stop the standby from receiving anything: commits on the primary stall from now on."""
        pid = self._receiver()
        os.kill(pid, signal.SIGSTOP)
        stat = Path(f"/proc/{pid}/stat")
        eventually(lambda: stat.read_text().rpartition(") ")[2][0] == "T", what="the standby's pause")

    def resume(self) -> None:
        """Let the standby go on; stalled commits return."""
        os.kill(self._receiver(), signal.SIGCONT)

    def delay(self, seconds: float) -> None:
        """Make every commit on the primary wait until the standby has applied it, which it does so much later; 0 for at once."""
        for url, name, value in (
            (self.standby_url, "recovery_min_apply_delay", f"{int(seconds * 1000)}ms"),
            (self.url, "synchronous_commit", "remote_apply" if seconds else "on"),
        ):
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
                server.execute("SELECT pg_reload_conf()")

    def catch_up(self) -> None:
        """Wait until the standby shows everything that the primary has written so far."""
        with (
            psycopg.connect(self.url, autocommit=True) as primary,
            psycopg.connect(self.standby_url, autocommit=True) as standby,
        ):
            written = primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            eventually(
                lambda: standby.execute(replayed, written).fetchone() == (True,),
                what="the standby catching up",
            )

    def stalled_for(self, application_name: str) -> float:
        """Return for how many seconds the longest commit of an application has waited for the standby; 0 if none does."""
        with psycopg.connect(self.url, autocommit=True) as primary:
            row = primary.execute(
                "SELECT extract(epoch FROM max(clock_timestamp() - query_start)) FROM pg_stat_activity"
                " WHERE wait_event = 'SyncRep' AND application_name = %s",
                (application_name,),
            ).fetchone()
        return float(row[0]) if row is not None and row[0] is not None else 0.0

    def _receiver(self) -> int:
        """Return the pid of the process of the standby that receives from the primary."""
        with psycopg.connect(self.standby_url, autocommit=True) as standby:
            row = standby.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'"
            ).fetchone()
        assert row is not None
        return row[0]

    def is_streaming(self) -> bool:
        with psycopg.connect(self.url, autocommit=True) as primary:
            row = primary.execute("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
        return row is not None


@contextmanager
def replication() -> Generator[Replication]:
    """Run a primary and a standby of the version under test for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-replication-"))
    folder.chmod(0o711)
    homes = [folder / "primary", folder / "standby"]
    try:
        pair = _start(create_folders(homes[0]), create_folders(homes[1]))
        eventually(pair.is_streaming, what="the standby following the primary")
        try:
            yield pair
        finally:
            pair.resume()
    finally:
        for home in reversed(homes):
            embedded.stop(home, remove=True)
        shutil.rmtree(folder)


def _start(primary: ServerPaths, standby: ServerPaths) -> Replication:
    """Start both. A standby begins as a copy of a primary that never ran, which takes no pg_basebackup."""
    binaries = servers.binaries_of(servers.choice(), primary)
    with locked(primary.lock) as lock:
        cluster.create_data(primary, binaries, sync=False, lock=lock)
        _copy(primary, standby)
        url = _run(primary, binaries, PRIMARY)
    with locked(standby.lock):
        (standby.data / "standby.signal").touch()
        with (standby.data / "postgresql.conf").open("a") as conf:
            conf.write(f"primary_conninfo = '{url}'\n")
        standby.give_to_user(standby.data / "standby.signal")
        return Replication(url, _run(standby, binaries, STANDBY))


def _copy(primary: ServerPaths, standby: ServerPaths) -> None:
    shutil.copytree(primary.data, standby.data)
    for path in (standby.data, *standby.data.rglob("*")):
        standby.give_to_user(path)
    shutil.copy(primary.password, standby.password)


def _run(paths: ServerPaths, binaries: Binaries, settings: dict[str, str]) -> str:
    paths.version.write_text(binaries.version)
    cluster.start(paths, binaries, settings)
    server = embedded.status(paths.home)
    assert server is not None
    return server.url
