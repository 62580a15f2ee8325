"""Create a data directory, and start and stop the PostgreSQL server in it."""

import contextlib
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
from dataclasses import dataclass
from pathlib import Path

from horsies.embedded.binaries import Binaries
from horsies.embedded.paths import ServerPaths
from horsies.errors import EmbeddedError, ErrorCode


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The contents of a `postmaster.pid`."""

    pid: int
    port: int  # 0 until the server has written it
    ready: bool  # accepts connections; false while starting or stopping


def parse_pid_file(text: str) -> Postmaster | None:
    """Parse the text of a `postmaster.pid`; return None if it is incomplete or something else."""
    lines = [line.strip() for line in text.splitlines()]
    try:
        pid = int(lines[0])
        port = int(lines[3]) if len(lines) > 3 else 0
    except (ValueError, IndexError):
        return None
    if pid <= 0 or port < 0:
        return None
    return Postmaster(pid=pid, port=port, ready=len(lines) > 7 and lines[7] == "ready" and port > 0)


def running(data: Path) -> Postmaster | None:
    """Return the running server of this data directory, ready or not; None if there is none."""
    postmaster = _read_pid_file(data)
    if postmaster is None or not _is_postmaster(postmaster.pid, data):
        return None
    return postmaster


def clear_stale(data: Path) -> None:
    """Remove the pid file of a dead server; call it only if `running` returned None.

    PostgreSQL refuses to start while a process with the recorded pid exists, even a zombie or another program. Its
    interlock on shared memory still prevents a second server while any process of the dead one is alive.
    """
    postmaster = _read_pid_file(data)
    with contextlib.suppress(OSError):
        # Reap a zombie that is our child, which happens when we are PID 1 of a container; but no other child.
        if postmaster and Path(f"/proc/{postmaster.pid}/comm").read_text().strip() == "postgres":
            os.waitpid(postmaster.pid, os.WNOHANG)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _read_pid_file(data: Path) -> Postmaster | None:
    try:
        return parse_pid_file((data / "postmaster.pid").read_text(errors="replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_postmaster(pid: int, data: Path) -> bool:
    """Return True if the process is the postmaster of this data directory; a zombie has no command line."""
    if sys.platform == "linux":
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return Path(os.fsdecode(command[0])).name == "postgres" and os.fsencode(data) in command
    listing = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False, text=True
    )
    return f"postgres -D {data} " in listing.stdout


USER = "horsies"
LOCALE = "C.UTF-8" if sys.platform == "linux" else "C"
# Written to postgresql.conf once, so that ALTER SYSTEM can still change them.
DEFAULTS = {"max_connections": "200", "shared_buffers": "128MB", "timezone": "UTC", "log_timezone": "UTC"}
UNFINISHED = ".initdb-"
TIMEOUT_SECONDS = 60.0  # to come up, to recover from a crash, to go down
POLL_SECONDS = 0.01
LOG_KEPT_BYTES = 256 * 1024
LOG_SHOWN_LINES = 12
# Messages of PostgreSQL after which a start is tried again
PORT_TAKEN = "Address already in use"
STILL_IN_USE = "is still in use"


def create_data(paths: ServerPaths, binaries: Binaries, *, sync: bool, lock: int) -> None:
    """Create a data directory under a temporary name, and rename it when it is complete."""
    for leftover in paths.server_folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    if paths.is_outside_home and not (paths.home / "data").is_symlink():
        (paths.home / "data").symlink_to(paths.data)
    password = secrets.token_urlsafe(24)
    _write_private(paths.password, password)
    work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=paths.server_folder))
    _write_private(work / "password", password)
    paths.give_to_user(work / "password")
    paths.give_to_user(work)
    command = [
        *(binaries.directory / "initdb", "--pgdata", work / "data", "--username", USER),
        *("--auth", "scram-sha-256", "--pwfile", work / "password", "--encoding", "UTF8"),
        *("--locale", LOCALE, *(() if sync else ("--no-sync",))),
    ]
    # initdb holds the lock too: if we are killed, no other process deletes the folder that it still writes to
    outcome = _run(paths, command, keep_open=(lock,))
    if outcome.returncode != 0:
        raise start_error(paths, "initdb could not create a data directory", outcome.stdout)
    with (work / "data" / "postgresql.conf").open("a") as conf:
        conf.writelines(f"{name} = '{value}'\n" for name, value in DEFAULTS.items())
    (work / "data").rename(paths.data)
    shutil.rmtree(work)


def start(paths: ServerPaths, binaries: Binaries, settings: Mapping[str, str]) -> Postmaster:
    """Start the server; try again on another port, or until the processes of a killed server are gone."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    ports = _ports(paths.home)
    port = next(ports)
    while True:
        clear_stale(paths.data)
        complaint = _try_port(paths, binaries, settings, port)
        # read from the data directory: the server may have been started by a process that was killed since
        if (postmaster := wait_until_settled(paths)) is not None:
            return postmaster
        if PORT_TAKEN in complaint:
            port = next(ports)
        elif STILL_IN_USE not in complaint:
            raise start_error(paths, "the embedded PostgreSQL did not start", complaint)
        if time.monotonic() > deadline:
            raise start_error(
                paths, f"the embedded PostgreSQL did not start in {TIMEOUT_SECONDS:.0f} s", complaint
            )
        time.sleep(POLL_SECONDS)


def wait_until_settled(paths: ServerPaths) -> Postmaster | None:
    """Wait until a server that starts or stops is done; return it if it is ready, None if there is none."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (postmaster := running(paths.data)) is not None and not postmaster.ready:
        if time.monotonic() > deadline:
            raise start_error(paths, f"PostgreSQL (pid {postmaster.pid}) is up but takes no connections")
        time.sleep(POLL_SECONDS)
    return postmaster


def stop(paths: ServerPaths) -> bool:
    """Stop the server with a fast shutdown, and wait for its end; return False if none was running."""
    postmaster = running(paths.data)
    if postmaster is None:
        return False
    os.kill(postmaster.pid, signal.SIGINT)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while running(paths.data) is not None:
        if time.monotonic() > deadline:
            raise start_error(
                paths, f"PostgreSQL (pid {postmaster.pid}) did not stop in {TIMEOUT_SECONDS:.0f} s"
            )
        time.sleep(POLL_SECONDS)
    return True


def remove(paths: ServerPaths) -> None:
    """Delete the files of a stopped server, except for the lock: others may wait for it."""
    for folder in (paths.data, paths.server_folder / "run", *paths.server_folder.glob(f"{UNFINISHED}*")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (paths.log, paths.password, paths.version):
        file.unlink(missing_ok=True)
    if paths.is_outside_home and paths.server_folder.exists():
        paths.server_folder.rmdir()


def start_error(paths: ServerPaths, what: str, complaint: str = "") -> EmbeddedError:
    """Return the error for a server that did not start or stop, with the end of its output."""
    return EmbeddedError(
        what,
        code=ErrorCode.EMBEDDED_START_FAILED,
        help_text=f"see {paths.log}, or set HORSIES_DATABASE_URL to use another server",
        notes=complaint.strip().splitlines()[-LOG_SHOWN_LINES:],
    )


def _ports(home: Path) -> Iterator[int]:
    """Yield a port derived from the home, so that a restarted server keeps it; then any free port."""
    digest = hashlib.sha256(os.fsencode(home)).digest()
    yield 20_000 + int.from_bytes(digest[:4]) % 12_000
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        yield port


def _try_port(paths: ServerPaths, binaries: Binaries, settings: Mapping[str, str], port: int) -> str:
    """Run `pg_ctl start` once, and return what the server logged meanwhile."""
    ours = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": _empty_sockets(paths),
    }
    switches = [word for name, value in ({**settings, **ours}).items() for word in ("-c", f"{name}={value}")]
    # pg_ctl pastes its paths into a shell command without quotes. To allow any path, the data directory is passed in
    # the environment, the log relative to the working directory, and the options are quoted here.
    command = [
        *(binaries.directory / "pg_ctl", "start", "--wait", "--timeout", f"{TIMEOUT_SECONDS:.0f}"),
        *("--log", paths.log.name, "--options", shlex.join(["-D", str(paths.data), *switches])),
    ]
    logged_before = _trim_log(paths)
    outcome = _run(paths, command, cwd=paths.server_folder)
    with paths.log.open("rb") as log:
        log.seek(logged_before)
        return log.read().decode(errors="replace") or outcome.stdout


def _empty_sockets(paths: ServerPaths) -> str:
    """Create an empty folder for the socket, and return the setting for it; old sockets belong to a dead server."""
    if paths.sockets is None:
        return ""
    shutil.rmtree(paths.sockets, ignore_errors=True)
    paths.sockets.mkdir(mode=0o700)
    paths.give_to_user(paths.sockets)
    return '"{}"'.format(str(paths.sockets).replace('"', '""'))


def _trim_log(paths: ServerPaths) -> int:
    """Cut a long log to its end, and return its size."""
    if not paths.log.exists():
        _write_private(paths.log, "")
        paths.give_to_user(paths.log)
    if paths.log.stat().st_size > LOG_KEPT_BYTES:
        with paths.log.open("r+b") as log:
            log.seek(-LOG_KEPT_BYTES, os.SEEK_END)
            end = log.read()
            log.seek(0)
            log.truncate()
            log.write(end)
    return paths.log.stat().st_size


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a password lost in a power cut would make the data unusable


def _run(
    paths: ServerPaths,
    command: Sequence[str | Path],
    *,
    cwd: Path = Path("/"),
    keep_open: tuple[int, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program of PostgreSQL as the server's user, in a session of its own: Ctrl-C does not reach it."""
    # our environment may hold secrets, and the server's user can read the environment of its processes
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    user = paths.user
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env={**env, "LC_ALL": "C", "PGDATA": str(paths.data)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
            pass_fds=keep_open,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    except OSError as error:
        who = f" as user '{user.name}'" if user else ""
        raise start_error(paths, f"cannot run {command[0]}{who}: {error}") from error
