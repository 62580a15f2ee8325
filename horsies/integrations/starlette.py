"""Starlette: the queue is connected while the web app runs, and at hand in every request.

It imports nothing of Starlette, so that it serves whatever speaks ASGI's lifespan in the same way.

>>> web = Starlette(routes=[…], lifespan=lifespan(app))
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from horsies.app import Horsies
from horsies.errors import ConfigurationError, ErrorCode

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
_STATE = "horsies"


def lifespan(
    app: Horsies, wrapped: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None
) -> Lifespan:
    """Connect when the web app starts, which fails if the database is not there, and disconnect when it stops.

    A lifespan of your own goes on as it did, inside of this one.

    >>> web = FastAPI(lifespan=lifespan(app, my_lifespan))
    """

    @asynccontextmanager
    async def connected(web: Any) -> AsyncGenerator[Mapping[str, Any]]:
        broker = app.get_broker()
        await broker.open_async()
        try:
            if wrapped is None:
                yield {_STATE: app}
            else:
                async with wrapped(web) as state:
                    yield {**(state or {}), _STATE: app}
        finally:
            await broker.close_async()

    return connected


def queue_of(request: Any) -> Horsies:
    """The app whose lifespan the web app of this request has.

    >>> await add.send_async(2, 3) if queue_of(request) is app else None
    """
    found = getattr(request.state, _STATE, None)
    if not isinstance(found, Horsies):
        raise ConfigurationError(
            "the web app of this request has no queue",
            code=ErrorCode.CONFIG_INVALID_VALUE,
            help_text="make it with lifespan=horsies.integrations.starlette.lifespan(app)",
        )
    return found
