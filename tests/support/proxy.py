"""A TCP proxy in front of PostgreSQL that loses what it is told to lose.

It knows just enough of the protocol to tell where a statement begins and where its answer ends, and so can do what a
bad network does at the worst moment: let the server carry out a statement and never tell the client.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
Fault = Literal["reply", "statement", "nothing"]

# How a client's message begins that asks for something: Parse, Bind or Query.
_STATEMENTS = (b"P", b"B", b"Q")
_READY = b"Z\x00\x00\x00\x05"
# How the server says that it waits for the rows of a COPY: not the answer yet.
_GO_ON = b"G"
_APPLICATION = re.compile(rb"application_name\0([^\0]*)\0")
DEAF_SECONDS = 0.05


class Proxy:
    """Between a client and the server of a URL; `url` is where to connect instead."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._links: set[_Link] = set()
        self._fault: Fault | None = None
        self._skip = 0
        self._of = b""
        self._by = ""
        self._trap: Callable[[], None] | None = None
        self._share = 0.0
        self._random = Random()
        self._open = asyncio.Event()
        self._open.set()
        self.deaf = ""  # connections of applications of this name hear and say nothing
        self.refusing = False
        self._closing = False
        self.delay = 0.0  # seconds that everything takes, each way
        self.accepted = 0
        self.lost = 0
        self.statements = 0

    @property
    def url(self) -> str:
        login = f"{self._server.username}:{self._server.password}"
        return self._server._replace(netloc=f"{login}@127.0.0.1:{self._port}").geturl()

    def lose_reply(self, skip: int = 0, of: bytes = b"") -> None:
        """The next statement, or a later one, is carried out, but its answer never arrives.

        With `of`, only statements count whose text holds that; a prepared one is sent without its text.
        """
        self._fault, self._skip, self._of, self._by = "reply", skip, of, ""

    def trap(self, spring: Callable[[], None], fault: Fault, of: bytes, by: str = "") -> None:
        """Call a function when the next statement with this text comes, and let the fault befall the statement.

        If its reply is lost, the call comes when the server has carried it out. With `by`, only statements of connections of
        that application count.
        """
        self._trap, self._fault, self._skip, self._of, self._by = spring, fault, 0, of, by

    def spring(self) -> None:
        """Call the function of the trap, once."""
        spring, self._trap = self._trap, None
        if spring is not None:
            spring()

    def lose_statement(self, skip: int = 0) -> None:
        """The next statement, or a later one, never reaches the server."""
        self._fault, self._skip, self._of, self._by = "statement", skip, b"", ""

    def lose_replies(self, share: float, random: Random) -> None:
        """From now on, so large a share of all statements is carried out without an answer; 0 ends that."""
        self._share, self._random = share, random

    def hold(self) -> None:
        """Keep whatever arrives, on old connections and new ones, and say nothing: a network that swallows everything."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Let everything pass that was held."""
        self._loop.call_soon_threadsafe(self._open.set)

    def strand(self) -> None:
        """Nothing passes any more over the connections that there are, and nobody is told; new ones are as good as any."""
        self._call(self._strand())

    def cut(self) -> None:
        """Reset every connection there is."""
        self._call(self._cut())

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._listener = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _cut(self) -> None:
        for link in self._links:
            link.reset()

    async def _strand(self) -> None:
        for link in self._links:
            link.is_stranded = True

    async def _close(self) -> None:
        # A connection that was accepted a moment ago cannot be served once the listener is closed, and would leak.
        for listening in self._listener.sockets:
            self._loop.remove_reader(listening.fileno())
        self._closing = True
        self._open.set()
        self.deaf = ""
        await self._cut()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        await self.passage()
        if self.refusing:
            _reset(writer)
            return
        try:
            upstream = await asyncio.open_connection(self._server.hostname, self._server.port)
        except OSError:  # the server is away, and so are we
            _reset(writer)
            return
        link = _Link(self, (reader, writer), upstream)
        if self._closing:  # the links that existed were cut while this one was being opened
            link.reset()
            return
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def passage(self, application: str = "") -> None:
        """Wait as long as the way through takes."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()
        while self.deaf and self.deaf == application:
            await asyncio.sleep(DEAF_SECONDS)

    def next_fault(self, data: bytes, application: str = "") -> Fault | None:
        """What befalls the statement that has just come."""
        self.statements += 1
        if self._share and self._random.random() < self._share:
            self.lost += 1
            return "reply"
        if self._fault is None or self._of not in data or (self._by and self._by != application):
            return None
        if self._skip > 0:
            self._skip -= 1
            return None
        fault, self._fault = self._fault, None
        self.lost += 1
        if fault != "reply":
            self.spring()
        return fault


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._answering = False
        self._swallowing = False
        self.is_stranded = False
        self._application = ""

    async def run(self) -> None:
        both = [asyncio.create_task(self._upstream()), asyncio.create_task(self._downstream())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self.reset()
        await asyncio.gather(*both, return_exceptions=True)

    def reset(self) -> None:
        _reset(self._client)
        self._server.transport.abort()

    async def _upstream(self) -> None:
        while data := await self._client_reader.read(1 << 16):
            if name := _APPLICATION.search(data):
                self._application = name[1].decode()
            if not self._answering and data.startswith(_STATEMENTS):
                self._answering = True
                fault = self._proxy.next_fault(data, self._application)
                if fault == "statement":
                    return
                self._swallowing = fault == "reply"
            await self._proxy.passage(self._application)
            if not self.is_stranded:
                self._server.write(data)

    async def _downstream(self) -> None:
        while data := await self._server_reader.read(1 << 16):
            is_ready = _READY in data
            await self._proxy.passage(self._application)
            if self.is_stranded:
                continue
            if not self._swallowing or data.startswith(_GO_ON):
                self._client.write(data)
            elif is_ready:
                self._proxy.spring()
                return
            if is_ready:
                self._answering = False


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close as a broken network does, so that the other side sees an error and not an end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
