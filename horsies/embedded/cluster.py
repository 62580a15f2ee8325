"""Make a data directory and run a server on it; the caller holds the lock of its site.

A data directory gets its name only when it is complete, so a killed start leaves nothing that
looks like one. The server takes a password on every door and outlives whoever started it.
"""

import hashlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from horsies.embedded.binaries import Binaries
from horsies.embedded.postmaster import Postmaster, clear_stale, running
from horsies.embedded.site import Site
from horsies.errors import EmbeddedError, ErrorCode

USER = "horsies"
LOCALE = "C.UTF-8" if sys.platform == "linux" else "C"
# Written to postgresql.conf once, so that ALTER SYSTEM can still change them.
DEFAULTS = {"max_connections": "200", "shared_buffers": "128MB", "timezone": "UTC", "log_timezone": "UTC"}
UNFINISHED = ".initdb-"
PATIENCE_S = 60.0  # to come up, to recover from a crash, to go down
POLL_S = 0.01
LOG_KEPT_BYTES = 256 * 1024
LOG_SHOWN_LINES = 12
# PostgreSQL's words for what a second try can mend
PORT_TAKEN = "Address already in use"
PREDECESSOR_LINGERS = "is still in use"


def create_data(site: Site, binaries: Binaries, *, sync: bool, lock: int) -> None:
    """Make a data directory aside and give it its name when it is complete."""
    for leftover in site.place.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    if site.relocated and not (site.home / "data").is_symlink():
        (site.home / "data").symlink_to(site.data)
    password = secrets.token_urlsafe(24)
    _write_private(site.password, password)
    work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=site.place))
    _write_private(work / "password", password)
    site.hand_over(work / "password")
    site.hand_over(work)
    command = [
        *(binaries.directory / "initdb", "--pgdata", work / "data", "--username", USER),
        *("--auth", "scram-sha-256", "--pwfile", work / "password", "--encoding", "UTF8"),
        *("--locale", LOCALE, "--no-instructions", *(() if sync else ("--no-sync",))),
    ]
    # initdb holds the lock too: should we be killed, nobody clears away what it still writes
    outcome = _run(site, command, keep_open=(lock,))
    if outcome.returncode != 0:
        raise failed(site, "initdb could not make a data directory", outcome.stdout)
    with (work / "data" / "postgresql.conf").open("a") as conf:
        conf.writelines(f"{name} = '{value}'\n" for name, value in DEFAULTS.items())
    (work / "data").rename(site.data)
    shutil.rmtree(work)


def start(site: Site, binaries: Binaries, settings: Mapping[str, str]) -> Postmaster:
    """Start the server; again on another port, or until a killed predecessor has really gone."""
    deadline = time.monotonic() + PATIENCE_S
    ports = _ports(site.home)
    port = next(ports)
    while True:
        clear_stale(site.data)
        complaint = _try_port(site, binaries, settings, port)
        # asked of the data directory: a killed process's start may have been faster than ours
        if (postmaster := settled(site)) is not None:
            return postmaster
        if PORT_TAKEN in complaint:
            port = next(ports)
        elif PREDECESSOR_LINGERS not in complaint:
            raise failed(site, "the embedded PostgreSQL did not start", complaint)
        if time.monotonic() > deadline:
            raise failed(site, f"the embedded PostgreSQL did not start in {PATIENCE_S:.0f} s", complaint)
        time.sleep(POLL_S)


def settled(site: Site) -> Postmaster | None:
    """The server once it is ready, or None once there is none: waits out a start or stop under way."""
    deadline = time.monotonic() + PATIENCE_S
    while (postmaster := running(site.data)) is not None and not postmaster.ready:
        if time.monotonic() > deadline:
            raise failed(site, f"PostgreSQL (pid {postmaster.pid}) is up but takes no connections")
        time.sleep(POLL_S)
    return postmaster


def shut_down(site: Site) -> bool:
    """Ask for a fast shutdown and wait for its end; false when no server was running."""
    postmaster = running(site.data)
    if postmaster is None:
        return False
    os.kill(postmaster.pid, signal.SIGINT)
    deadline = time.monotonic() + PATIENCE_S
    while running(site.data) is not None:
        if time.monotonic() > deadline:
            raise failed(site, f"PostgreSQL (pid {postmaster.pid}) did not stop in {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)
    return True


def remove(site: Site) -> None:
    """Delete what belongs to a stopped server; the lock stays, for others may wait on it."""
    for folder in (site.data, site.place / "run", *site.place.glob(f"{UNFINISHED}*")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (site.log, site.password, site.version):
        file.unlink(missing_ok=True)
    if site.relocated and site.place.exists():
        site.place.rmdir()


def failed(site: Site, what: str, complaint: str = "") -> EmbeddedError:
    """The error for a server that does not do as it is told, with the end of what it said."""
    return EmbeddedError(
        what,
        code=ErrorCode.EMBEDDED_START_FAILED,
        help_text=f"see {site.log}, or set HORSIES_DATABASE_URL to use another server",
        notes=complaint.strip().splitlines()[-LOG_SHOWN_LINES:],
    )


def _ports(home: Path) -> Iterator[int]:
    """A port of the home's own, where clients find a restarted server again; then any free one."""
    digest = hashlib.sha256(os.fsencode(home)).digest()
    yield 20_000 + int.from_bytes(digest[:4]) % 12_000
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        yield port


def _try_port(site: Site, binaries: Binaries, settings: Mapping[str, str], port: int) -> str:
    """Run `pg_ctl start` once; what the server logged meanwhile."""
    ours = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": _empty_sockets(site),
    }
    switches = [word for name, value in ({**settings, **ours}).items() for word in ("-c", f"{name}={value}")]
    # pg_ctl pastes its paths into a shell command. So that any path will do, it gets the data
    # directory by environment, the log by working directory, and options quoted by us.
    command = [
        *(binaries.directory / "pg_ctl", "start", "--wait", "--timeout", f"{PATIENCE_S:.0f}"),
        *("--log", site.log.name, "--options", shlex.join(["-D", str(site.data), *switches])),
    ]
    logged_before = _trim_log(site)
    outcome = _run(site, command, cwd=site.place)
    with site.log.open("rb") as log:
        log.seek(logged_before)
        return log.read().decode(errors="replace") or outcome.stdout


def _empty_sockets(site: Site) -> str:
    """The setting for a fresh socket folder: whatever lies in the old one is a dead server's."""
    if site.sockets is None:
        return ""
    shutil.rmtree(site.sockets, ignore_errors=True)
    site.sockets.mkdir(mode=0o700)
    site.hand_over(site.sockets)
    return '"{}"'.format(str(site.sockets).replace('"', '""'))


def _trim_log(site: Site) -> int:
    """Keep only the end of a log that has grown; its size afterwards."""
    if not site.log.exists():
        _write_private(site.log, "")
        site.hand_over(site.log)
    if site.log.stat().st_size > LOG_KEPT_BYTES:
        with site.log.open("r+b") as log:
            log.seek(-LOG_KEPT_BYTES, os.SEEK_END)
            end = log.read()
            log.seek(0)
            log.truncate()
            log.write(end)
    return site.log.stat().st_size


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a password lost to a power cut would lock everyone out


def _run(
    site: Site, command: Sequence[str | Path], *, cwd: Path = Path("/"), keep_open: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program of PostgreSQL as the server's user, out of reach of our terminal's signals."""
    # our environment may hold secrets, and the server's user can read that of its processes
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    account = site.account
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env={**env, "LC_ALL": "C", "PGDATA": str(site.data)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
            pass_fds=keep_open,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except OSError as error:
        who = f" as user '{account.name}'" if account else ""
        raise failed(site, f"can't run {command[0]}{who}: {error}") from error
