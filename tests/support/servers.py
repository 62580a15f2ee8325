"""The PostgreSQL server that tests and benchmarks run on.

`HORSIES_TEST_SERVER` names it: `embedded`, `system` (Debian's cluster, with the settings it was packaged with), the major
version of a server that `make servers` fetched, or the URL of any server on which we may create databases.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from horsies import embedded
from horsies.embedded import cluster
from horsies.embedded.binaries import Binaries, available, copy_of
from horsies.embedded.paths import ServerPaths, can_reach, create_folders, locked, shared_folder
from tests.support.waiting import eventually

CHOICE_VARIABLE = "HORSIES_TEST_SERVER"
FETCHED = Path(__file__).parents[2] / ".servers"
DEBIAN_PROGRAMS = Path("/usr/lib/postgresql")


class ServerUnavailable(Exception):
    """The chosen server cannot be used; the message says what to do about it."""


def choice() -> str:
    """Return the server that the environment names."""
    return os.environ.get(CHOICE_VARIABLE) or "embedded"


def is_ours(chosen: str) -> bool:
    """True if the run starts the server itself and so decides its settings."""
    return chosen == "embedded" or chosen.isdecimal()


def acquire(chosen: str, home: Path, settings: Mapping[str, str]) -> str:
    """Return the URL of the chosen server's maintenance database, with a server of our own started in `home`."""
    if is_ours(chosen):
        return _start(chosen, home, settings)
    if chosen == "system":
        return _join_system(home)
    return _check(chosen)


def release(chosen: str, home: Path) -> None:
    """Stop a server of our own and delete it, or remove from a system server what `acquire` created there."""
    if is_ours(chosen):
        embedded.stop(home, remove=True)
    elif chosen == "system":
        _leave_system(home)


def named(server_url: str, database: str) -> str:
    """Return the URL of another database on the same server.

    >>> named("postgresql://ann@db.example/postgres?sslmode=require", "app")
    'postgresql://ann@db.example/app?sslmode=require'
    """
    return urlsplit(server_url)._replace(path=f"/{database}").geturl()


def drop_database(admin: psycopg.Connection[Any], name: str) -> None:
    """Drop a database with all its sessions."""

    def drop() -> bool:
        try:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:  # autovacuum is there, which only superusers can end
            return False
        return True

    eventually(drop, what=f"the end of database {name}")


def is_superuser(url: str) -> bool:
    """True if the user of a URL may do everything on its server."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return row == (True,)


@contextmanager
def extra_server(settings: Mapping[str, str]) -> Generator[str]:
    """Run one more server of the version under test, for tests that need other settings; yield its URL."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-server-"))
    folder.chmod(0o711)
    try:
        yield _start(choice(), folder / "home", settings)
    finally:
        embedded.stop(folder / "home", remove=True)
        shutil.rmtree(folder)


def _start(chosen: str, home: Path, settings: Mapping[str, str]) -> str:
    """Start the server of a home unless another process has done so."""
    if chosen == "embedded":
        return embedded.ensure(home, settings=settings, announce=lambda _: None).url
    if (server := embedded.status(home)) is not None:
        return server.url
    paths = create_folders(home)
    with locked(paths.lock) as lock:
        if cluster.wait_until_settled(paths) is None:
            binaries = binaries_of(chosen, paths)
            cluster.create_data(paths, binaries, sync=settings.get("fsync") != "off", lock=lock)
            paths.version.write_text(binaries.version)
            cluster.start(paths, binaries, settings)
    server = embedded.status(home)
    assert server is not None
    return server.url


def binaries_of(chosen: str, paths: ServerPaths) -> Binaries:
    """Return the programs of the chosen server, at a place where the server's user can run them."""
    found = _programs(chosen, paths)
    if found.package is None or paths.user is None or can_reach(found.directory / "postgres", paths.user):
        return found
    cache = shared_folder("binaries")
    with locked(cache / "lock"):
        return copy_of(found, cache)


def _programs(chosen: str, paths: ServerPaths) -> Binaries:
    if chosen.isdecimal():
        return _fetched(chosen)
    if chosen == "system":
        directory = DEBIAN_PROGRAMS / _debian_cluster().version / "bin"
        return Binaries(directory, _version(directory))
    for binaries in available(paths.user, paths.verified):
        return binaries
    raise ServerUnavailable("there is no PostgreSQL to start: run `make test`, which installs one")


def _fetched(major: str) -> Binaries:
    package = FETCHED / major / "native"
    if not (package / "bin" / "postgres").is_file():
        raise ServerUnavailable(
            f"{CHOICE_VARIABLE}={major}, but PostgreSQL {major} is not in {FETCHED}: run `make servers`"
        )
    return Binaries(package / "bin", _version(package / "bin"), package)


def _version(directory: Path) -> str:
    said = _run([str(directory / "postgres"), "--version"])
    match = re.search(r"\(PostgreSQL\) (\d[\w.]*)", said)
    if match is None:
        raise ServerUnavailable(f"{directory}/postgres gives no version: {said.strip()}")
    return match.group(1)


def _check(url: str) -> str:
    """Return the URL of a server that answers and lets us create databases."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ServerUnavailable(
            f"{CHOICE_VARIABLE}={url!r} is neither embedded, system, a major version such as 13, nor a postgresql:// URL"
        )
    if urlsplit(url).query:
        raise ServerUnavailable(
            f"{CHOICE_VARIABLE} has a query, and tests add their own: give settings such as sslmode by PGSSLMODE instead"
        )
    try:
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
    except psycopg.Error as error:
        raise ServerUnavailable(f"the server of {CHOICE_VARIABLE} does not answer: {error}") from error
    if row != (True,):
        raise ServerUnavailable(
            f"the user of {CHOICE_VARIABLE} may not create databases: ALTER ROLE … CREATEDB"
        )
    return url


@dataclass(frozen=True, slots=True)
class _DebianCluster:
    """A line of pg_lsclusters."""

    version: str
    name: str
    port: str
    status: str
    owner: str


def _debian_cluster() -> _DebianCluster:
    """Return Debian's cluster `main` of the newest version."""
    if shutil.which("pg_lsclusters") is None:
        raise ServerUnavailable(
            f"{CHOICE_VARIABLE}=system, but Debian's PostgreSQL is not installed: run `apt-get install postgresql` as root, "
            f"or set {CHOICE_VARIABLE} to a server's URL"
        )
    lines = [line.split() for line in _run(["pg_lsclusters", "--no-header"]).splitlines()]
    clusters = [_DebianCluster(*line[:5]) for line in lines if line[1] == "main"]
    if not clusters:
        raise ServerUnavailable(
            f"{CHOICE_VARIABLE}=system, but there is no cluster 'main': create it with `pg_createcluster VERSION main`"
        )
    return max(clusters, key=lambda found: int(found.version))


def _join_system(home: Path) -> str:
    """Start Debian's cluster if it is down, and log in as a superuser that this run alone uses."""
    found = _debian_cluster()
    if not found.status.startswith("online"):
        try:
            _run(["pg_ctlcluster", found.version, found.name, "start"])
        except ServerUnavailable as error:
            raise ServerUnavailable(
                f"{error}; start it as root: `pg_ctlcluster {found.version} {found.name} start`"
            ) from error
    role, password = _role(home), secrets.token_urlsafe(24)
    _psql(found, f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'")
    return f"postgresql://{role}:{password}@127.0.0.1:{found.port}/postgres"


def _leave_system(home: Path) -> None:
    role = _role(home)
    _psql(
        _debian_cluster(),
        rf"""
        SELECT format('DROP DATABASE %I WITH (FORCE)', datname)
        FROM pg_database WHERE pg_get_userbyid(datdba) = '{role}' \gexec
        DROP ROLE IF EXISTS {role};
        """,
    )


def _role(home: Path) -> str:
    return re.sub("[^a-z0-9]", "_", home.name.lower())


def _psql(found: _DebianCluster, statements: str) -> None:
    """Run statements as the cluster's owner when we are root, and as ourselves otherwise."""
    command = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-p", found.port, "-d", "postgres"]
    try:
        _run(command, statements, user=found.owner if os.geteuid() == 0 else None)
    except ServerUnavailable as error:
        raise ServerUnavailable(
            f"{error}; only root and superusers of the cluster can use {CHOICE_VARIABLE}=system, others set it to a URL"
        ) from error


def _run(command: list[str], given: str = "", user: str | None = None) -> str:
    done = subprocess.run(
        command,
        cwd="/",
        input=given,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        user=user,
        extra_groups=None if user is None else [],
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
