"""A mail server that keeps what it gets, and the shop with a database of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from fastapi.testclient import TestClient

from horsies import Horsies

from .app import app
from .web import web


class MailServer(ThreadingTCPServer):
    """Speaks as much SMTP as smtplib needs; it knows no address that begins with `nobody`."""

    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        self.mails: list[str] = []
        super().__init__(("127.0.0.1", port), Conversation)
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def subjects(self) -> list[str]:
        lines = [line for mail in self.mails for line in mail.splitlines()]
        return sorted(line.removeprefix("Subject: ") for line in lines if line.startswith("Subject: "))


class Conversation(StreamRequestHandler):
    server: MailServer  # pyright: ignore[reportIncompatibleVariableOverride]  it is always this one

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            refused = verb == b"RCPT" and b"<nobody" in line
            self.wfile.write(
                b"550 unknown\r\n" if refused else b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n"
            )


@pytest.fixture
def smtp_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a port on which nobody listens yet; the shop sends its mail there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("SMTP_HOST", "127.0.0.1")
    monkeypatch.setenv("SMTP_PORT", str(port))
    return port


@pytest.fixture
def mail_server(smtp_port: int) -> Iterator[MailServer]:
    with MailServer(smtp_port) as server:
        yield server
        server.shutdown()


@pytest.fixture
def client(
    horsies_bind: Callable[[Horsies], Horsies], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """Return a client of the web application, on a database of the test's own."""
    monkeypatch.setenv("SHOP_MEDIA", str(tmp_path))
    horsies_bind(app)
    app.import_task_modules()
    with TestClient(web, raise_server_exceptions=False) as client:
        yield client
