"""Serve the dashboard with uvicorn, so that it stops when it is told to, whoever still follows."""

from __future__ import annotations

import socket

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.hang_up()
        await super().shutdown(sockets)
