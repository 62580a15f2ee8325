"""A Flask extension: tasks run in the application context, and `flask horsies …` is the horsies command.

>>> FlaskHorsies(app, web)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flask import Flask, current_app
from werkzeug.local import LocalProxy

from horsies.app import Horsies
from horsies.cli import horsies
from horsies.errors import ConfigurationError, ErrorCode
from horsies.middleware import Middleware, RunContext

_NAME = "horsies"


class FlaskHorsies:
    """Register an app with a Flask application, at once or with `init_app`.

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
        """Register the app with a Flask application, and replace an earlier one."""
        web.extensions[_NAME] = self.app
        web.cli.add_command(horsies)
        self.app.middleware[:] = [each for each in self.app.middleware if not isinstance(each, _AppContext)]
        self.app.middleware.append(_AppContext(web))


class _AppContext(Middleware):
    def __init__(self, web: Flask) -> None:
        self._web = web

    def running(self, task: RunContext) -> AbstractContextManager[Any]:  # noqa: ARG002  every task gets the same context
        return self._web.app_context()


def _current() -> Horsies:
    found = current_app.extensions.get(_NAME)
    if not isinstance(found, Horsies):
        raise ConfigurationError(
            f"the Flask application {current_app.name!r} has no queue",
            code=ErrorCode.CONFIG_INVALID_VALUE,
            help_text="call FlaskHorsies(app).init_app(web) where the application is created",
        )
    return found


# The queue of the current Flask application.
current_queue: Horsies = LocalProxy(_current)  # pyright: ignore[reportAssignmentType]  a proxy of a Horsies
