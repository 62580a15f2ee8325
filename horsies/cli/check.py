"""`horsies check`: find mistakes before anything runs."""

from __future__ import annotations

import click

from horsies.cli.options import app_argument, load, locator_of, log_level
from horsies.cli.report import raise_all
from horsies.cli.tables import print_table
from horsies.registry import AnyTask


@click.command()
@app_argument
@click.option("--live", is_flag=True, help="Try out the database too.")
@log_level("WARNING")
def check(locator: str | None, module: str | None, live: bool, loglevel: str) -> None:
    """Check the app at LOCATOR and list its tasks; exit 1 when something is wrong."""
    app = load(locator_of(locator, module), loglevel)
    raise_all(app.check(live=live))
    default_ms = app.config.default_task_timeout_ms
    tasks = [app.tasks[name] for name in app.list_tasks()]
    print_table(["task", "queue", "kind", "retries", "timeout"], [_row(task, default_ms) for task in tasks])
    click.echo(f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}, nothing wrong")


def _row(task: AnyTask, default_timeout_ms: int | None) -> list[str]:
    definition = task.definition
    limit_ms = definition.timeout_ms or default_timeout_ms
    return [
        definition.name,
        definition.queue.name,
        "async" if definition.is_async else "def",
        str(definition.max_retries),
        "none" if limit_ms is None else f"{limit_ms:,} ms",
    ]
