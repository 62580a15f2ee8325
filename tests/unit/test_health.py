"""What probes are told about a worker."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request

import pytest

from horsies.db.queries.workers import WorkerOnHost, host_health
from horsies.errors import ConfigurationError
from horsies.worker.health import STUCK_SECONDS, Health, WorkerStatus, check

NOW = 1_000.0
WELL = WorkerStatus(
    claim_loop_at=NOW, heartbeat_at=NOW, longest_wait=30.0, holds_lease=True, is_stopping=False
)
LATE = NOW - STUCK_SECONDS - WELL.longest_wait - 1


def test_a_worker_that_turns_and_holds_its_lease_is_well() -> None:
    assert check(WELL, NOW) == ([], [])
    assert check(WELL, NOW + WELL.longest_wait) == ([], [])


@pytest.mark.parametrize(("field", "loop"), [("claim_loop_at", "claim"), ("heartbeat_at", "heartbeat")])
def test_a_loop_that_stands_still_is_neither_alive_nor_ready(field: str, loop: str) -> None:
    stuck, unready = check(WELL._replace(**{field: LATE}), NOW)

    assert stuck == unready == [f"the {loop} loop has been stuck for 61 s"]


def test_a_restart_is_not_asked_for_while_the_database_is_away_or_the_worker_stops() -> None:
    stuck, unready = check(WELL._replace(holds_lease=False, is_stopping=True), NOW)

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
    stuck = WELL._replace(claim_loop_at=time.monotonic() - 100, heartbeat_at=time.monotonic())
    health = Health(lambda: stuck)
    health.start("127.0.0.1", port)
    try:
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            Health(lambda: stuck).start("127.0.0.1", port)
        answers = {path: ask(port, path) for path in ("/live", "/ready", "/", "/other")}
    finally:
        health.close()

    assert [status for status, _ in answers.values()] == [503, 503, 503, 404]
    assert "stuck for 100 s" in str(answers["/live"][1]["reasons"])


@pytest.mark.parametrize(
    ("states", "ok", "words"),
    [
        ([], False, "no worker has registered on here"),
        (["dead"], False, "has sent no heartbeat for 5 s"),
        (["draining"], False, "claims no more tasks"),
        (["dead", "idle"], True, "is idle"),
        (["suspended"], True, "is suspended"),
    ],
)
def test_one_worker_that_is_well_is_enough(states: list[str], ok: bool, words: str) -> None:
    verdict = host_health([WorkerOnHost("1", 7, state, 5.0) for state in states], "here")

    assert verdict.ok is ok
    assert words in verdict.reason
