"""`horsies events`: what happened and what happens, for people, for files, and for Elasticsearch."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from random import random
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import click
import msgspec

from horsies.broker import resolve
from horsies.cli.database import ask
from horsies.cli.options import database_options, named_database
from horsies.cli.tables import printable
from horsies.config import AppConfig, PostgresConfig
from horsies.errors import mask_passwords, use_color
from horsies.events import KINDS, Event
from horsies.retry import backoff
from horsies.spans import seconds_of
from horsies.storage import events as stored
from horsies.storage.database import TRANSIENT, Connection, connect, explain
from horsies.storage.events import Wanted
from horsies.storage.ids import not_before

if TYPE_CHECKING:
    from horsies.cli.bulk import Bulk

# Without --follow and --since, so much of the past is shown.
RECENT = timedelta(minutes=5)
# Looking takes no more than a tenth of the time, and happens once a second at most.
PAUSE_SECONDS, SHARE = 1.0, 10
# Where nothing happens, so often it is kept how far we have come.
KEEP_SECONDS = 60.0
_COLORS = {"completed": "green", "failed": "red", "timeout": "red", "crashed": "red", "retry": "yellow"}

Deliver = Callable[[list[Event]], Awaitable[None]]


class Reading(NamedTuple):
    """What is read, from where, and what becomes of it; `sink` is under which name the place is kept."""

    postgres: PostgresConfig
    wanted: Wanted
    follow: bool
    deliver: Deliver
    sink: str | None


def _duration(_context: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    try:
        return None if value is None else timedelta(seconds=seconds_of(value))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option("--follow", is_flag=True, help="Go on, until you press Ctrl-C.")
@click.option("--since", metavar="DURATION", callback=_duration, help="From 30s, 15m, 12h or 7d ago.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only events of this kind.")
@click.option("--queue", metavar="QUEUE", help="Only tasks of this queue.")
@click.option("--name", metavar="NAME", help="Only this task, workflow or schedule.")
@click.option("--task", type=click.UUID, metavar="TASK_ID", help="Only this one task.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--to", metavar="URL", help="Send them to Elasticsearch instead.")
@click.option("--index", metavar="INDEX", help="The index to send them to.")
@click.option("--sink", metavar="SINK", help="The name under which the place is kept; else URL and index.")
@database_options
def events(
    follow: bool,
    since: timedelta | None,
    kinds: tuple[str, ...],
    queue: str | None,
    name: str | None,
    task: UUID | None,
    as_json: bool,
    to: str | None,
    index: str | None,
    sink: str | None,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """What happened, and what happens: queued, processing, completed, failed, retry and so on."""
    bulk = _bulk(to, index)
    if sink and bulk is None:
        raise click.UsageError("--sink names where --to has come to: give --to and --index, too")
    postgres = named_database(app, database_url) or resolve(AppConfig())
    deliver = _printer(as_json) if bulk is None else _forwarder(bulk)
    kept = None if bulk is None else sink or bulk.name
    reading = Reading(postgres, Wanted(list(kinds) or None, queue, name, task), follow, deliver, kept)
    try:
        asyncio.run(_read_on(reading, _start(reading, since)))
    except KeyboardInterrupt:
        return


def _bulk(to: str | None, index: str | None) -> Bulk | None:
    if (to is None) != (index is None):
        raise click.UsageError("--to and --index belong together")
    if to is None or index is None:
        return None
    # an HTTP client takes 50 ms to import, which only those should pay who send something over it
    from horsies.cli.bulk import Bulk

    try:
        return Bulk(to, index, os.environ.get("HORSIES_EVENTS_API_KEY"))
    except ValueError as error:
        raise click.UsageError(f"--to is {mask_passwords(to)!r}: {error}") from error


def _start(reading: Reading, since: timedelta | None) -> datetime:
    """Where to begin: where the sink has come to, or as far back as was asked for."""

    async def look(connection: Connection) -> datetime:
        until = await stored.horizon(connection)
        kept = await stored.position(connection, reading.sink or "")
        if kept is not None:
            return kept
        if since is None and reading.wanted.task is not None:
            return not_before([reading.wanted.task])
        return until - (since if since is not None else timedelta(0) if reading.follow else RECENT)

    return ask(reading.postgres, look)


async def _read_on(reading: Reading, since: datetime) -> None:
    """Read on from a moment, over one connection after another when the database goes away."""
    place, attempt = _Place(reading, since), 0
    while True:
        try:
            async with await connect(reading.postgres, session=True, name="horsies-events") as connection:
                if attempt:
                    click.echo(f"the database is back; going on from {_clock(place.since)}", err=True)
                attempt = 0
                return await place.read_on(connection)
        except TRANSIENT as error:
            explained = explain(error, reading.postgres)
            if not reading.follow:
                raise explained from error
            if not attempt:
                click.echo(f"{explained.message}; waiting for it", err=True)
        await asyncio.sleep(backoff(attempt, 500, 5_000, random()))
        attempt += 1


class _Place:
    """How far a reader has come."""

    def __init__(self, reading: Reading, since: datetime) -> None:
        self._reading = reading
        self.since = since
        self._kept_at = 0.0

    async def read_on(self, connection: Connection) -> None:
        while True:
            began = time.monotonic()
            until = await stored.horizon(connection)
            if until > self.since:
                async for passage in stored.read(connection, self._reading.wanted, self.since, until):
                    if passage.events:
                        await self._reading.deliver(passage.events)
                    self.since = passage.until
                    await self._keep(connection, bool(passage.events))
            if not self._reading.follow:
                return
            took = time.monotonic() - began
            await asyncio.sleep(max(PAUSE_SECONDS, SHARE * took))

    async def _keep(self, connection: Connection, is_new: bool) -> None:
        if self._reading.sink is None or not (is_new or time.monotonic() - self._kept_at > KEEP_SECONDS):
            return
        await stored.move(connection, self._reading.sink, self.since)
        self._kept_at = time.monotonic()


def _printer(as_json: bool) -> Deliver:
    color = use_color(os.environ, sys.stdout.isatty())

    async def deliver(found: list[Event]) -> None:
        for event in found:
            if as_json:
                click.echo(msgspec.json.encode({"id": event.id, **event.facts()}))
            else:
                click.echo(line(event, color), color=color)

    return deliver


def _forwarder(bulk: Bulk) -> Deliver:
    async def deliver(found: list[Event]) -> None:
        left: Sequence[Event] = found
        attempt = 0
        while left:
            left, refused, said = await asyncio.to_thread(bulk.send, left)
            if refused:
                click.echo(f"{bulk.name}: {refused} events refused: {said}", err=True)
            if left:
                if not attempt:
                    click.echo(f"{bulk.name}: {said}; {len(left)} events wait", err=True)
                await asyncio.sleep(backoff(attempt, 500, 30_000, random()))
                attempt += 1
            elif attempt:
                click.echo(f"{bulk.name}: takes events again", err=True)

    return deliver


def line(event: Event, color: bool) -> str:
    """An event as a person reads it: when, what, to what, and why."""
    kind = f"{event.kind:<{max(map(len, KINDS))}}"
    name = event.task_name or event.workflow_name or event.schedule_name or ""
    queue = "" if event.queue_name is None else f"[{event.queue_name}]"
    number = "" if event.attempt in (None, 1) else f"attempt {event.attempt}"
    why = ": ".join(part for part in (event.error_code, (event.message or "").partition("\n")[0]) if part)
    again = "tried again" if event.will_retry else ""
    subject = event.task_id or event.workflow_id or ""
    rest = "  ".join(part for part in (subject, name, queue, number, why, again) if part)
    shade = _COLORS.get(event.kind.rpartition(".")[2]) if color else None
    return f"{_clock(event.at)}  {click.style(kind, fg=shade) if shade else kind}  {printable(rest)}"


def _clock(moment: datetime) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")
