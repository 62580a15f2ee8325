"""The queue behind a task backend: one app for each alias, on a database of Django's.

Only functions that Django has made tasks of can be run: what a row names is looked up, never imported.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# Django is not typed.

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import close_old_connections
from django.utils.module_loading import import_string
from psycopg.pq import Conninfo

from horsies.app import Horsies
from horsies.config import AppConfig, CustomQueueConfig, PostgresConfig, QueueMode
from horsies.context import Running, Watcher


class Queue:
    """An app, and the tasks of Django's that it can run, by name."""

    def __init__(self, app: Horsies) -> None:
        self.app = app
        self.tasks: dict[str, Any] = {}
        app.watchers.append(_Connections())

    def add(self, task: Any, run: Callable[..., Any]) -> None:
        """Have the app run a task; a variant of one that is known, with another priority, say, changes nothing."""
        if task.module_path not in self.tasks:
            self.app.task(task.module_path, queue_name=self.name_of(task.queue_name))(run)
            self.tasks[task.module_path] = task

    def name_of(self, queue_name: str) -> str | None:
        """The queue to name to the app, which takes none when it has one only."""
        return queue_name if self.app.config.queue_mode is QueueMode.CUSTOM else None


_queues: dict[str, Queue] = {}


def queue_of(alias: str, names: set[str], options: Mapping[str, Any]) -> Queue:
    """The queue of a backend, made once in a process: the app that OPTIONS names, or one on Django's own database."""
    if alias not in _queues:
        app: Horsies = import_string(options["app"]) if "app" in options else _own(names, options)
        _queues[alias] = Queue(app)
    return _queues[alias]


def _own(names: set[str], options: Mapping[str, Any]) -> Horsies:
    database = settings.DATABASES[options.get("database", "default")]
    return Horsies(
        AppConfig(
            broker=PostgresConfig(database_url=database_url(database)),
            queue_mode=QueueMode.CUSTOM,
            custom_queues=[CustomQueueConfig(name=name, max_concurrency=None) for name in sorted(names)],
        )
    )


def database_url(database: Mapping[str, Any]) -> str:
    """The URL of one of Django's DATABASES.

    >>> database_url({"NAME": "shop", "USER": "ann", "HOST": "db"})
    'postgresql:///shop?user=ann&host=db'
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parts = {
        "user": database.get("USER"),
        "password": database.get("PASSWORD"),
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        **{name: value for name, value in database.get("OPTIONS", {}).items() if name in known},
    }
    given = {name: str(value) for name, value in parts.items() if value}
    return f"postgresql:///{quote(str(database['NAME']), safe='')}?{urlencode(given, quote_via=quote)}"


class _Connections(Watcher):
    """A process that runs tasks for days does with Django's connections what requests do."""

    @contextmanager
    def running(self, task: Running) -> Generator[None]:  # noqa: ARG002  it is the same for all
        close_old_connections()
        yield
        close_old_connections()
