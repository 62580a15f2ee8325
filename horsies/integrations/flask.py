"""Flask: an extension. Tasks run with the application's context, and `flask horsies …` is the horsies command.

>>> FlaskHorsies(app, web)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flask import Flask, current_app
from werkzeug.local import LocalProxy

from horsies.app import Horsies
from horsies.cli import horsies
from horsies.context import Running, Watcher
from horsies.errors import ConfigurationError, ErrorCode

_NAME = "horsies"


class FlaskHorsies:
    """Ties a queue to a Flask application, at once or by `init_app`.

    >>> queue = FlaskHorsies(app)
    >>> def create_app() -> Flask:
    ...     web = Flask("shop")
    ...     queue.init_app(web)
    ...     return web
    """

    def __init__(self, app: Horsies, web: Flask | None = None) -> None:
        self.app = app
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        web.extensions[_NAME] = self.app
        web.cli.add_command(horsies)
        self.app.watchers[:] = [each for each in self.app.watchers if not isinstance(each, _InContext)]
        self.app.watchers.append(_InContext(web))


class _InContext(Watcher):
    def __init__(self, web: Flask) -> None:
        self._web = web

    def running(self, task: Running) -> AbstractContextManager[Any]:  # noqa: ARG002  it is the same for all
        return self._web.app_context()


def _current() -> Horsies:
    found = current_app.extensions.get(_NAME)
    if not isinstance(found, Horsies):
        raise ConfigurationError(
            f"the Flask application {current_app.name!r} has no queue",
            code=ErrorCode.CONFIG_INVALID_VALUE,
            help_text="call FlaskHorsies(app).init_app(web) where it is made",
        )
    return found


# The queue of the current Flask application.
current_queue: Horsies = LocalProxy(_current)  # pyright: ignore[reportAssignmentType]  stands for a Horsies
