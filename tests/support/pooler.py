"""A PgBouncer in transaction mode, in front of the server of a URL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.support.waiting import eventually

# Debian puts it where only root looks.
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

SETTINGS = """\
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {folder}/pgbouncer.log
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """Few sessions for many connections: a transaction may run in another session than the one before it."""

    def __init__(self, folder: Path, server_url: str) -> None:
        self._folder = folder
        self._server = urlsplit(server_url)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self._start()

    @property
    def url(self) -> str:
        return self._server._replace(netloc=f"{self._server.username}@127.0.0.1:{self._port}").geturl()

    def transactions(self) -> int:
        """Return how many transactions have passed through it, all databases together."""
        console = self._server._replace(netloc=f"anybody@127.0.0.1:{self._port}", path="/pgbouncer").geturl()
        with psycopg.connect(console, autocommit=True) as admin:
            cursor = admin.execute("SHOW TOTALS")
            totals = {name: int(value) for name, value in cursor}
        return totals["total_xact_count"]

    def restart(self) -> None:
        """End it hard, with all connections through it, and start another one."""
        self.stop()
        self._start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _start(self) -> None:
        assert PGBOUNCER is not None
        server = self._server
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(
                host=server.hostname,
                port=server.port,
                user=server.username,
                password=server.password,
                own_port=self._port,
                folder=self._folder,
            )
        )
        command = [PGBOUNCER, "-q", str(settings)]
        if os.geteuid() == 0:  # which it refuses to be
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, "nobody")
            command[1:1] = ["-u", "nobody"]
        self._process = subprocess.Popen(command)
        eventually(self._cache, what="the pooler answering")

    def _cache(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def pgbouncer(server_url: str) -> Generator[PgBouncer]:
    """Run a PgBouncer for as long as the block lasts, in a folder that an unprivileged user may read."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-pooler-"))
    pooler = PgBouncer(folder, server_url)
    try:
        yield pooler
    finally:
        pooler.stop()
        shutil.rmtree(folder)
