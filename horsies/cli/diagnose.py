"""`horsies check`, `doctor`, `health` and `explain`: find mistakes and problems, and explain error codes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib.resources import files
from typing import NamedTuple

import click
import msgspec

from horsies.cli.options import (
    Database,
    app_argument,
    as_json_option,
    database_options,
    load,
    log_level,
)
from horsies.cli.output import print_json, print_table, printable, raise_all
from horsies.db.queries.doctor import TITLES, Finding, Thresholds, examine
from horsies.db.queries.workers import host_health, on_host
from horsies.registry import AnyTask
from horsies.units import counted


@click.command()
@app_argument
@click.option("--live", is_flag=True, help="Connect to the database too.")
@log_level("WARNING")
def check(locator: str, live: bool, loglevel: str) -> None:
    """Check the app and list its tasks; exit 1 if there are errors."""
    app = load(locator, loglevel)
    raise_all(app.check(live=live))
    default_ms = app.config.default_task_timeout_ms
    tasks = [app.tasks[name] for name in app.list_tasks()]
    print_table([_task_row(task, default_ms) for task in tasks])
    click.echo(f"{counted(len(tasks), 'task')}, nothing wrong")


def _task_row(task: AnyTask, default_timeout_ms: int | None) -> dict[str, str]:
    definition = task.definition
    limit_ms = definition.timeout_ms or default_timeout_ms
    return {
        "task": definition.name,
        "queue": definition.queue.name,
        "kind": "async" if definition.is_async else "def",
        "retries": str(definition.max_retries),
        "timeout": "none" if limit_ms is None else f"{limit_ms:,} ms",
    }


@click.command()
@as_json_option
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0, 86_400),
    default=Thresholds().grace_seconds,
    show_default=True,
    help="Allow this long for the tasks of a dead worker to be rescued.",
)
@database_options
def doctor(as_json: bool, strict: bool, grace_seconds: float, database: Database) -> None:
    """Check the invariants of tasks and workers, and the health of the database.

    Only reads. Exits 1 if an invariant is violated; a warning does not change the exit code.
    """
    thresholds = Thresholds(grace_seconds=grace_seconds)
    found = database.ask(lambda connection: examine(connection, thresholds))
    findings = [finding for finding in found.values() if finding is not None]
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings], "checks": list(found)})
    else:
        _print_findings(found)
        click.echo(_summary(len(found), findings))
    if (strict and findings) or any(finding.level == "violation" for finding in findings):
        sys.exit(1)


def _print_findings(found: Mapping[str, Finding | None]) -> None:
    """Print a line for each check with its title and its name, and below it what was found, and the remedy."""
    width, width_of_titles = max(map(len, found)), max(len(TITLES[name]) for name in found)
    for name, finding in found.items():
        result = "ok" if finding is None else finding.level
        click.echo(f"{TITLES[name]:<{width_of_titles}}   {name:<{width}}   {result}")
        if finding is not None:
            example = f": {finding.examples[0]}" if finding.examples else ""
            click.echo(f"  {printable(finding.message + example)}")
            click.echo(f"  remedy: {printable(finding.remedy)}")


def _summary(checks: int, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"{counted(checks, 'check')}, nothing wrong"
    violations = sum(finding.level == "violation" for finding in findings)
    numbers = {"violation": violations, "warning": len(findings) - violations}
    counts = " and ".join(counted(number, level) for level, number in numbers.items() if number)
    return f"{counted(checks, 'check')}: {counts}"


@click.command()
@click.option("--host", metavar="HOST", help="Check the workers of this host.  [default: this one]")
@as_json_option
@database_options
def health(host: str | None, as_json: bool, database: Database) -> None:
    """Check the workers on this host: exit 0 if one claims tasks and sends heartbeats, else 1 with the reason."""
    name = host or socket.gethostname()
    workers = database.ask(lambda connection: on_host(connection, name))
    verdict = host_health(workers, name)
    if as_json:
        print_json({**verdict._asdict(), "host": name, "workers": [worker._asdict() for worker in workers]})
    else:
        click.echo(verdict.reason, err=not verdict.ok)
    sys.exit(0 if verdict.ok else 1)


class Explanation(NamedTuple):
    """The meaning of an error code, its cause and its remedy. The meaning of an HRS code is its name."""

    meaning: str
    cause: str
    remedy: str


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain an error code, such as HRS-206 or TASK_TIMEOUT: its meaning, its cause and its remedy."""
    text = files("horsies.cli").joinpath("explanations.json").read_bytes()
    known = msgspec.json.decode(text, type=dict[str, Explanation])
    wanted = code.strip().upper().replace("-", "_")
    # A number is known with and without its prefix, and by its name.
    keys = {each: {each.replace("-", "_"), each.removeprefix("HRS-")} for each in known}
    for each, explanation in known.items():
        if each.startswith("HRS-"):
            keys[each].add(explanation.meaning)
    found = [each for each, names in keys.items() if wanted in names]
    if not found:
        raise click.UsageError(_no_such_code(code, {name: each for each in keys for name in keys[each]}))
    for each in found:
        meaning, cause, remedy = known[each]
        click.echo(f"{each}: {meaning}\n  cause:  {cause}\n  remedy: {remedy}")


def _no_such_code(code: str, names: Mapping[str, str]) -> str:
    close = get_close_matches(code.strip().upper().replace("-", "_"), names, 1)
    hint = f"did you mean {names[close[0]]}?" if close else "codes look like HRS-206 or TASK_TIMEOUT."
    return f"horsies has no error code {code!r}; {hint} Codes of your own tasks are explained by your code."
