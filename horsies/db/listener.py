"""One connection that listens for notifications, shared by the whole process.

A notification is only a hint to query the tables, so a lost one costs a poll and nothing else. After every (re)connection the
owner is told to query, because any notification may have been missed. A connection that is only read from can die unnoticed.
Therefore the listener regularly queries over it which channels the session listens to, and also as soon as the owner has found
something without a notification. If there is no answer, or another one than expected, it reconnects. A notification to itself
would test the same, but would wake up every other listener.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from random import random

from psycopg import OperationalError, sql

from horsies.config import PostgresConfig
from horsies.db.connection import TRANSIENT, Connection, connect, retry_pause_ms
from horsies.event_loop import cancel_and_wait
from horsies.retry import backoff

logger = logging.getLogger("horsies.listener")

CHECK_SECONDS = 10.0
ANSWER_SECONDS = 4.0
# How soon after a missed notification the connection is checked.
SLICE_SECONDS = 2.0


class Listener:
    """Listen on a fixed set of channels.

    `on_notify(channel, payload)` is called for each notification and `on_connected()` after every (re)connection. Both
    callbacks must be quick and must not raise. `connected` is set while the listener has a connection. `missed()` returns how
    often the owner has found something by polling that it was not notified of.
    """

    def __init__(
        self,
        config: PostgresConfig,
        channels: Sequence[str],
        *,
        on_notify: Callable[[str, str], None],
        on_connected: Callable[[], None],
        missed: Callable[[], int] = lambda: 0,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._config = config
        self._channels = channels
        self._on_notify = on_notify
        self._on_connected = on_connected
        self._missed = missed
        self._check_seconds = check_seconds
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="horsies-listener")

    async def close(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None

    async def _run(self) -> None:
        attempt = 0
        while True:
            try:
                async with await connect(self._config, session=True, name="horsies-listener") as connection:
                    for channel in self._channels:
                        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    attempt = 0
                    self.connected.set()
                    self._on_connected()
                    await self._listen(connection)
            except TRANSIENT as error:
                logger.warning(
                    "listener lost its connection (%s); polling until it is back", type(error).__name__
                )
            finally:
                self.connected.clear()
            await asyncio.sleep(backoff(attempt, 250, retry_pause_ms(self._config, 5_000), random()))
            attempt += 1

    async def _listen(self, connection: Connection) -> None:
        """Deliver notifications until the connection is lost or stops answering."""
        while True:
            await self._deliver_until_check(connection)
            async with asyncio.timeout(ANSWER_SECONDS):
                cursor = await connection.execute("SELECT pg_listening_channels()")
                channels = {row[0] for row in await cursor.fetchall()}
            if not channels.issuperset(self._channels):
                raise OperationalError("this session no longer listens: a pooler may have swapped it")

    async def _deliver_until_check(self, connection: Connection) -> None:
        """Deliver notifications until the connection is due for a check."""
        until, missed = time.monotonic() + self._check_seconds, self._missed()
        while missed == self._missed() and (left := until - time.monotonic()) > 0:
            async for notify in connection.notifies(timeout=min(left, SLICE_SECONDS)):
                self._on_notify(notify.channel, notify.payload)
