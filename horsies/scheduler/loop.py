"""A scheduler, from start to stop: it sleeps until the next slot, and runs it.

Any number of them may run. The database says what time it is, who takes a turn and where a schedule stands, so that a
slot is run once whatever happens to whom. A sleep ends early when a schedule changes, and is never longer than
`check_interval_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from random import random

from psycopg import IsolationLevel

from horsies.config import PostgresConfig
from horsies.errors import ConfigurationError, ErrorCode
from horsies.registry import TaskRegistry
from horsies.retry import backoff
from horsies.schedule.model import ScheduleConfig
from horsies.scheduler.roster import write_down
from horsies.scheduler.targets import Starters
from horsies.scheduler.turns import Turns
from horsies.storage import schedules
from horsies.storage.database import TRANSIENT, Connection, answering, connect, explain, is_refused
from horsies.storage.listener import Listener
from horsies.storage.migrate import migrate

logger = logging.getLogger("horsies.scheduler")

# A slot that is due and in nobody's reach is being run by another scheduler: time for it to be done.
OTHERS_SECONDS = 0.05


class Scheduler:
    """Runs an app's schedules until it is stopped.

    >>> await Scheduler(app).run(postgres)
    """

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        self._config = config_of(app)
        self._starters = Starters(app)
        names = {schedule.name for schedule in self._config.schedules}
        self._turns = Turns(self._starters, names, self._config.check_interval_seconds)
        self._wake = asyncio.Event()
        self._stopping = False
        self._is_ready = False

    def stop(self) -> None:
        """Stop after the turn that is being taken."""
        self._stopping = True
        self._wake.set()

    async def run(self, postgres: PostgresConfig) -> None:
        """Run schedules until stopped, over one connection after another; raises what made it impossible to go on."""
        listener = Listener(
            postgres,
            [schedules.CHANNEL],
            on_notify=self._on_notify,
            on_connected=lambda: self._on_notify("", ""),
        )
        attempt = 0
        try:
            while not self._stopping:
                try:
                    await self._get_ready(postgres, listener)
                    async with await connect(postgres, session=True, name="horsies-scheduler") as connection:
                        attempt = 0
                        await self._work(connection)
                except TRANSIENT as error:
                    await self._bear(error, attempt, postgres)
                    attempt += 1
        finally:
            await listener.close()

    async def _get_ready(self, postgres: PostgresConfig, listener: Listener) -> None:
        """Once: make sure of the schema, and write down what the code has."""
        if self._is_ready:
            return
        await migrate(postgres)
        async with await connect(postgres, session=True, name="horsies-scheduler") as connection:
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            await write_down(connection, self._starters, self._config.schedules)
        listener.start()
        self._is_ready = True
        logger.info("Scheduler started: %d schedules in the code", len(self._config.schedules))

    async def _work(self, connection: Connection) -> None:
        # Who waited for a lock must see what was written by who held it, whatever the database prefers.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await schedules.prepare_session(connection)
        while not self._stopping:
            self._wake.clear()
            with answering(connection):
                seconds = await schedules.pause_until_due(connection, self._turns.aside)
            if seconds is not None and seconds <= 0:
                with answering(connection):
                    taken = await self._turns.take(connection)
                if taken:
                    continue
                seconds = OTHERS_SECONDS
            await self._sleep(seconds)

    async def _sleep(self, seconds: float | None) -> None:
        longest = float(self._config.check_interval_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(longest if seconds is None else min(seconds, longest)):
                await self._wake.wait()

    def _on_notify(self, _channel: str, name: str) -> None:
        self._turns.look_again(name)
        self._wake.set()

    async def _bear(self, error: BaseException, attempt: int, postgres: PostgresConfig) -> None:
        """Wait before the next try to reach the database; raise when it will not help."""
        resilience = self._app.config.resilience
        explained = explain(error, postgres)
        if is_refused(error) or 0 < resilience.db_retry_max_attempts <= attempt:
            raise explained from error
        seconds = backoff(attempt, resilience.db_retry_initial_ms, resilience.db_retry_max_ms, random())
        logger.warning("%s; next try in %.1f s", explained.message, seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._stopping:
                    self._wake.clear()
                    await self._wake.wait()


def config_of(app: TaskRegistry) -> ScheduleConfig:
    """The app's schedules; an app that has none, or has them switched off, has nothing for a scheduler to do."""
    config = app.config.schedule
    if config is None or not config.enabled:
        what = "has no schedule" if config is None else "has its schedules switched off"
        raise ConfigurationError(
            f"the app {what}, and a scheduler was to be started",
            code=ErrorCode.CONFIG_INVALID_SCHEDULE,
            help_text="set AppConfig(schedule=ScheduleConfig(schedules=[…])); the list may be empty when all are made at run time",
        )
    return config
