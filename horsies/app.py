"""The application object."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

from horsies import discovery
from horsies.client import resolve
from horsies.config import WorkerConfig
from horsies.durations import Duration
from horsies.errors import HorsiesError
from horsies.monitoring import MonitoredRegistry
from horsies.registry import AnyTask
from horsies.schedule.api import Schedules
from horsies.schedule.declare import declare, pattern_of
from horsies.schedule.model import Overlap
from horsies.schedule.patterns import SchedulePattern
from horsies.schedule.scheduler import Scheduler
from horsies.validation import check
from horsies.worker.worker import Worker

TaskT = TypeVar("TaskT", bound=AnyTask)


class Horsies(MonitoredRegistry):
    """An app: its settings, its tasks, and the workers and schedulers that run them.

    Without a configuration, the database URL comes from `HORSIES_DATABASE_URL` or `DATABASE_URL`. If neither is set, an
    embedded PostgreSQL server is started, for development.

    >>> app = Horsies()
    >>> @app.task
    ... def add(x: int, y: int) -> int:
    ...     return x + y
    """

    @staticmethod
    def expand_module_globs(patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """Return the Python files that match glob patterns, without the excluded ones; a name that is no pattern is kept as it is.

        Folders, compiled files and tests (`test_*`) are left out.

        >>> app.discover_tasks(app.expand_module_globs(["src/**/*_tasks.py"], exclude=["*/old/*"]))
        """
        found: list[str] = []
        for pattern in patterns:
            is_glob = any(sign in pattern for sign in "*?[")
            matches = sorted(glob(pattern, recursive=True)) if is_glob else []  # noqa: PTH207  may be absolute
            found += filter(_is_module, matches) if is_glob else [pattern]
        return [each for each in dict.fromkeys(found) if not any(fnmatch(each, other) for other in exclude)]

    def import_task_modules(self) -> None:
        """Import the modules named by `discover_tasks`; meanwhile, sends are suppressed."""
        discovery.import_modules(self, self.task_modules)

    def check(self, live: bool = False) -> list[HorsiesError]:
        """Return all errors of the app, an empty list if there are none; with `live`, check the database too.

        >>> app.check(live=True)
        []
        """
        return check(self, live=live)

    def schedule(
        self,
        pattern: str | SchedulePattern | None = None,
        *,
        every: Duration | None = None,
        name: str | None = None,
        timezone: str = "UTC",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        enabled: bool = True,
        catch_up_missed: bool = False,
        max_catch_up_runs: int = 100,
        overlap: Overlap = "allow",
    ) -> Callable[[TaskT], TaskT]:
        """Run the task below at these times: a cron expression, a pattern, or `every` so many seconds or a `timedelta`.

        >>> @app.schedule("0 8 * * mon", timezone="Europe/Berlin")
        ... @app.task("report")
        ... def report(kind: str = "full") -> TaskResult[str, TaskError]: ...

        The schedule has the task's name unless it is given one. `args` and `kwargs` are the arguments of each run.
        """
        options = {
            "timezone": timezone,
            "args": args,
            "kwargs": kwargs or {},
            "queue_name": queue_name,
            "enabled": enabled,
            "catch_up_missed": catch_up_missed,
            "max_catch_up_runs": max_catch_up_runs,
            "overlap": overlap,
        }
        when = pattern_of(pattern, every)

        def decorate(task: TaskT) -> TaskT:
            declare(self, task, name, when, options)
            return task

        return decorate

    @property
    def schedules(self) -> Schedules:
        """Return the schedules in the database, to inspect, create, change and pause them at run time.

        >>> app.schedules.pause("nightly")
        """
        return Schedules(self)

    def run_worker(self, config: WorkerConfig | None = None) -> None:
        """Run a worker in this process until SIGTERM or SIGINT; return when its tasks have ended.

        >>> app.run_worker(WorkerConfig(processes=8))
        """
        asyncio.run(self.run_worker_async(config))

    async def run_worker_async(self, config: WorkerConfig | None = None) -> None:
        """Do the same as `run_worker`, in the running loop; cancel it to stop."""
        worker = Worker(self, config or WorkerConfig())
        await _run_until_stopped(worker.run(), worker.stop)

    def run_scheduler(self) -> None:
        """Run the app's schedules in this process until SIGTERM or SIGINT; any number of schedulers may run.

        >>> app.run_scheduler()
        """
        asyncio.run(self.run_scheduler_async())

    async def run_scheduler_async(self) -> None:
        """Do the same as `run_scheduler`, in the running loop; cancel it to stop."""
        discovery.refuse_while_loading()
        scheduler = Scheduler(self)
        postgres = await asyncio.to_thread(resolve, self.config)
        await _run_until_stopped(scheduler.run(postgres), scheduler.stop)


def _is_module(file: str) -> bool:
    path = Path(file)
    is_source = path.suffix == ".py" and "__pycache__" not in path.parts and path.is_file()
    return is_source and not path.name.startswith("test_")


async def _run_until_stopped(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Run a coroutine to its end; call `stop` on SIGTERM, SIGINT or cancellation."""
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
