"""The few things asked of the operating system, with what is done where it lacks them."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PAGE_MB = resource.getpagesize() / 1_048_576
# A signal that hardly anybody uses, and that does no harm to a task that has put all handlers back to their defaults.
RECALL = signal.SIGURG

_libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_pid = os.getpid()


def own_pid() -> int:
    """The id of this process, also after a fork; to ask the system each time would take longer than a short task."""
    return _pid


def _note_pid() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_pid)


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; elsewhere than on Linux the closed pipe tells."""
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it ended before we asked
        os._exit(1)


def name_process(name: str) -> None:
    """What `ps` and `top` show; at most 15 characters."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def memory_mb(pid: int | None = None) -> float:
    """Resident memory of a process now; without /proc, the most that this process ever had."""
    statm = Path(f"/proc/{pid or 'self'}/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * _PAGE_MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1_048_576 if sys.platform == "darwin" else 1_024
    )


def kill_group(pid: int) -> None:
    """Kill a child and everything that it started, all of which is in the group that it leads."""
    if pid <= 1:
        raise ValueError(f"{pid} is no child of ours")  # and killpg(1) would end every process there is
    for kill in (os.killpg, os.kill):  # only just forked, it does not lead a group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def recall(pid: int) -> None:
    """Ask a child for the calls that it has not begun; it answers between two steps of what it runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, RECALL)


def describe_exit(status: int | None) -> str:
    """What a wait status says, in words."""
    if status is None:
        return "its process ended"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "an unnamed signal"
    hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"its process was killed by signal {-code} ({name}{hint})"
