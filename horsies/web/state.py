"""The shared state of a dashboard process: database connections, access rules, query cache, live updates.

Viewers who ask for the same data within a second share one query. One poll a second of the database's WAL position tells
every open page over server-sent events that the data has changed. There is no poll while no page is open.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg import errors
from starlette.responses import StreamingResponse

from horsies.app import Horsies
from horsies.client import resolve
from horsies.config import AppConfig, PostgresConfig, database_at, schema_of
from horsies.db.connection import BY_INDEX, TRANSIENT, Connection, Database
from horsies.db.hosts import are_several
from horsies.db.queries import inspect
from horsies.errors import HorsiesError
from horsies.redaction import Redactor, names_in
from horsies.web.auth import Access, Authenticator
from horsies.web.forms import value_type

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]


CONNECTIONS = 4
READ_SECONDS = 5


def read_only_database(config: PostgresConfig) -> Database:
    """Return connections that cannot write and whose statements time out."""
    # Set after the connection is open: `target_session_attrs=read-write` refuses a session that begins read-only.
    plans = BY_INDEX + b"; SET default_transaction_read_only = on"
    return _small_pool(config, "horsies-web", f"-c statement_timeout={READ_SECONDS}s -c jit=off", plans)


def action_database(config: PostgresConfig) -> Database:
    """Return connections for the actions of viewers."""
    return _small_pool(config, "horsies-web-actions", f"-c statement_timeout={2 * READ_SECONDS}s", BY_INDEX)


def _small_pool(config: PostgresConfig, name: str, settings: str, plans: bytes) -> Database:
    """Return a pool of direct connections: a pooler would refuse the settings. Options in the URL, such as a search path, stay."""
    url = urlsplit(config.session_conninfo)
    query = dict(parse_qsl(url.query))
    query["options"] = f"{query.get('options', '')} {settings}".strip()
    direct = PostgresConfig(
        database_url=url._replace(query=urlencode(query, quote_via=quote)).geturl(),
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=READ_SECONDS,
        schema=config.schema,
    )
    return Database(direct, name, plans)


def replica_at(url: str, schema: str | None) -> PostgresConfig:
    """Return the settings for a replica. Of several hosts, a standby is preferred, and the primary is better than nothing."""
    config = PostgresConfig(database_url=url, schema=schema)
    if not are_several(config.conninfo) or "target_session_attrs=" in url:
        return config
    joined = f"{url}{'&' if '?' in url else '?'}target_session_attrs=prefer-standby"
    return PostgresConfig(database_url=joined, schema=schema)


# The lag is read again after so long.
LAG_SECONDS = 1.0


class ReplicaBehind(Exception):
    """The replica does not have a change of a viewer yet."""


class Replica:
    """Reads from a replica. What a viewer has just changed is read from the primary, until the replica has it, too."""

    def __init__(self, config: PostgresConfig) -> None:
        self.pool = read_only_database(config)
        self.lag: float | None = None  # in seconds, as of the latest query; None until the first one
        self._lag_read_at = float("-inf")
        # The position of the latest change by a viewer, as long as the replica may lack it.
        self._written_to: str | None = None

    async def query(self, query: Work[T]) -> T:
        """Run a query; raise `ReplicaBehind` if the replica lacks a viewer's change."""
        async with self.pool.connection() as connection:
            if time.monotonic() > self._lag_read_at + LAG_SECONDS or self._written_to is not None:
                written_to = self._written_to
                self.lag, is_missing = await inspect.replica_lag(connection, written_to)
                self._lag_read_at = time.monotonic()
                if is_missing:
                    raise ReplicaBehind
                if self._written_to == written_to:
                    self._written_to = None
            try:
                return await query(connection)
            except errors.SerializationFailure:  # the replica had to remove rows that the query read
                return await query(connection)

    async def wrote(self, connection: Connection) -> None:
        """Note that a viewer has changed something over this connection to the primary."""
        self._written_to = await inspect.change_marker(connection)


@asynccontextmanager
async def one_snapshot(connection: Connection) -> AsyncGenerator[None]:
    """Run statements that all see the same state of the database, so that their numbers agree."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


QUERIES_PER_SECOND = 15
# A result that nobody has asked for within this time no longer counts towards the load.
ACTIVE_SECONDS = 10
MAX_ENTRIES = 500


@dataclass(slots=True)
class _Entry:
    value: Any
    read_at: float
    queries: int
    asked_at: float


class QueryCache:
    """Caches query results by key, and limits the total number of queries per second.

    The more different results are being watched, the longer each one is reused.
    """

    def __init__(
        self, per_second: int = QUERIES_PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        # All queries that run, also those whose results are not shared any more.
        self._queries: set[asyncio.Task[Any]] = set()
        self._generation = 0

    async def get(
        self, key: Hashable, seconds: float, query: Callable[[], Awaitable[T]], queries: int = 1
    ) -> T:
        """Return a result at most `seconds` old, or older under load. `queries` is its cost in database queries."""
        entry, now = self._entries.get(key), self._clock()
        if entry is not None:
            entry.asked_at = now
            if now < entry.read_at + max(seconds, self._cycle_seconds()):
                return cast(T, entry.value)
        if key not in self._running:
            running = asyncio.ensure_future(self._run(key, queries, query, self._generation))
            running.add_done_callback(lambda task: self._finished(key, task))
            self._running[key] = running
            self._queries.add(running)
        return cast(T, await asyncio.shield(self._running[key]))

    def _cycle_seconds(self) -> float:
        """Return how long it takes to refresh every active result once, at the allowed rate."""
        since = self._clock() - ACTIVE_SECONDS
        active = sum(entry.queries for entry in self._entries.values() if entry.asked_at > since)
        return active / self._per_second

    async def _run(
        self, key: Hashable, queries: int, query: Callable[[], Awaitable[T]], generation: int
    ) -> T:
        value = await query()
        if generation == self._generation:
            now = self._clock()
            self._entries.pop(key, None)
            self._entries[key] = _Entry(value, now, queries, now)
        while len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        return value

    def _finished(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._queries.discard(task)
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: if nobody waits any more, asyncio must not log it

    def clear(self) -> None:
        """Drop all results, including those of queries that are still running."""
        self._generation += 1
        self._entries.clear()
        self._running.clear()

    async def close(self) -> None:
        """Cancel the queries that still run, and wait for their ends. They outlive the requests that began them."""
        self.clear()
        running = list(self._queries)
        for query in running:
            query.cancel()
        await asyncio.gather(*running, return_exceptions=True)


POLL_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
# A stream ends after this time, and the browser opens the next one: a server that stops waits for open streams.
STREAM_SECONDS = 30.0
MAX_VIEWERS = 500

CHANGED, UNAVAILABLE, END = "changed", "unavailable", "end"


class Broadcaster:
    """Sends every viewer an event when the data has changed, or when the database does not answer."""

    def __init__(self, pulse: Callable[[], Awaitable[str]]) -> None:
        self._pulse = pulse
        self._viewers: set[asyncio.Queue[str]] = set()
        self._polling: asyncio.Task[None] | None = None

    def join(self) -> asyncio.Queue[str] | None:
        """Add a viewer, and return the queue of its events; None if there are too many viewers.

        The caller must remove the viewer with `leave`.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            return None
        events: asyncio.Queue[str] = asyncio.Queue()
        events.put_nowait(CHANGED)  # the data may have changed since the page was rendered
        self._viewers.add(events)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="horsies-web-broadcaster")
        return events

    def leave(self, events: asyncio.Queue[str]) -> None:
        """Remove a viewer. Polling stops after the last one."""
        self._viewers.discard(events)

    def send(self, event: str) -> None:
        """Send an event to all viewers, except those who have an unread one: they will reload anyway."""
        for viewer in self._viewers:
            if viewer.empty():
                viewer.put_nowait(event)

    def hang_up(self) -> None:
        """End all streams, because the server stops."""
        for viewer in self._viewers:
            viewer.put_nowait(END)

    async def close(self) -> None:
        """Stop polling, and wait for the end of the query under way."""
        if (polling := self._polling) is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            self._polling = None

    async def stream(self, events: asyncio.Queue[str]) -> AsyncGenerator[str]:
        """Yield the events of one viewer in the format of server-sent events."""
        ends_at = time.monotonic() + STREAM_SECONDS
        yield "retry: 1000\n\n"
        while time.monotonic() < ends_at:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    event = await events.get()
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if event == END:
                return
            yield f"event: {event}\ndata: {{}}\n\n"

    async def _poll(self) -> None:
        last = None
        try:
            while self._viewers:
                try:
                    position = await self._pulse()
                except (psycopg.Error, HorsiesError, *TRANSIENT):
                    position = None
                    self.send(UNAVAILABLE)
                if position is not None and position != last:
                    self.send(CHANGED)
                last = position
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._polling = None


class EventStream(StreamingResponse):
    """The live stream of one viewer. It removes the viewer however the stream ends."""

    def __init__(self, broadcaster: Broadcaster, events: asyncio.Queue[str]) -> None:
        unbuffered = {"x-accel-buffering": "no"}  # nginx would delay the events
        super().__init__(broadcaster.stream(events), media_type="text/event-stream", headers=unbuffered)
        self._broadcaster = broadcaster
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._broadcaster.leave(self._events)


class DashboardState:
    """The state of one dashboard. It connects to the database at the first request."""

    def __init__(
        self,
        source: Horsies | str | PostgresConfig | None,
        access: Access,
        redact: Sequence[str] = (),
        read_url: str | None = None,
    ) -> None:
        config = database_at(source) if isinstance(source, str) else source
        self.app = config if isinstance(config, Horsies) else Horsies(AppConfig(broker=config))
        self.knows_tasks = isinstance(config, Horsies)
        self.redactor = Redactor([*self.app.config.redact, *redact, *names_in(os.environ)])
        self.access = access
        self.authenticator = Authenticator(access)
        self.cache = QueryCache()
        self.broadcaster = Broadcaster(lambda: self.query(inspect.change_marker))
        self._postgres: PostgresConfig | None = None
        # Without a replica, everything is read from the primary.
        self.replica = None if read_url is None else Replica(replica_at(read_url, schema_of(self.app.config)))
        self._read_pool: Database | None = None
        self._action_pool: Database | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run an action that outlives its request."""
        task = asyncio.create_task(job, name="horsies-web-action")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def parameters(self, task_name: str) -> list[str]:
        """Return the names of a task's parameters in order; none if the dashboard was started without the app."""
        task = self.app.tasks.get(task_name)
        return [] if task is None else list(task.definition.signature.parameters)

    def value_type(self, takers: Sequence[Sequence[str]]) -> Any | None:
        """Return the type of a value by the tasks and parameters that take it; None if no known task does."""
        for task_name, parameter in takers:
            task = self.app.tasks.get(task_name)
            known = None if task is None else task.definition.signature.parameters.get(parameter)
            if known is not None:
                return value_type(known.annotation)
        return None

    async def _resolve(self) -> PostgresConfig:
        if self._postgres is None:
            self._postgres = await asyncio.to_thread(resolve, self.app.config)
        return self._postgres

    async def cached(
        self, key: Hashable, seconds: float, query: Work[T], queries: int = 1, *, on_primary: bool = False
    ) -> T:
        """Return a result at most `seconds` old, shared with everybody who asks for the same key."""
        run = self.query_primary if on_primary else self.query
        return await self.cache.get(key, seconds, lambda: run(query), queries)

    async def query(self, query: Work[T]) -> T:
        """Run a query now, without the cache; on the replica, if there is one."""
        if self.replica is not None:
            with suppress(ReplicaBehind):
                return await self.replica.query(query)
        return await self.query_primary(query)

    async def query_primary(self, query: Work[T]) -> T:
        """Run a query on the primary: its answer decides about an action, or concerns the primary itself."""
        config = await self._resolve()
        if self._read_pool is None:
            self._read_pool = read_only_database(config)
        async with self._read_pool.connection() as connection:
            return await query(connection)

    async def act(self, work: Work[T]) -> T:
        """Run an action, then drop the cache and tell all pages to reload."""
        config = await self._resolve()
        if self._action_pool is None:
            self._action_pool = action_database(config)
        try:
            async with self._action_pool.connection() as connection:
                try:
                    return await work(connection)
                finally:
                    if self.replica is not None:
                        with suppress(psycopg.Error):
                            await self.replica.wrote(connection)
        finally:
            self.cache.clear()
            self.broadcaster.send(CHANGED)

    async def close(self) -> None:
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self.broadcaster.close()
        await self.cache.close()
        for pool in (self._read_pool, self._action_pool, self.replica and self.replica.pool):
            if pool is not None:
                await pool.close()
        self._read_pool = self._action_pool = None
