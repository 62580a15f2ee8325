"""FastAPI: the `lifespan` of the Starlette integration, and the app as a dependency.

>>> web = FastAPI(lifespan=lifespan(app))
>>> @web.get("/tasks/{task_id}")
... async def status(task_id: str, queue: Queue) -> str:
...     return (await queue.handle(task_id).info_async()).unwrap().status
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from horsies.app import Horsies
from horsies.integrations.starlette import lifespan, queue_of

__all__ = ["Queue", "lifespan", "queue"]


def queue(request: Request) -> Horsies:
    """Return the app passed to `lifespan`, for `Depends`; tests can override it with `dependency_overrides`."""
    return queue_of(request)


Queue = Annotated[Horsies, Depends(queue)]
