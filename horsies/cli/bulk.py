"""Pass events on to Elasticsearch or OpenSearch, over the `_bulk` endpoint that both have.

An event has the same id however often it is sent, so that a repeat does not double it. What the other side refuses for
good is counted and shown; while it is busy or away, the events wait. Credentials are never printed.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from horsies.errors import ErrorCode, HorsiesError, mask_passwords
from horsies.events import Event

TIMEOUT_SECONDS = 30.0
# Too many requests, and what a proxy or a node says that is overloaded, restarting or away.
_LATER = frozenset({429, 500, 502, 503, 504})


class Outcome(NamedTuple):
    """What has become of events: those to be sent again, how many were refused for good, and what was said about it."""

    left: Sequence[Event] = ()
    refused: int = 0
    said: str = ""


class Bulk:
    """One index on one server."""

    def __init__(self, url: str, index: str, api_key: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("use a URL such as https://user:password@logs.example.org:9200")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        self._url = urllib.parse.urlunsplit((parts.scheme, netloc, f"{parts.path.rstrip('/')}/_bulk", "", ""))
        self._index = index
        self.name = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}/{index}"
        self._headers = {"Content-Type": "application/x-ndjson"}
        if api_key:
            self._headers["Authorization"] = f"ApiKey {api_key}"
        elif parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def send(self, events: Sequence[Event]) -> Outcome:
        """Have events stored, and wait for the answer; raises when none ever will be."""
        request = urllib.request.Request(  # noqa: S310  http or https, as was checked
            self._url, data=self._body(events), headers=self._headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _LATER:
                    return Outcome(events, said=f"it answered {error.code}")
                raise self._refusal(error) from error
        # An answer that is cut off or is no answer at all comes of a server that goes away, too.
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            return Outcome(events, said=mask_passwords(str(error)) or type(error).__name__)
        return _read(answer, events)

    def _body(self, events: Sequence[Event]) -> bytes:
        lines: list[bytes] = []
        for event in events:
            lines.append(msgspec.json.encode({"index": {"_index": self._index, "_id": event.id}}))
            lines.append(msgspec.json.encode({"@timestamp": event.at, **event.facts()}))
        return b"\n".join([*lines, b""])

    def _refusal(self, error: urllib.error.HTTPError) -> HorsiesError:
        said = error.read(500).decode(errors="replace")
        return HorsiesError(
            f"{self.name} refuses events: {error.code} {error.reason}",
            code=ErrorCode.EVENTS_REFUSED,
            notes=[mask_passwords(said)] if said else [],
            help_text="check --to and --index, and the login in the URL or HORSIES_EVENTS_API_KEY",
        )


def _read(answer: dict[str, Any], events: Sequence[Event]) -> Outcome:
    """An answer has an outcome for each event, in order."""
    if not answer.get("errors"):
        return Outcome()
    outcomes: list[dict[str, Any]] = [next(iter(item.values())) for item in answer["items"]]
    left = [event for event, said in zip(events, outcomes, strict=True) if said.get("status") in _LATER]
    wrong = [said["error"] for said in outcomes if said.get("error")]
    refused = len(wrong) - len(left)
    return Outcome(left, refused, str(wrong[0].get("reason", wrong[0])) if wrong else "")
