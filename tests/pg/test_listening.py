"""A listener hears what is said while it listens, disturbs nobody, and does not trust a session that does not listen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies.db import listener as listening
from horsies.db.listener import Listener

Db = psycopg.Connection[dict[str, Any]]


class Ear:
    """What a listener has told its owner."""

    def __init__(self, url: str, channel: str, check_seconds: float = 0.02) -> None:
        self.connections = self.missed = 0
        self.heard: list[tuple[str, str]] = []
        self.listener = Listener(
            PostgresConfig(database_url=url),
            [channel],
            on_notify=lambda channel, payload: self.heard.append((channel, payload)),
            on_connected=self._connected,
            missed=lambda: self.missed,
            check_seconds=check_seconds,
        )

    def _connected(self) -> None:
        self.connections += 1

    def listen(self, during: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            self.listener.start()
            try:
                async with asyncio.timeout(20):
                    await during()
            finally:
                await self.listener.close()

        asyncio.run(run())


def test_what_is_said_is_heard_between_the_questions_and_wakes_nobody_else(database_url: str, db: Db) -> None:
    ear = Ear(database_url, "news")
    db.execute("LISTEN news")

    async def talk() -> None:
        await ear.listener.connected.wait()
        for number in range(50):
            await asyncio.sleep(0.005)
            db.execute("SELECT pg_notify('news', %s)", (str(number),))
        while len(ear.heard) < 50:
            await asyncio.sleep(0.005)

    ear.listen(talk)

    assert ear.heard == [("news", str(number)) for number in range(50)]
    assert ear.connections == 1
    assert [each.payload for each in db.notifies(timeout=0.2)] == [str(number) for number in range(50)]


def test_a_session_that_does_not_listen_as_it_should_is_replaced(database_url: str) -> None:
    ear = Ear(database_url, "n" * 70)  # of which the server takes 63

    async def wait() -> None:
        while ear.connections < 2:
            await asyncio.sleep(0.01)

    ear.listen(wait)


def test_a_missed_notification_makes_the_listener_check_its_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "SLICE_SECONDS", 0.02)
    ear = Ear(database_url, "n" * 70, check_seconds=600)

    async def wait() -> None:
        await ear.listener.connected.wait()
        ear.missed += 1
        while ear.connections < 2:
            await asyncio.sleep(0.01)

    ear.listen(wait)
