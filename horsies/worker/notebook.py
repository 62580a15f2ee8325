"""Write down what tasks say while they run, beside the hot path: in batches, twice a second at most.

A connection is opened when there is something to write, and closed after a while without. What cannot be written because
the database is away is kept, the last lines of each run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime

import psycopg

from horsies.config import PostgresConfig
from horsies.storage import notes
from horsies.storage.database import TRANSIENT, Connection, answering, connect_worker
from horsies.storage.notes import LINES_KEPT, Line, Report
from horsies.storage.tasks import Claimed
from horsies.worker import wire

logger = logging.getLogger("horsies.worker")

PAUSE_SECONDS = 0.5
# A connection over which nothing was written for so long is closed.
IDLE_SECONDS = 5.0
RETRY_SECONDS = 1.0
LAST_SECONDS = 2.0
LINES_PER_STATEMENT = 1_000


class Notebook:
    """Gathers what tasks say until it is written."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._lines: dict[tuple[str, int], deque[Line]] = {}
        self._news = asyncio.Event()

    def said(self, task: Claimed, message: wire.Progress | wire.Logged) -> None:
        """Note a word of a task."""
        if isinstance(message, wire.Progress):
            self._reports[task.id] = Report(
                task.id, task.claim_seq, message.done, message.total, message.message, _moment(message.at)
            )
        else:
            attempt = task.earlier_attempts + task.retry_count + 1
            lines = self._lines.setdefault((task.id, task.claim_seq), deque(maxlen=LINES_KEPT))
            lines.extend(
                Line(
                    task.id,
                    task.claim_seq,
                    each.seq,
                    attempt,
                    _moment(each.at),
                    each.level,
                    each.logger,
                    each.message,
                )
                for each in message.lines
            )
        self._news.set()

    async def run(self, postgres: PostgresConfig) -> None:
        """Write what comes, until cancelled."""
        while True:
            await self._news.wait()
            try:
                async with await connect_worker(postgres, "horsies-notes") as connection:
                    while await self._comes_soon():
                        await self._write(connection)
                        await asyncio.sleep(PAUSE_SECONDS)
            except TRANSIENT as error:
                logger.warning("could not write down what tasks say (%s)", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    async def close(self, postgres: PostgresConfig) -> None:
        """Write what is left; not for long."""
        if not self._news.is_set():
            return
        with suppress(*TRANSIENT):
            async with (
                asyncio.timeout(LAST_SECONDS),
                await connect_worker(postgres, "horsies-notes") as connection,
            ):
                await self._write(connection)

    async def _comes_soon(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                return await self._news.wait()
        return False

    async def _write(self, connection: Connection) -> None:
        self._news.clear()
        reports, self._reports = self._reports, {}
        lines, self._lines = self._lines, {}
        try:
            with answering(connection):
                await notes.write(connection, list(reports.values()), [])
                every = [line for run in lines.values() for line in run]
                for start in range(0, len(every), LINES_PER_STATEMENT):
                    await notes.write(connection, [], every[start : start + LINES_PER_STATEMENT])
        except (*TRANSIENT, asyncio.CancelledError):
            self._put_back(reports, lines)
            raise
        except psycopg.Error as error:  # what a task has forged, say: nobody else's work depends on it
            logger.error("what tasks have said cannot be written, and is dropped: %s", error)

    def _put_back(self, reports: dict[str, Report], lines: dict[tuple[str, int], deque[Line]]) -> None:
        """Keep what could not be written, before what has come since."""
        self._reports = reports | self._reports
        for run, since in self._lines.items():
            lines.setdefault(run, deque(maxlen=LINES_KEPT)).extend(since)
        self._lines = lines
        self._news.set()


def _moment(at: float) -> datetime:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        raise wire.Garbled(f"{at} is no time") from None
