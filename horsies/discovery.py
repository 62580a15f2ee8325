"""Find an app by its locator and import the modules its tasks are defined in.

A locator is `package.module:attribute` or `path/to/file.py:attribute`; the attribute may be left out when the module
has one app. Sends are suppressed while task modules are imported, and allowed again even when an import fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, SourceLocation
from horsies.registry import TaskRegistry
from horsies.sending import SUPPRESS

_loading = False


def load_app(locator: str, imports: Sequence[str] = ()) -> TaskRegistry:
    """The app that a locator names, with its task modules imported, and others if wanted.

    >>> load_app("myapp.instance:app").list_tasks()
    """
    global _loading
    target, _, attribute = locator.partition(":")
    if not target:
        _refuse(locator, "it names no module", "write it as package.module:app or path/to/file.py:app")
    _make_importable(Path.cwd())
    # The app is not known before its module is imported, so sends are suppressed for whatever that defines.
    before = os.environ.get(SUPPRESS)
    _loading, os.environ[SUPPRESS] = True, "1"
    try:
        app = _pick(import_module(target), attribute, locator)
        import_modules(app, [*app.task_modules, *imports])
    finally:
        _loading = False
        if before is None:
            del os.environ[SUPPRESS]
        else:
            os.environ[SUPPRESS] = before
    return app


def refuse_while_loading() -> None:
    """A module that starts a worker when it is imported would start one in every child, and so on."""
    if _loading:
        raise ConfigurationError(
            "a worker or scheduler is started while the app is imported",
            code=ErrorCode.CONFIG_INVALID_WORKER,
            help_text='start it under `if __name__ == "__main__":`, or in a module of its own',
        )


def locate(app: TaskRegistry) -> str | None:
    """A locator by which another process finds this app; None when no module holds it."""
    holders = [
        (name, module, attribute)
        for name, module in list(sys.modules.items())
        for attribute, value in list(vars(module).items())
        if value is app
    ]
    for name, _, attribute in holders:
        if name != "__main__":
            return f"{name}:{attribute}"
    for _, module, attribute in holders:
        file = getattr(module, "__file__", None)
        return None if file is None else f"{file}:{attribute}"
    return None


def import_modules(app: TaskRegistry, modules: Sequence[str]) -> None:
    """Import modules in which tasks of an app are defined."""
    with suppressed_sends(app):
        for module in modules:
            import_module(module)


@contextmanager
def suppressed_sends(app: TaskRegistry) -> Generator[None]:
    before = app.are_sends_suppressed()
    app.suppress_sends(True)
    try:
        yield
    finally:
        app.suppress_sends(before)


def import_module(target: str) -> ModuleType:
    """Import a dotted module, or a file when the target looks like a path; errors say what is wrong and where."""
    is_path = target.endswith(".py") or "/" in target or "\\" in target
    if is_path and "/" not in target and target.count(".") > 1 and not Path(target).exists():
        dotted = target.removesuffix(".py")
        _refuse(
            target,
            "it mixes a dotted module with a file name",
            f"write {dotted} or {dotted.replace('.', '/')}.py",
        )
    try:
        return _import_file(Path(target)) if is_path else importlib.import_module(target)
    except HorsiesError:
        raise
    except ModuleNotFoundError as error:
        if (
            not is_path
            and error.name is not None
            and (target == error.name or target.startswith(f"{error.name}."))
        ):
            raise ConfigurationError(
                f"there is no module {target!r}",
                code=ErrorCode.CLI_INVALID_ARGS,
                notes=[f"looked in {Path.cwd()} and the rest of sys.path"],
                help_text="run the command in the folder that holds it, or correct the name",
            ) from error
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:  # any line of the user's module may raise anything
        raise _broken(target, error) from error


def _import_file(path: Path) -> ModuleType:
    file = path.resolve()
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if known is not None and Path(known) == file and module.__name__ != "__main__":
            return module
    if not file.is_file():
        raise ConfigurationError(
            f"there is no file {str(path)!r}",
            code=ErrorCode.CLI_INVALID_ARGS,
            notes=[f"looked for {file}"],
            help_text="correct the path; it is relative to the folder that the command runs in",
        )
    _make_importable(file.parent)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        _refuse(str(path), "it is not a Python file", "give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return module


def _pick(module: ModuleType, attribute: str, locator: str) -> TaskRegistry:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, TaskRegistry)}
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, TaskRegistry):
            what = (
                f"{attribute!r} is {type(found).__name__}"
                if hasattr(module, attribute)
                else f"it has no {attribute!r}"
            )
            hint = f"use one of: {', '.join(apps)}" if apps else "define one: app = Horsies()"
            _refuse(locator, f"{what}, and a Horsies app is needed", hint)
        return found
    if len({id(app) for app in apps.values()}) != 1:
        names = ", ".join(f"{locator}:{name}" for name in apps)
        _refuse(
            locator,
            f"the module has {len(apps) or 'no'} apps",
            f"use one of: {names}" if apps else "define one: app = Horsies()",
        )
    return next(iter(apps.values()))


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _refuse(locator: str, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(
        f"the locator {locator!r} leads to no app: {problem}",
        code=ErrorCode.WORKER_INVALID_LOCATOR,
        help_text=remedy,
    )


def _broken(target: str, error: BaseException) -> HorsiesError:
    """A module of the user's that raised: say what and where, without the whole traceback."""
    where = None
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        where = SourceLocation(error.filename, error.lineno)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if where is None and frame.lineno is not None and not _is_library(frame.filename):
            where = SourceLocation(frame.filename, frame.lineno)
    return ConfigurationError(
        f"importing {target!r} failed with {type(error).__name__}: {error}",
        code=ErrorCode.MODULE_EXEC_ERROR,
        location=where,
        help_text="correct that line, or see the whole traceback with --loglevel DEBUG",
    )


def _is_library(file: str) -> bool:
    """Whether a frame is in code that the user did not write: the interpreter's, an installed package's or ours."""
    paths = sysconfig.get_paths()
    folders = (paths["stdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parent))
    return file.startswith(("<frozen", *folders))
