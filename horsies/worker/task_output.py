"""Write the progress and the log lines of running tasks in batches, at most twice a second, beside the hot path.

A connection is opened when there is output and closed after some idle time. While the database is unreachable, the last lines of
each run are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime

import psycopg

from horsies.config import PostgresConfig
from horsies.db.connection import TRANSIENT, Connection, connect_worker, hangup_after
from horsies.db.queries import tasks
from horsies.db.queries.tasks import LINES_KEPT, Claimed, OutputLine, ProgressReport
from horsies.event_loop import wait_until_set
from horsies.executor import protocol

logger = logging.getLogger("horsies.worker")

PAUSE_SECONDS = 0.5
# An idle connection is closed after so long.
IDLE_SECONDS = 5.0
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 2.0
LINES_PER_STATEMENT = 1_000


class TaskOutputWriter:
    """Collects the output of tasks until it is written."""

    def __init__(self) -> None:
        self._reports: dict[str, ProgressReport] = {}
        self._lines: dict[tuple[str, int], deque[OutputLine]] = {}
        self._has_output = asyncio.Event()

    def add(self, task: Claimed, message: protocol.Progress | protocol.Logged) -> None:
        """Add output of a task."""
        if isinstance(message, protocol.Progress):
            self._reports[task.id] = ProgressReport(
                task.id, task.claim_seq, message.done, message.total, message.message, _datetime(message.at)
            )
        else:
            attempt = task.earlier_attempts + task.retry_count + 1
            lines = self._lines.setdefault((task.id, task.claim_seq), deque(maxlen=LINES_KEPT))
            lines.extend(
                OutputLine(
                    task.id,
                    task.claim_seq,
                    each.seq,
                    attempt,
                    _datetime(each.at),
                    each.level,
                    each.logger,
                    each.message,
                )
                for each in message.lines
            )
        self._has_output.set()

    async def run(self, postgres: PostgresConfig) -> None:
        """Write output until cancelled."""
        while True:
            await self._has_output.wait()
            try:
                async with await connect_worker(postgres, "horsies-task-output") as connection:
                    while await wait_until_set(self._has_output, IDLE_SECONDS):
                        await self._write(connection)
                        await asyncio.sleep(PAUSE_SECONDS)
            except TRANSIENT as error:
                logger.warning("Could not write the output of tasks (%s), trying again", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    async def close(self, postgres: PostgresConfig) -> None:
        """Write the remaining output, if that is possible within a short time."""
        if not self._has_output.is_set():
            return
        with suppress(*TRANSIENT):
            async with (
                asyncio.timeout(CLOSE_SECONDS),
                await connect_worker(postgres, "horsies-task-output") as connection,
            ):
                await self._write(connection)

    async def _write(self, connection: Connection) -> None:
        self._has_output.clear()
        reports, self._reports = self._reports, {}
        lines, self._lines = self._lines, {}
        try:
            with hangup_after(connection):
                await tasks.write_output(connection, list(reports.values()), [])
                every = [line for run in lines.values() for line in run]
                for start in range(0, len(every), LINES_PER_STATEMENT):
                    await tasks.write_output(connection, [], every[start : start + LINES_PER_STATEMENT])
        except (*TRANSIENT, asyncio.CancelledError):
            self._put_back(reports, lines)
            raise
        except psycopg.Error as error:  # a task may have forged a message
            logger.error("The output of tasks cannot be written and is dropped: %s", error)

    def _put_back(
        self, reports: dict[str, ProgressReport], lines: dict[tuple[str, int], deque[OutputLine]]
    ) -> None:
        """Keep output that could not be written, before the output that was added since."""
        self._reports = reports | self._reports
        for run, since in self._lines.items():
            lines.setdefault(run, deque(maxlen=LINES_KEPT)).extend(since)
        self._lines = lines
        self._has_output.set()


def _datetime(at: float) -> datetime:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        raise protocol.ProtocolError(f"{at} is not a valid time") from None
