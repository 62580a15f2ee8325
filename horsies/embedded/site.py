"""Where the embedded server lives, and whose it is.

The home belongs to the user who calls us: it holds the lock and the password. Data, log and
socket belong to the server and lie in the home too. PostgreSQL will not run as root, so root's
server runs as `nobody`; when `nobody` can't enter the home (as in /root), the server's files
lie under /var/lib/horsies, which survives a reboot, and `data` in the home is a link to them.
No folder's permissions are ever widened.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from horsies.errors import EmbeddedError, ErrorCode

if sys.platform != "win32":
    import fcntl
    import pwd

SHARED = Path("/var/lib/horsies")
# sun_path holds 104 bytes on macOS and 108 on Linux, the last of them zero
LONGEST_SOCKET = 103


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine whom the server runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The folders of one embedded server."""

    home: Path  # the caller's: lock and password
    data: Path  # the server's, like all that lies beside it; in the home wherever possible
    account: Account | None  # whom the server runs as when we are root

    @property
    def place(self) -> Path:
        return self.data.parent

    @property
    def relocated(self) -> bool:
        """Whether the server's files lie under /var/lib/horsies, in a folder of their own."""
        return self.place != self.home and self.place.parent == SHARED

    @property
    def log(self) -> Path:
        return self.place / "server.log"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def password(self) -> Path:
        return self.home / "password"

    @property
    def version(self) -> Path:
        return self.home / "version"

    @property
    def sockets(self) -> Path | None:
        """The folder of the Unix socket; None where its path would be too long for one."""
        folder = self.place / "run"
        longest = os.fsencode(folder / ".s.PGSQL.65535")
        return folder if len(longest) <= LONGEST_SOCKET else None

    @property
    def owner(self) -> int:
        return self.account.uid if self.account else os.geteuid()

    def hand_over(self, path: Path) -> None:
        """Give a new file or folder to the user whom the server runs as."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)


def home_directory(env: Mapping[str, str]) -> Path:
    """Where the embedded server is kept for a process with this environment.

    >>> home_directory({"HORSIES_HOME": "/srv/horsies"})
    PosixPath('/srv/horsies')
    """
    if chosen := env.get("HORSIES_HOME"):
        return Path(chosen)
    if shared := env.get("XDG_DATA_HOME"):
        return Path(shared) / "horsies"
    user = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return user / ".local" / "share" / "horsies"


def locate(home: Path | None) -> Site:
    """The site of a home, found without creating anything."""
    if sys.platform == "win32":
        raise EmbeddedError(
            "the embedded PostgreSQL needs Linux or macOS",
            code=ErrorCode.EMBEDDED_NO_BINARIES,
            help_text="set HORSIES_DATABASE_URL to a PostgreSQL server",
        )
    home = (home or home_directory(os.environ)).expanduser().resolve()
    account = _unprivileged() if os.geteuid() == 0 else None
    data = home / "data"
    if data.is_symlink():
        data = data.resolve()
    elif account is not None and not data.exists() and not reachable(home, account):
        data = SHARED / hashlib.sha256(os.fsencode(home)).hexdigest()[:12] / "data"
    return Site(home=home, data=data, account=account)


def prepare(home: Path | None) -> Site:
    """Create the folders of a site, as private as the server's user allows."""
    site = locate(home)
    site.home.mkdir(mode=0o700 if site.account is None else 0o711, parents=True, exist_ok=True)
    site = locate(site.home)  # a strict umask may have made the new home unreachable
    if site.relocated:
        shared_folder(site.place.name)
    return site


def shared_folder(name: str) -> Path:
    """A folder of root's that every user may pass through, whatever the umask."""
    folder = SHARED / name
    for path in (SHARED, folder):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)
    return folder


@contextmanager
def locked(path: Path) -> Generator[int]:
    """Hold a lock file; the kernel lets go of it however this process ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def reachable(path: Path, account: Account) -> bool:
    """Whether the account may pass through every folder to `path`, as far as that exists, and enter it."""
    return all(_may_enter(folder.stat(), account) for folder in (path, *path.parents) if folder.exists())


def _may_enter(info: os.stat_result, account: Account) -> bool:
    if info.st_uid == account.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == account.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _unprivileged() -> Account:
    """`nobody`, not `postgres`: that account may own the files of a production server."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and this machine has no user 'nobody' to run it as",
            code=ErrorCode.EMBEDDED_START_FAILED,
            help_text="run as an ordinary user, or set HORSIES_DATABASE_URL to a PostgreSQL server",
        ) from error
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
