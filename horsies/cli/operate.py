"""`horsies suspend`, `resume`, `requeue`, `cancel` and `purge`: acts of an operator, each on record."""

from __future__ import annotations

import sys
from datetime import timedelta
from uuid import UUID

import click

from horsies.cli.database import actor, ask
from horsies.cli.inspect import as_json_option, filter_options, no_such_task
from horsies.cli.options import database_options, named_database
from horsies.cli.progress import progress
from horsies.cli.tables import print_json
from horsies.config import PostgresConfig
from horsies.spans import seconds_of
from horsies.storage import cancelling, operations, retention
from horsies.storage.cancelling import Cancellation
from horsies.storage.database import Connection
from horsies.storage.operations import ALL_QUEUES, Failed
from horsies.storage.retention import Old

_queue_option = click.option("--queue", metavar="QUEUE", help="This queue only.")


@click.command()
@_queue_option
@database_options
def suspend(queue: str | None, app: str | None, database_url: PostgresConfig | None) -> None:
    """Stop claiming, everywhere or from one queue; what runs goes on.

    It lasts until `horsies resume`, through restarts.
    """
    is_new = ask(
        named_database(app, database_url),
        lambda connection: operations.suspend(connection, queue or ALL_QUEUES, actor()),
    )
    click.echo(f"{_named(queue)}: {'suspended' if is_new else 'suspended already'}")


@click.command()
@_queue_option
@database_options
def resume(queue: str | None, app: str | None, database_url: PostgresConfig | None) -> None:
    """Let workers claim again."""

    async def work(connection: Connection) -> tuple[bool, list[str]]:
        resumed = await operations.resume(connection, queue or ALL_QUEUES, actor())
        return resumed, await operations.suspensions(connection)

    was_suspended, left = ask(named_database(app, database_url), work)
    click.echo(f"{_named(queue)}: {'resumed' if was_suspended else 'not suspended'}")
    if left:
        names = ", ".join("all queues" if name == ALL_QUEUES else name for name in left)
        click.echo(f"still suspended: {names}")


def _named(queue: str | None) -> str:
    return "all queues" if queue is None else f"queue {queue}"


@click.command()
@click.argument("task_ids", nargs=-1, type=click.UUID, metavar="[TASK_ID]...")
@click.option(
    "--all", "everything", is_flag=True, help="Every failed task, as far as the filters let it through."
)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@database_options
def requeue(
    task_ids: tuple[UUID, ...],
    everything: bool,
    name: str | None,
    queue: str | None,
    code: str | None,
    dry_run: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """Send failed tasks through once more: the same tasks, with a fresh retry budget."""
    if bool(task_ids) == everything:
        raise click.UsageError("say which: TASK_ID..., or --all, perhaps with --queue, --name or --code")
    which = Failed(list(task_ids) if task_ids else None, queue, name, code)
    postgres = named_database(app, database_url)
    found = ask(postgres, lambda connection: operations.count_failed(connection, which))
    if dry_run:
        click.echo(f"{found:,} failed tasks would be sent through once more")
        return

    async def work(connection: Connection) -> int:
        done = 0
        try:
            with progress(found, "requeue") as advance:
                while batch := await operations.requeue(connection, which):
                    done += batch
                    advance(batch)
        finally:
            if done:
                await operations.note(connection, actor(), "requeue", str(which), done)
        return done

    done = ask(postgres, work)
    click.echo(f"{done:,} of {found:,} failed tasks are PENDING again")
    if done < found:
        click.echo("the others were passed over: a live task has their unique key, or somebody else had them")
    if task_ids and not found:
        click.echo("none of these tasks has failed", err=True)
        sys.exit(1)


@click.command()
@click.argument("task_ids", nargs=-1, required=True, type=click.UUID, metavar="TASK_ID...")
@as_json_option
@database_options
def cancel(
    task_ids: tuple[UUID, ...], as_json: bool, app: str | None, database_url: PostgresConfig | None
) -> None:
    """Cancel tasks: at once if they have not begun, else they are asked to stop."""
    found = ask(
        named_database(app, database_url),
        lambda connection: cancelling.cancel(connection, task_ids, actor=actor()),
    )
    if as_json:
        print_json({"tasks": [each._asdict() for each in found]})
    for each in () if as_json else found:
        click.echo(f"{each.task_id}: {_became(each)}")
    known = {each.task_id for each in found}
    for task_id in task_ids:
        if str(task_id) not in known:
            raise no_such_task(task_id)


def _became(done: Cancellation) -> str:
    if not done.cancelled:
        return f"{done.status} already"
    return "asked to stop" if done.status == "RUNNING" else "cancelled"


def _duration(_context: click.Context, _param: click.Parameter, value: str) -> timedelta:
    try:
        return timedelta(seconds=seconds_of(value))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "--status",
    type=click.Choice(("COMPLETED", "FAILED", "CANCELLED", "EXPIRED"), case_sensitive=False),
    help="Only those that ended so.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    required=True,
    callback=_duration,
    help="Those that ended longer ago than 30s, 15m, 12h or 7d.",
)
@click.option("--name", metavar="NAME", help="Only this task.")
@_queue_option
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_options
def purge(
    status: str | None,
    older_than: timedelta,
    name: str | None,
    queue: str | None,
    dry_run: bool,
    yes: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """Delete the records of finished tasks, with their results and attempts."""
    postgres = named_database(app, database_url)

    async def look(connection: Connection) -> tuple[Old, int]:
        row = await (await connection.execute("SELECT now()")).fetchone()
        assert row is not None
        which = Old(row[0] - older_than, queue=queue, status=status, name=name)
        return which, await retention.count(connection, which)

    which, found = ask(postgres, look)
    if dry_run:
        click.echo(f"{found:,} finished tasks would be deleted")
        return
    if found and not yes:
        click.confirm(f"Delete {found:,} finished tasks?", abort=True)

    async def work(connection: Connection) -> int:
        done = 0
        try:
            with progress(found, "purge") as advance:
                async for batch in retention.delete(connection, which, operations.BATCH):
                    done += batch
                    advance(batch)
        finally:
            if done:
                subject = (
                    f"ended before {which.before.isoformat()}, status {status}, queue {queue}, name {name}"
                )
                await operations.note(connection, actor(), "purge", subject, done)
        return done

    click.echo(f"{ask(postgres, work):,} finished tasks deleted")
