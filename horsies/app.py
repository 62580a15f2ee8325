"""The application: the one object that users make."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from fnmatch import fnmatch
from glob import glob
from typing import Any

from horsies import discovery
from horsies.broker import resolve
from horsies.check import check
from horsies.config import WorkerConfig
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.scheduler.loop import Scheduler
from horsies.scheduler.rows import Schedules
from horsies.worker.worker import Worker


class Horsies(TaskRegistry):
    """An app: its settings, its tasks, and the workers that run them.

    Without a configuration the database is the one that `HORSIES_DATABASE_URL` or `DATABASE_URL` names; with neither,
    a PostgreSQL server of our own is started for development.

    >>> app = Horsies()
    >>> @app.task("add")
    ... def add(x: int, y: int) -> TaskResult[int, TaskError]:
    ...     return TaskResult(ok=x + y)
    """

    @staticmethod
    def expand_module_globs(patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """The files that patterns stand for, without the excluded ones; what is no pattern stays as it is.

        >>> app.discover_tasks(app.expand_module_globs(["src/**/*_tasks.py"], exclude=["*/test_*"]))
        """
        found: list[str] = []
        for pattern in patterns:
            is_glob = any(sign in pattern for sign in "*?[")
            found += sorted(glob(pattern, recursive=True)) if is_glob else [pattern]  # noqa: PTH207  may be absolute
        return [each for each in dict.fromkeys(found) if not any(fnmatch(each, other) for other in exclude)]

    def import_task_modules(self) -> None:
        """Import what `discover_tasks` named; sends are suppressed meanwhile."""
        discovery.import_modules(self, self.task_modules)

    def check(self, live: bool = False) -> list[HorsiesError]:
        """What is wrong with the app, empty when nothing is; with `live`, the database is tried out too.

        >>> app.check(live=True)
        []
        """
        return check(self, live=live)

    @property
    def schedules(self) -> Schedules:
        """The schedules in the database, to look at and to make, change and stop while everything runs.

        >>> app.schedules.pause("nightly")
        """
        return Schedules(self)

    def run_worker(self, config: WorkerConfig | None = None) -> None:
        """Run a worker in this process until SIGTERM or SIGINT; returns when its tasks have ended.

        >>> app.run_worker(WorkerConfig(processes=8))
        """
        asyncio.run(self.run_worker_async(config))

    async def run_worker_async(self, config: WorkerConfig | None = None) -> None:
        """As `run_worker`, in the running loop; cancel it to stop."""
        worker = Worker(self, config or WorkerConfig())
        await _until_signalled(worker.run(), worker.stop)

    def run_scheduler(self) -> None:
        """Run the app's schedules in this process until SIGTERM or SIGINT; any number of schedulers may run.

        >>> app.run_scheduler()
        """
        asyncio.run(self.run_scheduler_async())

    async def run_scheduler_async(self) -> None:
        """As `run_scheduler`, in the running loop; cancel it to stop."""
        discovery.refuse_while_loading()
        scheduler = Scheduler(self)
        postgres = await asyncio.to_thread(resolve, self.config)
        await _until_signalled(scheduler.run(postgres), scheduler.stop)


async def _until_signalled(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Carry out what ends by itself once it is told to stop: by SIGTERM, SIGINT or a cancellation."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, stop)
    running = asyncio.ensure_future(work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await running
        raise
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
