"""What probes are told about a worker."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request

import pytest

from horsies.errors import ConfigurationError
from horsies.storage.health import Sign, judge
from horsies.worker.health import STUCK_SECONDS, Health, Signs, examine

NOW = 1_000.0
WELL = Signs(turned_at=NOW, beaten_at=NOW, longest_wait=30.0, holds_lease=True, is_stopping=False)
LATE = NOW - STUCK_SECONDS - WELL.longest_wait - 1


def test_a_worker_that_turns_and_holds_its_lease_is_well() -> None:
    assert examine(WELL, NOW) == ([], [])
    assert examine(WELL, NOW + WELL.longest_wait) == ([], [])


@pytest.mark.parametrize(("field", "what"), [("turned_at", "claims"), ("beaten_at", "beats")])
def test_a_loop_that_stands_still_is_neither_alive_nor_ready(field: str, what: str) -> None:
    stuck, unready = examine(WELL._replace(**{field: LATE}), NOW)

    assert stuck == unready == [f"the loop that {what} has stood still for 61 s"]


def test_a_restart_is_not_asked_for_while_the_database_is_away_or_the_worker_stops() -> None:
    stuck, unready = examine(WELL._replace(holds_lease=False, is_stopping=True), NOW)

    assert stuck == []
    assert len(unready) == 2


def ask(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_stuck_worker_says_so_itself() -> None:
    """Nothing turns here while it is asked: the answer comes from another thread."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    stuck = WELL._replace(turned_at=time.monotonic() - 100, beaten_at=time.monotonic())
    health = Health(lambda: stuck)
    health.start("127.0.0.1", port)
    try:
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            Health(lambda: stuck).start("127.0.0.1", port)
        answers = {path: ask(port, path) for path in ("/live", "/ready", "/", "/other")}
    finally:
        health.close()

    assert [status for status, _ in answers.values()] == [503, 503, 503, 404]
    assert "stood still for 100 s" in str(answers["/live"][1]["reasons"])


@pytest.mark.parametrize(
    ("states", "ok", "words"),
    [
        ([], False, "no worker has registered on here"),
        (["dead"], False, "has not beaten for 5 s"),
        (["draining"], False, "claims nothing more"),
        (["dead", "idle"], True, "is idle"),
        (["suspended"], True, "is suspended"),
    ],
)
def test_one_worker_that_is_well_is_enough(states: list[str], ok: bool, words: str) -> None:
    verdict = judge([Sign("1", 7, state, 5.0) for state in states], "here")

    assert verdict.ok is ok
    assert words in verdict.reason
