"""Serve a dashboard with uvicorn in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from horsies.web.dashboard import Server, create_dashboard
from tests.support.waiting import eventually


@contextmanager
def dashboard(source: Any, **settings: Any) -> Iterator[str]:
    """Serve the dashboard of an app or a database, and yield its address."""
    server = Server(create_dashboard(source, **settings), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, name="dashboard")
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), what="the dashboard")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
