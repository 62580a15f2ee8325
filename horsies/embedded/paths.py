"""The files and folders of the embedded server, and the user it runs as.

The home belongs to the calling user, and holds the lock and the password. Data, log and socket belong to the server's user,
and are in the home too. PostgreSQL does not run as root, so root's server runs as `nobody`. If `nobody` cannot enter the
home (as in /root), the server's files are under /var/lib/horsies, which survives a reboot, and `data` in the home is a link
to them. The permissions of existing folders are never widened.
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
# sun_path holds 104 bytes on macOS and 108 on Linux, including the final NUL
LONGEST_SOCKET = 103


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The operating system user that the server runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPaths:
    """The files and folders of one embedded server."""

    home: Path  # of the caller: lock and password
    data: Path  # of the server, like everything beside it; in the home if possible
    user: ServerUser | None  # set only if we are root

    @property
    def server_folder(self) -> Path:
        return self.data.parent

    @property
    def is_outside_home(self) -> bool:
        """Return True if the server's files are in a folder under /var/lib/horsies."""
        return self.server_folder != self.home and self.server_folder.parent == SHARED

    @property
    def log(self) -> Path:
        return self.server_folder / "server.log"

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
    def verified(self) -> Path:
        return self.home / "verified"

    @property
    def sockets(self) -> Path | None:
        """Return the folder of the Unix socket; None if its path would be too long."""
        folder = self.server_folder / "run"
        longest = os.fsencode(folder / ".s.PGSQL.65535")
        return folder if len(longest) <= LONGEST_SOCKET else None

    def give_to_user(self, path: Path) -> None:
        """Make the server's user the owner of a new file or folder."""
        if self.user is not None:
            os.chown(path, self.user.uid, self.user.gid, follow_symlinks=False)


def home_directory(env: Mapping[str, str]) -> Path:
    """Return the home of the embedded server for a process with this environment.

    >>> home_directory({"HORSIES_HOME": "/srv/horsies"})
    PosixPath('/srv/horsies')
    """
    if chosen := env.get("HORSIES_HOME"):
        return Path(chosen)
    if shared := env.get("XDG_DATA_HOME"):
        return Path(shared) / "horsies"
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return home / ".local" / "share" / "horsies"


def locate(home: Path | None) -> ServerPaths:
    """Return the paths of a server without creating anything."""
    if sys.platform == "win32":
        raise EmbeddedError(
            "the embedded PostgreSQL needs Linux or macOS",
            code=ErrorCode.EMBEDDED_NO_BINARIES,
            help_text="set HORSIES_DATABASE_URL to a PostgreSQL server",
        )
    home = (home or home_directory(os.environ)).expanduser().resolve()
    user = _nobody() if os.geteuid() == 0 else None
    data = home / "data"
    if data.is_symlink():
        data = data.resolve()
    elif user is not None and not data.exists() and not can_reach(home, user):
        data = SHARED / hashlib.sha256(os.fsencode(home)).hexdigest()[:12] / "data"
    return ServerPaths(home=home, data=data, user=user)


def create_folders(home: Path | None) -> ServerPaths:
    """Create the home and the folder of the server, as private as the user of the server allows."""
    paths = locate(home)
    paths.home.mkdir(mode=0o700 if paths.user is None else 0o711, parents=True, exist_ok=True)
    paths = locate(paths.home)  # with a strict umask, the server's user may not reach the new home
    if paths.is_outside_home:
        shared_folder(paths.server_folder.name)
    return paths


def shared_folder(name: str) -> Path:
    """Create a folder under /var/lib/horsies that every user may enter, whatever the umask."""
    folder = SHARED / name
    for path in (SHARED, folder):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)
    return folder


@contextmanager
def locked(path: Path) -> Generator[int]:
    """Hold a lock file; the kernel releases the lock when this process ends, even if it is killed."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def can_reach(path: Path, user: ServerUser) -> bool:
    """Return True if the user may enter every existing folder on the way to `path`, and `path` itself."""
    return all(_may_enter(folder.stat(), user) for folder in (path, *path.parents) if folder.exists())


def _may_enter(info: os.stat_result, user: ServerUser) -> bool:
    if info.st_uid == user.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == user.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _nobody() -> ServerUser:
    """Return the user `nobody`, not `postgres`, who may own the files of a production server."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and this machine has no user 'nobody' to run it as",
            code=ErrorCode.EMBEDDED_START_FAILED,
            help_text="run as an ordinary user, or set HORSIES_DATABASE_URL to a PostgreSQL server",
        ) from error
    return ServerUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
