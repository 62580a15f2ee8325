"""`horsies pause`, `resume`, `retry`, `signal`, `cancel` and `purge`: actions of an operator, each of which is recorded."""

from __future__ import annotations

import sys
from datetime import timedelta
from uuid import UUID

import click

from horsies import cancellation
from horsies.cancellation import Cancellation
from horsies.cli.inspect import no_such_task
from horsies.cli.options import (
    Database,
    actor,
    as_json_option,
    database_options,
    duration,
    filter_options,
    subject_argument,
)
from horsies.cli.output import print_json, progress
from horsies.codec import ArgumentError, decode_json
from horsies.db.connection import Connection
from horsies.db.queries import operations, retention, steps
from horsies.db.queries.operations import ALL_QUEUES, Selection
from horsies.db.queries.retention import Old
from horsies.errors import ErrorCode, HorsiesError, is_storable_text
from horsies.handle import MAX_SIGNAL_NAME
from horsies.keys import key_text
from horsies.units import counted

_queue_option = click.option("--queue", metavar="QUEUE", help="Only this queue.")


_key_option = click.option("--key", metavar="KEY", help="Only this key.")


@click.command()
@_queue_option
@_key_option
@database_options
def pause(queue: str | None, key: str | None, database: Database) -> None:
    """Pause all queues, or one queue or key: none of its tasks is claimed; running tasks continue.

    It stays paused until `horsies resume`, also across restarts.
    """
    _refuse_both(queue, key)
    if key is not None:
        is_new = database.ask(lambda connection: operations.pause_key(connection, key, actor()))
        click.echo(f"key {key}: {'paused' if is_new else 'paused already'}")
        return
    is_new = database.ask(lambda connection: operations.suspend(connection, queue or ALL_QUEUES, actor()))
    click.echo(f"{_named(queue)}: {'paused' if is_new else 'paused already'}")


@click.command()
@_queue_option
@_key_option
@database_options
def resume(queue: str | None, key: str | None, database: Database) -> None:
    """Resume paused queues, or a paused key: workers claim from them again."""
    _refuse_both(queue, key)
    if key is not None:
        was_paused = database.ask(lambda connection: operations.resume_key(connection, key, actor()))
        click.echo(f"key {key}: {'resumed' if was_paused else 'not paused'}")
        return

    async def work(connection: Connection) -> tuple[bool, list[str]]:
        resumed = await operations.resume(connection, queue or ALL_QUEUES, actor())
        return resumed, await operations.suspensions(connection)

    was_paused, left = database.ask(work)
    click.echo(f"{_named(queue)}: {'resumed' if was_paused else 'not paused'}")
    if left:
        names = ", ".join("all queues" if name == ALL_QUEUES else name for name in left)
        click.echo(f"still paused: {names}")


def _refuse_both(queue: str | None, key: str | None) -> None:
    """Refuse a queue together with a key, and a text that cannot be a key."""
    if queue is not None and key is not None:
        raise click.UsageError("give --queue or --key, not both: a key is the same in all queues")
    if key is not None:
        try:
            key_text(key)
        except ValueError as error:
            raise click.UsageError(f"--key {error}") from error


def _named(queue: str | None) -> str:
    return "all queues" if queue is None else f"queue {queue}"


@click.command()
@click.option("--all", "everything", is_flag=True, help="Retry every failed task that matches the filters.")
@filter_options
@click.option(
    "--from-step",
    metavar="NAME",
    help="Forget this stored step of each task, and all later ones: they are carried out again.",
)
@click.option("--dry-run", is_flag=True, help="Only print how many tasks match.")
@subject_argument("task_ids", "TASK_ID...", ids=True, required=False)
def retry(
    task_ids: list[UUID],
    everything: bool,
    from_step: str | None,
    dry_run: bool,
    database: Database,
    **filters: str | None,
) -> None:
    """Retry failed tasks: the same tasks run again, with a fresh retry budget.

    Steps that have ended are not carried out again, unless --from-step forgets them.
    """
    if bool(task_ids) == everything:
        raise click.UsageError("give TASK_ID..., or --all, with --queue, --name or --code if needed")
    if from_step is not None and everything:
        raise click.UsageError("--from-step forgets steps of the tasks that you name: give TASK_ID...")
    which = Selection(task_ids or None)._replace(**filters)
    found = database.ask(lambda connection: operations.count(connection, "failed", which))
    if dry_run:
        click.echo(f"{counted(found, 'failed task')} would be retried")
        return

    async def work(connection: Connection) -> tuple[int, int]:
        for task_id in task_ids if from_step is not None else ():
            await _forget_from(connection, task_id, from_step or "")
        done, twins = 0, await operations.count(connection, "twins", which)
        try:
            with progress(found, "retry") as advance:
                while batch := await operations.requeue(connection, which):
                    done += batch
                    advance(batch)
        finally:
            if done:
                await operations.note(connection, actor(), "requeue", str(which), done)
        return done, twins

    done, twins = database.ask(work)
    click.echo(f"{done:,} of {counted(found, 'failed task')} {'is' if done == 1 else 'are'} PENDING again")
    if twins:
        were = "was" if twins == 1 else "were"
        click.echo(
            f"{counted(twins, 'task')} {were} not retried: a live task has the same id; see `horsies doctor`"
        )
    if done + twins < found:
        click.echo(
            "the others were skipped: a live task has their unique key, or another process changed them"
        )
    if task_ids and not found:
        click.echo("none of these tasks has failed", err=True)
        sys.exit(1)


async def _forget_from(connection: Connection, task_id: UUID, name: str) -> None:
    """Forget a step of a failed task and all later ones; raise if it has no such step."""
    forgotten = await steps.forget(connection, task_id, name)
    if forgotten:
        await operations.note(connection, actor(), "forget steps", f"{task_id} from {name!r}", 1)
        click.echo(f"{task_id}: forgot {counted(len(forgotten), 'step')}: {', '.join(forgotten)}")
        return
    known = [step.name for step in await steps.steps(connection, task_id)]
    raise HorsiesError(
        f"task {task_id} has not failed, or has no stored step {name!r}",
        code=ErrorCode.TASK_NOT_FOUND,
        help_text=f"its steps: {', '.join(known) or 'none'}; see `horsies show {task_id}`",
    )


def _id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise click.UsageError(f"{word!r} is not a task id; see `horsies tasks`") from None


@click.command()
@subject_argument("words", "TASK_ID NAME [JSON]...")
def signal(words: list[str], database: Database) -> None:
    """Give a task the signal that it waits for, with a JSON value or null; one that comes early is kept."""
    if not 2 <= len(words) <= 3:
        raise click.UsageError(f"give TASK_ID NAME [JSON], not {counted(len(words), 'word')}")
    task_id, name, value = _id(words[0]), words[1], words[2] if len(words) > 2 else "null"
    try:
        decode_json(value)
    except ArgumentError as error:
        raise click.UsageError(
            f"the value {value!r} is {error}; a text needs quotes of its own: '\"yes\"'"
        ) from None
    if not is_storable_text(name, MAX_SIGNAL_NAME):
        raise click.UsageError(f"the name {name!r} needs 1 to {MAX_SIGNAL_NAME} characters without NUL")
    taken = database.ask(lambda connection: steps.signal(connection, task_id, name, value))
    if taken is None:
        raise no_such_task(task_id)
    if not taken:
        click.echo(
            f"{task_id}: not signalled: it has ended, has had the signal {name!r}, or has waited for it too long",
            err=True,
        )
        sys.exit(1)
    click.echo(f"{task_id}: signalled {name!r}")


@click.command()
@as_json_option
@subject_argument("task_ids", "TASK_ID...", ids=True)
def cancel(task_ids: list[UUID], as_json: bool, database: Database) -> None:
    """Cancel tasks: at once if they have not started, else by asking them to stop."""
    found = database.ask(lambda connection: cancellation.cancel(connection, task_ids, actor=actor()))
    if as_json:
        print_json({"tasks": [each._asdict() for each in found]})
    else:
        for each in found:
            click.echo(f"{each.task_id}: {_outcome(each)}")
    known = {each.task_id for each in found}
    for task_id in task_ids:
        if str(task_id) not in known:
            raise no_such_task(task_id)


def _outcome(done: Cancellation) -> str:
    if not done.cancelled and done.status in ("PENDING", "CLAIMED", "RUNNING"):
        return "not cancelled: a finished task has the same id; see `horsies doctor`"
    if not done.cancelled:
        return f"{done.status} already"
    return "asked to stop" if done.status == "RUNNING" else "cancelled"


@click.command()
@click.option(
    "--status",
    type=click.Choice(("COMPLETED", "FAILED", "CANCELLED", "EXPIRED"), case_sensitive=False),
    help="Only tasks with this status.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    required=True,
    callback=duration,
    help="Only tasks that ended longer ago than this: 30s, 15m, 12h or 7d.",
)
@filter_options
@click.option("--dry-run", is_flag=True, help="Only print how many tasks match.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@database_options
def purge(
    status: str | None,
    older_than: timedelta,
    dry_run: bool,
    yes: bool,
    database: Database,
    **filters: str | None,
) -> None:
    """Delete the records of finished tasks, with their results and attempts."""

    async def look(connection: Connection) -> tuple[Old, int]:
        row = await (await connection.execute("SELECT now()")).fetchone()
        assert row is not None
        which = Old(row[0] - older_than, others=(), status=status, **filters)
        return which, await retention.count(connection, which)

    which, found = database.ask(look)
    if dry_run:
        click.echo(f"{counted(found, 'finished task')} would be deleted")
        return
    if found and not yes:
        click.confirm(f"Delete {counted(found, 'finished task')}?", abort=True)

    async def work(connection: Connection) -> int:
        done = 0
        try:
            with progress(found, "purge") as advance:
                async for batch in retention.delete(connection, which, operations.BATCH):
                    done += batch
                    advance(batch)
        finally:
            if done:
                chosen = Selection(status=status)._replace(**filters)
                also = "" if chosen.is_empty else f" and {chosen}"
                subject = f"ended before {which.before.isoformat()}{also}"
                await operations.note(connection, actor(), "purge", subject, done)
        return done

    click.echo(f"{counted(database.ask(work), 'finished task')} deleted")
