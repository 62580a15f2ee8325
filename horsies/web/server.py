"""Serve the dashboard with uvicorn, so that it stops when it is told to, whoever still follows."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from horsies.web.dashboard import Dashboard

STOP_SECONDS = 2


class Server(uvicorn.Server):
    """A server of one dashboard."""

    def __init__(self, dashboard: Dashboard, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                dashboard,
                host=host,
                port=port,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS,
                ws="none",
            )
        )
        self._dashboard = dashboard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's own signature
        """A signal ends it, the second at once; it has done what it was told, and no exit code says otherwise."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.hang_up()
        await super().shutdown(sockets)
