"""The proxy of the tests ends by itself, whatever its clients do."""

from __future__ import annotations

import socket
from contextlib import closing

from tests.support.proxy import Proxy
from tests.support.waiting import eventually


def test_a_connection_that_is_opened_while_the_proxy_closes_does_not_hold_it_up() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with Proxy(f"postgresql://user:secret@127.0.0.1:{port}/db") as proxy:
            proxy.hold()  # the client is accepted, and its connection to the server is opened when the proxy closes
            client = socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1].split("/")[0])))
            client.settimeout(10)
            eventually(lambda: proxy.accepted == 1, what="the client being accepted")

        with closing(client):
            try:
                heard = client.recv(1)
            except ConnectionResetError:
                heard = b""
    assert heard == b""
