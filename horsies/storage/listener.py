"""One connection that listens, for everyone in the process who waits for news.

A notification is a hint: whoever gets one looks at the tables. So a lost one costs a poll and nothing else, and after
every (re)connection the owner is told to look, because anything may have happened meanwhile. A connection that is only
ever read from can die unseen; over this one the server is asked from time to time what it listens to, and when the owner
has found something that it was not told of. It is replaced when there is no answer or another one. A notification to
itself would tell the same, and wake everyone else who listens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from random import random

from psycopg import OperationalError, sql

from horsies.config import PostgresConfig
from horsies.retry import backoff
from horsies.storage.database import TRANSIENT, Connection, connect

logger = logging.getLogger("horsies.listener")

ASK_SECONDS = 10.0
ANSWER_SECONDS = 4.0
# How soon after something was found untold the server is asked.
SLICE_SECONDS = 2.0


def _nothing() -> int:
    return 0


class Listener:
    """Listens on channels that are known from the start.

    `on_notify(channel, payload)` is called for each notification and `on_connected()` whenever listening (again)
    begins; `connected` says whether it listens now. Both callbacks must be quick and must not raise. `untold` counts what
    the owner has found without having been told.
    """

    def __init__(
        self,
        config: PostgresConfig,
        channels: Sequence[str],
        *,
        on_notify: Callable[[str, str], None],
        on_connected: Callable[[], None],
        untold: Callable[[], int] = _nothing,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self._config = config
        self._channels = channels
        self._on_notify = on_notify
        self._on_connected = on_connected
        self._untold = untold
        self._ask_seconds = ask_seconds
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
            await asyncio.sleep(backoff(attempt, 250, 5_000, random()))
            attempt += 1

    async def _listen(self, connection: Connection) -> None:
        """Deliver notifications until the connection is lost or stops answering."""
        while True:
            await self._hear(connection)
            async with asyncio.timeout(ANSWER_SECONDS):
                cursor = await connection.execute("SELECT pg_listening_channels()")
                heard = {row[0] for row in await cursor.fetchall()}
            if not heard.issuperset(self._channels):
                raise OperationalError("the session that listened is another one by now")

    async def _hear(self, connection: Connection) -> None:
        """Deliver notifications until there is a reason to ask whether there are any."""
        until, untold = time.monotonic() + self._ask_seconds, self._untold()
        while untold == self._untold() and (left := until - time.monotonic()) > 0:
            async for notify in connection.notifies(timeout=min(left, SLICE_SECONDS)):
                self._on_notify(notify.channel, notify.payload)
