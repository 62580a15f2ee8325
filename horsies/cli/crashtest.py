"""`horsies crashtest`: kill a durable function at every step, on a database of its own, and compare what it leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from horsies.codec import ArgumentError, decode_json
from horsies.discovery import add_to_path, import_module, import_modules, sends_suppressed_while_loading
from horsies.errors import ConfigurationError, ErrorCode
from horsies.registry import AnyTask
from horsies.task import BaseTask
from horsies.testing.crashes import CrashTestFailed, crashes
from horsies.testing.databases import bound, fresh_database
from horsies.units import counted


def _function(context: click.Context, param: click.Parameter, locator: str | None) -> object:
    """Return the function that package.module:function or path/to/file.py:function names."""
    if locator is None:
        return None
    target, _, attribute = locator.partition(":")
    if not target or not attribute:
        raise click.BadParameter(f"{locator!r} is not of the form package.module:function", context, param)
    add_to_path(Path.cwd())
    with sends_suppressed_while_loading():
        found: Any = getattr(import_module(target), attribute, None)
    if not callable(found) and not isinstance(found, BaseTask):
        problem = f"{locator!r} leads to no function: {target} has no function {attribute!r}"
        raise click.BadParameter(problem, context, param)
    return cast("object", found)


def _signals(
    context: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> list[tuple[str, object]]:
    signals: list[tuple[str, object]] = []
    for each in given:
        name, equals, text = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{each!r} is not of the form NAME=JSON", context, param)
        signals.append((name, _decoded(context, param, text)))
    return signals


def _arguments(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[object]:
    return [_decoded(context, param, text) for text in given]


def _decoded(context: click.Context, param: click.Parameter, text: str) -> object:
    try:
        return decode_json(text)
    except ArgumentError as error:
        problem = f"{text!r} is not JSON: {error}; a text needs quotes of its own: '\"…\"'"
        raise click.BadParameter(problem, context, param) from error


@click.command()
@click.argument("function", callback=_function, metavar="MODULE:FUNCTION")
@click.argument("arguments", nargs=-1, callback=_arguments, metavar="[JSON...]")
@click.option(
    "--check",
    callback=_function,
    metavar="MODULE:FUNCTION",
    help="Call this function after each run, and compare what it returns. Without it, the results of the runs are compared.",
)
@click.option(
    "--setup",
    callback=_function,
    metavar="MODULE:FUNCTION",
    help="Call this function before the first run, to create tables.",
)
@click.option(
    "--signal",
    "signals",
    callback=_signals,
    multiple=True,
    metavar="NAME=JSON",
    help="Give each run this signal. Repeatable.",
)
def crashtest(
    function: Any,
    arguments: list[object],
    check: Callable[..., object] | None,
    setup: Callable[..., object] | None,
    signals: list[tuple[str, object]],
) -> None:
    """Run a durable function with JSON arguments, and kill it before and after each step; compare what the runs leave behind.

    The runs are in this process, on a new database on the server of HORSIES_TEST_DATABASE_URL or on the embedded one, which is
    dropped at the end. The functions of --check and --setup are called with its URL if they take an argument. Sleeps and timeouts
    take no time. Exits 1 and names the step if a kill repeats or loses an effect.
    """
    if not isinstance(function, BaseTask):
        raise ConfigurationError(
            f"{getattr(function, '__name__', function)!r} is no task",
            code=ErrorCode.CLI_INVALID_ARGS,
            help_text="name a function with @app.task",
        )
    task = cast("AnyTask", function)
    import_modules(task.registry, task.registry.task_modules)
    with fresh_database() as url, bound(task.registry, url):
        if setup is not None:
            _with_url(setup, url)()
        looked = None if check is None else _with_url(check, url)
        _report(task, arguments, looked, dict(signals))


def _with_url(function: Callable[..., object], url: str) -> Callable[[], object]:
    return partial(function, url) if inspect.signature(function).parameters else function


def _report(
    task: AnyTask, args: list[object], check: Callable[[], object] | None, signals: dict[str, object]
) -> None:
    """Print each point at which a kill has changed nothing; exit 1 at the first other one."""
    survived = 0
    try:
        for point in crashes(task, args, None, check, signals):
            survived += 1
            click.echo(f"ok: killed {point}")
    except CrashTestFailed as failed:
        click.echo(f"FAILED: {failed}", err=True)
        raise click.exceptions.Exit(1) from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{task.name} survives {counted(survived, 'kill')}")
