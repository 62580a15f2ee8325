"""`horsies doctor`: is everything in order, and if not, what is to be done?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from horsies.broker import resolve
from horsies.cli.options import database_options, named_database
from horsies.cli.tables import print_json, print_table
from horsies.config import AppConfig, PostgresConfig
from horsies.storage.database import TRANSIENT, connect, explain
from horsies.storage.doctor import Finding, Level, Terms, examine

Found = Mapping[str, Finding | None]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0, 86_400),
    default=Terms().grace_seconds,
    show_default=True,
    help="How long tasks may wait to be rescued from a worker that is gone.",
)
@database_options
def doctor(
    as_json: bool, strict: bool, grace_seconds: float, app: str | None, database_url: PostgresConfig | None
) -> None:
    """Check what must hold of tasks and workers, and the health of the database.

    Only reads. Exits 1 when something is violated that must hold; warnings are for you to judge.
    """
    postgres = named_database(app, database_url) or resolve(AppConfig())
    found = asyncio.run(_examine(postgres, Terms(grace_seconds=grace_seconds)))
    findings = [finding for finding in found.values() if finding is not None]
    if as_json:
        document = {"findings": [asdict(finding) for finding in findings], "checks": list(found)}
        print_json(document)
    else:
        print_table(["check", "result", "finding", "remedy"], [_row(*entry) for entry in found.items()])
        click.echo(_summary(len(found), findings))
    if (strict and findings) or any(finding.level == "violation" for finding in findings):
        sys.exit(1)


async def _examine(postgres: PostgresConfig, terms: Terms) -> Found:
    try:
        async with await connect(postgres, session=True, name="horsies-doctor") as connection:
            return await examine(connection, terms)
    except TRANSIENT as error:
        raise explain(error, postgres) from error


def _row(check: str, finding: Finding | None) -> list[str]:
    if finding is None:
        return [check, "ok", "", ""]
    example = f": {finding.examples[0]}" if finding.examples else ""
    return [check, finding.level, finding.message + example, finding.remedy]


def _summary(checks: int, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"{_counted(checks, 'check')}, nothing wrong"
    levels: tuple[Level, ...] = ("violation", "warning")
    numbers = {level: sum(finding.level == level for finding in findings) for level in levels}
    told = " and ".join(_counted(number, level) for level, number in numbers.items() if number)
    return f"{_counted(checks, 'check')}: {told}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
