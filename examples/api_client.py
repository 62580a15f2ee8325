"""Call an API that limits its requests and is busy now and then: a rate limit for the whole cluster, and retries.

$ python examples/api_client.py
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from running import worker

from horsies import Horsies, RetryPolicy, TaskError, TaskResult

app = Horsies()
calls = 8


@app.task(
    "api.price",
    rate_limit="20/s",
    retry_policy=RetryPolicy.exponential(1, max_retries=5, auto_retry_for=["API_BUSY"], jitter=False),
    timeout_ms=10_000,
)
def price(base: str, article: int) -> TaskResult[int, TaskError]:
    """Fetch one price. A task that waits for the rate limit or for a retry occupies no process."""
    try:
        with urllib.request.urlopen(f"{base}/prices/{article}", timeout=5) as answer:  # noqa: S310  our own address
            return TaskResult(ok=int(answer.read()))
    except urllib.error.HTTPError as error:
        code = "API_BUSY" if error.code == 503 else "API_REFUSED"
        return TaskResult(err=TaskError(error_code=code, message=f"HTTP {error.code}"))


class Api(BaseHTTPRequestHandler):
    """Returns prices; the first request for article 3 is answered with 503."""

    requests: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self.requests[self.path] += 1
        busy = self.path.endswith("/3") and self.requests[self.path] == 1
        self.send_response(503 if busy else 200)
        self.end_headers()
        self.wfile.write(b"" if busy else str(int(self.path.rpartition("/")[2]) * 100).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def api() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    with api() as base, worker(__file__):
        handles = price.send_many([(base, article) for article in range(1, calls + 1)]).unwrap()
        prices = [handle.get(timeout_ms=60_000).unwrap() for handle in handles]
    print(f"{len(prices)} prices, {sum(prices)} in all, {sum(Api.requests.values())} calls")


if __name__ == "__main__":
    main()
