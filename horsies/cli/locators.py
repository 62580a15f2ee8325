"""Find the app that a command works on: by its argument, by HORSIES_APP or by pyproject.toml."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import NoReturn, cast

import click

from horsies.errors import ConfigurationError, ErrorCode

PROJECT_FILE = "pyproject.toml"
HOW_TO_NAME_THE_APP = (
    "give LOCATOR as package.module:app or path/to/file.py:app, set HORSIES_APP, or write "
    f'app = "package.module:app" under [tool.horsies] in {PROJECT_FILE}'
)


def find_app(given: str | None) -> str | None:
    """Return the locator of the app: the given one, that in HORSIES_APP or that in pyproject.toml; None if there is none."""
    return given or os.environ.get("HORSIES_APP") or _in_project(project_file())


def require_app(given: str | None) -> str:
    """Return the locator of the app; refuse a command line without one."""
    found = find_app(given)
    if found is None:
        file = project_file()
        searched = "" if file is None else f" ({file} names none)"
        raise click.UsageError(f"no app was named; {HOW_TO_NAME_THE_APP}{searched}")
    return found


def project_file() -> Path | None:
    """Return the nearest pyproject.toml, from the working directory upwards."""
    here = Path.cwd()
    return next((file for each in (here, *here.parents) if (file := each / PROJECT_FILE).is_file()), None)


def _in_project(file: Path | None) -> str | None:
    """Return `app` of the table [tool.horsies], and make it loadable from any folder of the project."""
    if file is None:
        return None
    settings = _settings(file)
    if not settings:
        return None
    if unknown := sorted(set(settings) - {"app"}):
        _refuse(file, f"[tool.horsies] has no setting {unknown[0]!r}")
    locator = settings["app"]
    if not isinstance(locator, str) or not locator:
        _refuse(file, f"app under [tool.horsies] is {locator!r}")
    target, colon, attribute = locator.partition(":")
    if target.endswith(".py"):
        return f"{file.parent / target}{colon}{attribute}"
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return locator


def _settings(file: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        _refuse(file, f"it cannot be read: {error}")
    tools = document.get("tool")
    settings: object = cast("dict[str, object]", tools).get("horsies") if isinstance(tools, dict) else None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        _refuse(file, f"[tool.horsies] is {settings!r}, not a table")
    return cast("dict[str, object]", settings)


def _refuse(file: Path, problem: str) -> NoReturn:
    raise ConfigurationError(
        f"{file}: {problem}",
        code=ErrorCode.CLI_INVALID_ARGS,
        help_text='write app = "package.module:app" under [tool.horsies], or name the app by LOCATOR or HORSIES_APP',
    )
