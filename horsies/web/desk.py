"""What the pages and the API work with: the database, the app if there is one, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from horsies.app import Horsies
from horsies.broker import resolve
from horsies.config import AppConfig, PostgresConfig
from horsies.storage import dashboard
from horsies.storage.database import Connection, Database
from horsies.web.access import Access
from horsies.web.answers import Answers
from horsies.web.hub import CHANGED, Hub

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]


class Desk:
    """Opens nothing until it is asked something."""

    def __init__(self, source: Horsies | str | PostgresConfig | None, access: Access) -> None:
        config = PostgresConfig(database_url=source) if isinstance(source, str) else source
        self.app = config if isinstance(config, Horsies) else Horsies(AppConfig(broker=config))
        self.knows_tasks = isinstance(config, Horsies)
        self.access = access
        self.answers = Answers()
        self.hub = Hub(lambda: self.look(dashboard.pulse))
        self._postgres: PostgresConfig | None = None
        self._reading: Database | None = None
        self._acting: Database | None = None

    async def postgres(self) -> PostgresConfig:
        if self._postgres is None:
            self._postgres = await asyncio.to_thread(resolve, self.app.config)
        return self._postgres

    async def read(self, key: Hashable, seconds: float, work: Work[T], queries: int = 1) -> T:
        """An answer that may be so old, shared with everybody who asks the same."""
        return await self.answers.get(key, seconds, lambda: self.look(work), queries)

    async def look(self, work: Work[T]) -> T:
        """Ask now."""
        if self._reading is None:
            self._reading = dashboard.viewing(await self.postgres())
        async with self._reading.connection() as connection:
            return await work(connection)

    async def act(self, work: Work[T]) -> T:
        """Change something; what is shown is asked anew."""
        if self._acting is None:
            self._acting = dashboard.acting(await self.postgres())
        try:
            async with self._acting.connection() as connection:
                return await work(connection)
        finally:
            self.refresh()

    def refresh(self) -> None:
        self.answers.forget()
        self.hub.tell(CHANGED)

    async def close(self) -> None:
        for database in (self._reading, self._acting):
            if database is not None:
                await database.close()
        self._reading = self._acting = None
