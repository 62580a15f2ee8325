"""`horsies events`: print what happened and follow what happens, as lines for people or as JSON for programs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import random
from uuid import UUID

import click
import msgspec

from horsies.cli.options import Database, Redaction, database_options, duration, redact_option
from horsies.cli.output import printable
from horsies.config import PostgresConfig
from horsies.db.connection import TRANSIENT, Connection, connect, explain_connection_error
from horsies.db.ids import not_before
from horsies.db.queries import events as stored
from horsies.db.queries.events import EventFilter
from horsies.errors import use_color
from horsies.events import KINDS, Event
from horsies.retry import backoff
from horsies.units import time_text

# How far back to start without --follow and --since.
RECENT = timedelta(minutes=5)
# Poll at most once a second, and spend at most a tenth of the time on polling.
PAUSE_SECONDS, SHARE = 1.0, 10
# How often to store the position while there are no events.
KEEP_SECONDS = 60.0
_COLORS = {"completed": "green", "failed": "red", "timeout": "red", "crashed": "red", "retry": "yellow"}


@click.command()
@click.option("--follow", is_flag=True, help="Keep printing new events until you press Ctrl-C.")
@click.option(
    "--since", metavar="DURATION", callback=duration, help="Start this long ago: 30s, 15m, 12h or 7d."
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    metavar="KIND",
    multiple=True,
    help=f"Only events of this kind: {', '.join(KINDS)}. Repeatable.",
)
@click.option("--queue", metavar="QUEUE", help="Only tasks of this queue.")
@click.option("--name", metavar="NAME", help="Only this task, workflow or schedule.")
@click.option("--key", metavar="KEY", help="Only tasks of this key.")
@click.option("--task", type=click.UUID, metavar="TASK_ID", help="Only the task with this id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--sink", metavar="NAME", help="Store the position under this name, and continue from it next time."
)
@redact_option
@database_options
def events(
    follow: bool,
    since: timedelta | None,
    kinds: tuple[str, ...],
    queue: str | None,
    name: str | None,
    key: str | None,
    task: UUID | None,
    as_json: bool,
    sink: str | None,
    redact: tuple[str, ...],
    database: Database,
) -> None:
    """Print events: queued, processing, completed, failed, retry and so on."""
    wanted = EventFilter(list(kinds) or None, queue, name, task, key)

    async def start(connection: Connection) -> datetime:
        now = await stored.horizon(connection)
        position = None if sink is None else await stored.position(connection, sink)
        if position is not None:
            return position
        if since is None and task is not None:
            return not_before([task])
        return now - (since if since is not None else timedelta(0) if follow else RECENT)

    redaction = Redaction(database.registry, redact)
    reader = _Reader(database.ask(start), wanted, redaction, follow, as_json, sink)
    try:
        asyncio.run(_read(reader, database.postgres))
    except KeyboardInterrupt:
        return


async def _read(reader: _Reader, postgres: PostgresConfig) -> None:
    """Print events until there are no more; with --follow, reconnect whenever the database goes away."""
    attempt = 0
    while True:
        try:
            async with await connect(postgres, session=True, name="horsies-events") as connection:
                if attempt:
                    click.echo(f"the database is back; going on from {time_text(reader.position)}", err=True)
                attempt = 0
                return await reader.read(connection)
        except BrokenPipeError:
            raise  # of standard output, not of the database
        except TRANSIENT as error:
            explained = explain_connection_error(error, postgres)
            if not reader.follow:
                raise explained from error
            if not attempt:
                click.echo(f"{explained.message}; waiting for it", err=True)
        await asyncio.sleep(backoff(attempt, 500, 5_000, random()))
        attempt += 1


@dataclass
class _Reader:
    """Prints the events after a position, and remembers the position across connections."""

    position: datetime
    wanted: EventFilter
    redaction: Redaction
    follow: bool
    as_json: bool
    sink: str | None
    stored_at: float = 0.0

    async def read(self, connection: Connection) -> None:
        while True:
            began = time.monotonic()
            until = await stored.horizon(connection)
            if until > self.position:
                async for page in stored.read(connection, self.wanted, self.position, until):
                    for event in await self.redaction.events(connection, page.events):
                        self._print(event)
                    self.position = page.until
                    await self._store_position(connection, bool(page.events))
            if not self.follow:
                return
            took = time.monotonic() - began
            await asyncio.sleep(max(PAUSE_SECONDS, SHARE * took))

    async def _store_position(self, connection: Connection, has_events: bool) -> None:
        """Store the position once its events are printed: a reader that dies before prints them again."""
        is_due = has_events or time.monotonic() - self.stored_at > KEEP_SECONDS
        if self.sink is not None and is_due:
            await stored.save_position(connection, self.sink, self.position)
            self.stored_at = time.monotonic()

    def _print(self, event: Event) -> None:
        if self.as_json:
            click.echo(msgspec.json.encode({"id": event.id, **event.facts()}))
            return
        color = use_color(os.environ, sys.stdout.isatty())
        click.echo(_line(event, color), color=color)


def _line(event: Event, color: bool) -> str:
    """Return an event as a line: the time, the kind, the task or workflow, and the error."""
    kind = f"{event.kind:<{max(map(len, KINDS))}}"
    name = event.task_name or event.workflow_name or event.schedule_name or ""
    queue = "" if event.queue_name is None else f"[{event.queue_name}]"
    number = "" if event.attempt in (None, 1) else f"attempt {event.attempt}"
    why = ": ".join(part for part in (event.error_code, (event.message or "").partition("\n")[0]) if part)
    again = "tried again" if event.will_retry else ""
    subject = event.task_id or event.workflow_id or ""
    rest = "  ".join(part for part in (subject, name, queue, number, why, again) if part)
    shade = _COLORS.get(event.kind.rpartition(".")[2]) if color else None
    return f"{time_text(event.at)}  {click.style(kind, fg=shade) if shade else kind}  {printable(rest)}"
