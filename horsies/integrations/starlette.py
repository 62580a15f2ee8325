"""Starlette: connect the app while the web app runs, and make it available in every request.

It does not import Starlette, so it works with any framework that has the same ASGI lifespan.

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
    """Return a lifespan that connects when the web app starts, or fails if the database is unreachable, and then disconnects.

    Your own lifespan runs inside this one.

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
    """Return the app that was passed to the `lifespan` of this request's web app.

    >>> await add.send_async(2, 3) if queue_of(request) is app else None
    """
    found = getattr(request.state, _STATE, None)
    if not isinstance(found, Horsies):
        raise ConfigurationError(
            "the web app of this request has no queue",
            code=ErrorCode.CONFIG_INVALID_VALUE,
            help_text="create it with lifespan=horsies.integrations.starlette.lifespan(app)",
        )
    return found
