"""Find the project that runs, and name its database on the embedded server.

All processes of one user share one embedded server. Each project has a database of its own there, so that no worker runs the
tasks of another project. All processes of a project must find the same name, wherever they are started: the project is found
from the file that creates the app, and for commands without an app from the working directory.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

# The folder that holds one of these is the folder of a project.
MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", "manage.py", ".git", ".hg")
_PACKAGE = __name__.partition(".")[0]
_INSTALLED = {"site-packages", "dist-packages"}
_NAME = re.compile(r"(?!template[01]$)[a-z_][a-z0-9_]{0,62}")


def is_database_name(name: object) -> bool:
    """Return True for a name that PostgreSQL accepts without quotes, and that is not one of its templates."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def own_database() -> str:
    """Return the name of this project's database on the embedded server; `HORSIES_EMBEDDED_DATABASE` replaces it."""
    return os.environ.get("HORSIES_EMBEDDED_DATABASE") or database_name(
        project_folder(_calling_folder() or _working_directory())
    )


def database_name(folder: Path) -> str:
    """Return the name of the database for a project folder: readable, and different for each folder.

    >>> database_name(Path("/home/ann/My Shop"))
    'horsies_my_shop_830dfcca'
    """
    slug = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_")[:40].strip("_")
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return "_".join(["horsies", *([slug] if slug else []), digest])


def project_folder(start: Path) -> Path:
    """Return the folder of the project that a folder belongs to.

    It is the nearest folder upwards with one of `MARKERS`. If there is none, it is the first one that is not a package. The
    home directory is no project: it may hold a `.git` for settings, and all projects.
    """
    start = start.resolve()
    home = Path("~").expanduser()
    for folder in (start, *start.parents):
        if folder in (home, folder.parent):
            break
        if any(_exists(folder / marker) for marker in MARKERS):
            return folder
    return next((folder for folder in (start, *start.parents) if not _exists(folder / "__init__.py")), start)


def _exists(path: Path) -> bool:
    with suppress(OSError):  # such as a folder above that may not be searched
        return path.exists()
    return False


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted
        return Path("/")


def _calling_folder() -> Path | None:
    """Return the folder of the user's file that calls us; None below a command, and without a file, as in a shell."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(f"{_PACKAGE}.cli"):
            return None
        file = frame.f_globals.get("__file__")
        if isinstance(file, str) and _is_users(module, Path(file)):
            return Path(file).absolute().parent
        frame = frame.f_back
    return None


def _is_users(module: str, file: Path) -> bool:
    """Return True for a file of the user's, not of horsies, the standard library or an installed package or program."""
    top = module.partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names or _INSTALLED.intersection(file.parts):
        return False
    return file.parent != Path(sysconfig.get_path("scripts"))
