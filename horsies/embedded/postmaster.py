"""Tell whether a data directory has a living server, without asking the server.

`postmaster.pid` alone proves nothing: its process may be gone, be a zombie, or be somebody
else's by now. A server counts as running only when the process itself says which data
directory it serves.
"""

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What `postmaster.pid` says about a server."""

    pid: int
    port: int  # 0 while the server has not written it yet
    ready: bool  # accepts connections; false while starting or stopping


def parse(text: str) -> Postmaster | None:
    """Read the text of a `postmaster.pid`; None when it is not one."""
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
    """The living server of this data directory, ready or not; None when there is none."""
    postmaster = _recorded(data)
    if postmaster is None or not _serves(postmaster.pid, data):
        return None
    return postmaster


def clear_stale(data: Path) -> None:
    """Remove the pid file of a dead server; call it only when `running` said None.

    PostgreSQL refuses to start while the recorded pid exists, even as a zombie or as another
    program. Its interlock on shared memory still keeps out a second server while any process
    of the dead one lives on.
    """
    postmaster = _recorded(data)
    if postmaster is not None:
        _reap(postmaster.pid)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _recorded(data: Path) -> Postmaster | None:
    try:
        return parse((data / "postmaster.pid").read_text(errors="replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _serves(pid: int, data: Path) -> bool:
    """Whether the process is a postmaster of this data directory; a zombie has no command line."""
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


def _reap(pid: int) -> None:
    """Collect a zombie postmaster that is our child, as it is when we are PID 1 of a container."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return
    if name == "postgres":  # never take the exit status of any other child
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
