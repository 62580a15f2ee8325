"""The schedules of an app, run by the scheduler's own code when a test asks for what is due."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from psycopg import IsolationLevel

from horsies.registry import TaskRegistry
from horsies.schedule.model import ScheduleConfig
from horsies.scheduler import roster
from horsies.scheduler.targets import Starters
from horsies.scheduler.turns import Turns
from horsies.storage.database import Connection, connect
from horsies.storage.schedules import prepare_session


async def write_down(app: TaskRegistry) -> None:
    """Make the schedules of the code known; from then on their slots can come."""
    if (config := _config_of(app)) is not None:
        async with _session(app) as connection:
            await roster.write_down(connection, Starters(app), config.schedules)


async def take_turns(app: TaskRegistry) -> None:
    """Run every slot that has come."""
    if (config := _config_of(app)) is None:
        return
    starters = Starters(app)
    names = {schedule.name for schedule in config.schedules}
    turns = Turns(starters, names, config.check_interval_seconds)
    async with _session(app) as connection:
        await roster.write_down(connection, starters, config.schedules)
        while await turns.take(connection):
            pass


def _config_of(app: TaskRegistry) -> ScheduleConfig | None:
    config = app.config.schedule
    return config if config is not None and config.enabled else None


@asynccontextmanager
async def _session(app: TaskRegistry) -> AsyncGenerator[Connection]:
    """A session as a scheduler has it."""
    postgres = await app.get_broker().postgres()
    async with await connect(postgres, session=True, name="horsies-testing") as connection:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await prepare_session(connection)
        yield connection
