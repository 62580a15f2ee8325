"""One connection that listens, for everyone in the process who waits for news.

A notification is a hint: whoever gets one looks at the tables. So a lost one costs a poll and nothing else, and after
every (re)connection the owner is told to look, because anything may have happened meanwhile. A connection that is only
ever read from can die unseen; this one sends itself a notification from time to time and is replaced when it does
not come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import random
from uuid import uuid4

from psycopg import sql

from horsies.config import PostgresConfig
from horsies.retry import backoff
from horsies.storage.database import TRANSIENT, Connection, connect

logger = logging.getLogger("horsies.listener")

PING_SECONDS = 10.0
ANSWER_SECONDS = 4.0


class Listener:
    """Listens on channels that are known from the start.

    `on_notify(channel, payload)` is called for each notification and `on_connected()` whenever listening (again)
    begins; `connected` says whether it listens now. Both callbacks must be quick and must not raise.
    """

    def __init__(
        self,
        config: PostgresConfig,
        channels: Sequence[str],
        *,
        on_notify: Callable[[str, str], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._config = config
        self._channels = channels
        self._on_notify = on_notify
        self._on_connected = on_connected
        self._echo = f"horsies_echo_{uuid4().hex}"
        self._task: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="horsies-listener")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        attempt = 0
        while True:
            try:
                async with await connect(self._config, session=True, name="horsies-listener") as connection:
                    for channel in (*self._channels, self._echo):
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
            await asyncio.sleep(backoff(attempt, 250, 5_000, random()))
            attempt += 1

    async def _listen(self, connection: Connection) -> None:
        """Deliver notifications until the connection is lost or stops answering."""
        while True:
            await self._deliver(connection, PING_SECONDS)
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.execute("SELECT pg_notify(%s, '')", (self._echo,))
                while not await self._deliver(connection, ANSWER_SECONDS, at_least=1):
                    pass

    async def _deliver(self, connection: Connection, seconds: float, at_least: int | None = None) -> bool:
        """Pass on what arrives within a time, or until there was something; tells whether our own echo was in it."""
        heard = False
        async for notify in connection.notifies(timeout=seconds, stop_after=at_least):
            if notify.channel == self._echo:
                heard = True
            else:
                self._on_notify(notify.channel, notify.payload)
        return heard
