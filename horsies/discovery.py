"""Find an app by its locator and import the modules its tasks are defined in.

A locator is `package.module:attribute` or `path/to/file.py:attribute`; the attribute may be left out when the module
has one app. Sends are suppressed while task modules are imported, and allowed again even when an import fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from horsies.client import Broker
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, SourceLocation, mask_passwords
from horsies.registry import TaskRegistry

# How many of the user's lines are named beside the one that failed.
MAX_NOTES = 8


def load_app(locator: str, imports: Sequence[str] = ()) -> TaskRegistry:
    """Return the app that a locator names, after importing its task modules and those in `imports`.

    >>> load_app("myapp.instance:app").list_tasks()
    """
    target, _, attribute = locator.partition(":")
    if not target:
        _raise_invalid(locator, "it names no module", "write it as package.module:app or path/to/file.py:app")
    add_to_path(Path.cwd())
    with sends_suppressed_while_loading():
        app = _find_app(import_module(target), attribute, locator)
        import_modules(app, [*app.task_modules, *imports])
    return app


@contextmanager
def sends_suppressed_while_loading() -> Generator[None]:
    """Suppress the sends of every app: the app is not known before its module is imported."""
    before, Broker.app_is_loading = Broker.app_is_loading, True
    try:
        yield
    finally:
        Broker.app_is_loading = before


def refuse_while_loading() -> None:
    """Refuse to start a worker while the app is imported: every child would start a worker of its own."""
    if Broker.app_is_loading:
        raise ConfigurationError(
            "a worker or scheduler is started while the app is imported",
            code=ErrorCode.CONFIG_INVALID_WORKER,
            help_text='start it under `if __name__ == "__main__":`, or in a module of its own',
        )


def locate(app: TaskRegistry) -> str | None:
    """Return a locator by which another process can load this app; None if no module holds it."""
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
    """Suppress the sends of an app, and restore the previous state even if the body raises."""
    before = app.are_sends_suppressed()
    app.suppress_sends(True)
    try:
        yield
    finally:
        app.suppress_sends(before)


def import_module(target: str) -> ModuleType:
    """Import a dotted module, or a file if the target looks like a path; an error names the line that failed."""
    is_path = target.endswith(".py") or "/" in target or "\\" in target
    if is_path and "/" not in target and target.count(".") > 1 and not Path(target).exists():
        dotted = target.removesuffix(".py")
        _raise_invalid(
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
        raise _import_error(target, error) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise _import_error(target, error) from error


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
    add_to_path(file.parent)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        _raise_invalid(str(path), "it is not a Python file", "give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return module


def _find_app(module: ModuleType, attribute: str, locator: str) -> TaskRegistry:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, TaskRegistry)}
    names = list(apps) if attribute else [f"{locator}:{name}" for name in apps]
    remedy = f"use one of: {', '.join(names)}" if apps else "define one: app = Horsies()"
    if not attribute:
        if len({id(app) for app in apps.values()}) != 1:
            _raise_invalid(locator, f"the module has {len(apps) or 'no'} apps", remedy)
        return next(iter(apps.values()))
    found = getattr(module, attribute, None)
    if not isinstance(found, TaskRegistry):
        exists = hasattr(module, attribute)
        what = f"{attribute!r} is {type(found).__name__}" if exists else f"it has no {attribute!r}"
        _raise_invalid(locator, f"{what}, and a Horsies app is needed", remedy)
    return found


def add_to_path(folder: Path) -> None:
    """Let the modules of a folder be imported."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _raise_invalid(locator: str, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(
        f"the locator {locator!r} leads to no app: {problem}",
        code=ErrorCode.WORKER_INVALID_LOCATOR,
        help_text=remedy,
    )


def _import_error(target: str, error: BaseException) -> HorsiesError:
    """Return the error for a module that failed to import, with the lines of the user's code that led to it."""
    lines = _users_lines(target, error)
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        lines.append(SourceLocation(error.filename, error.lineno))
    return ConfigurationError(
        f"importing {target!r} failed with {type(error).__name__}: {error}",
        code=ErrorCode.MODULE_EXEC_ERROR,
        location=lines[-1] if lines else None,
        notes=[f"reached from {_quoted(line)}" for line in reversed(lines[-1 - MAX_NOTES : -1])],
        help_text="correct that line, or see the whole traceback with --loglevel DEBUG",
    )


def _users_lines(target: str, error: BaseException) -> list[SourceLocation]:
    """Return the lines of the user's own code in a traceback, outermost first; if it has none, the innermost of a library.

    The target is the user's own even where it is installed among libraries, as in an image made by `pip install .`
    """
    paths = sysconfig.get_paths()
    libraries = [Path(paths["purelib"]), Path(paths["platlib"])]
    package = target.partition(".")[0]
    own: list[SourceLocation] = []
    others: list[SourceLocation] = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        line = SourceLocation(str(file), number)
        is_installed = any(file.is_relative_to(folder) for folder in libraries)
        is_standard = file.is_relative_to(paths["stdlib"]) and not is_installed
        if str(file).startswith("<") or is_standard or file.is_relative_to(Path(__file__).parent):
            continue
        if is_installed and str(frame.f_globals.get("__name__")).partition(".")[0] != package:
            others.append(line)
        else:
            own.append(line)
    return own or others[-1:]


def _quoted(line: SourceLocation) -> str:
    source = mask_passwords(linecache.getline(line.file, line.line).strip())
    return f"{line.file}:{line.line}: {source}" if source else f"{line.file}:{line.line}"
