"""Connections for callers that are not async, used in the caller's own thread.

A sync send does not go through the portal: handing work to another thread and back costs more than the insert itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from horsies.config import PostgresConfig
from horsies.storage.database import BY_KEY, connection_settings, connection_string, is_quiet, none_free

SyncConnection = Connection[tuple[Any, ...]]


class DirectDatabase:
    """A few connections shared by the threads of one process."""

    def __init__(self, config: PostgresConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._idle: list[tuple[SyncConnection, float]] = []
        self._free = threading.BoundedSemaphore(config.pool_size + config.max_overflow)
        self._closed = False

    @contextmanager
    def connection(self) -> Generator[SyncConnection]:
        """Borrow a connection; a broken one is not put back."""
        if not self._free.acquire(timeout=self._config.pool_timeout):
            raise none_free(self._config)
        try:
            connection, opened_at = self._take()
            try:
                yield connection
            finally:
                self._put_back(connection, opened_at)
        finally:
            self._free.release()

    def _take(self) -> tuple[SyncConnection, float]:
        while True:
            try:
                connection, opened_at = self._idle.pop()
            except IndexError:  # another thread may have been quicker than any check beforehand
                return self._connect(), time.monotonic()
            if is_quiet(connection):
                return connection, opened_at
            connection.close()

    def _connect(self) -> SyncConnection:
        threshold = None if self._config.pgbouncer_transaction_mode else 2
        settings = connection_settings(self._config, self._name)
        connection = Connection.connect(
            connection_string(self._config.conninfo, **settings), autocommit=True, prepare_threshold=threshold
        )
        if not self._config.pgbouncer_transaction_mode:
            connection.execute(BY_KEY)
        return connection

    def _put_back(self, connection: SyncConnection, opened_at: float) -> None:
        too_old = 0 <= self._config.pool_recycle < time.monotonic() - opened_at
        busy = connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        if self._closed or connection.closed or busy or too_old or len(self._idle) >= self._config.pool_size:
            connection.close()
        else:
            self._idle.append((connection, opened_at))

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()
