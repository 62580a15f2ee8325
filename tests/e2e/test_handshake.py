"""A real child and its tokens: whatever the timing, a call is begun by the child or taken back, and never both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from horsies.executor import protocol
from horsies.executor.protocol import ChildKind
from tests.e2e.office import URL
from tests.e2e.pipes import Line, child, settings_for
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("begin")
def begin(path: str, ticket: int) -> int:
    begun = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(begun, f"{ticket}\\n".encode())
    os.close(begun)
    return ticket
"""
CALLS = 10_000
LONGEST_FRAME = 64
MOST_AHEAD = 400


@pytest.fixture
def begun(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the calls of a child write down their tickets as they begin."""
    workplace.write(URL + APP)
    monkeypatch.setenv("HORSIES_DATABASE_URL", workplace.database_url)
    return workplace.folder / "begun"


def _tickets(begun: Path) -> list[int]:
    return [int(line) for line in begun.read_text().split()] if begun.exists() else []


def _call(ticket: int, begun: Path) -> protocol.Call:
    kwargs = f'{{"path":"{begun}","ticket":{ticket}}}'
    until = time.monotonic() + 600
    return protocol.Call(ticket, str(uuid4()), "begin", None, kwargs, "default", 1, 0, None, until, 1, None)


def _frames(random: Random) -> Iterator[range]:
    first = 1
    while first <= CALLS:
        size = min(random.randint(1, LONGEST_FRAME), CALLS + 1 - first)
        yield range(first, first + size)
        first += size


def _ended(line: Line) -> list[int]:
    """Return the tickets of the calls that the child has answered since the last time."""
    tickets = list[int]()
    for message in line.hear_now():
        assert isinstance(message, protocol.Outcome)
        assert message.ok, message
        tickets.append(message.ticket)
    return tickets


def test_each_call_is_begun_by_the_child_or_taken_back(workplace: Workplace, begun: Path) -> None:
    random = Random(7)
    taken_back, ended = list[int](), list[int]()

    def answered(count: int) -> bool:
        ended.extend(_ended(line))
        return len(ended) + len(taken_back) >= count

    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        assert isinstance(line.hear(), protocol.Hello)
        for frame in _frames(random):
            eventually(lambda frame=frame: answered(frame[-1] - MOST_AHEAD), what="room in the pipes")
            line.say(*(_call(ticket, begun) for ticket in frame))
            if random.random() < 0.5:
                time.sleep(random.random() * 0.002)  # so that the child gets to any place in the frame
                taken_back += line.take_back()
        eventually(lambda: answered(CALLS), what="an answer for each call")

    assert sorted(ended + taken_back) == list(range(1, CALLS + 1))
    assert _tickets(begun) == ended == sorted(ended)
    assert min(len(ended), len(taken_back)) > CALLS / 20


@pytest.mark.parametrize("seed", range(5))
def test_the_calls_that_a_killed_child_has_not_begun_can_be_taken_back(
    workplace: Workplace, begun: Path, seed: int
) -> None:
    random = Random(seed)
    with child(settings_for(workplace), ChildKind.SERIAL) as line:
        assert isinstance(line.hear(), protocol.Hello)
        line.say(*(_call(ticket, begun) for ticket in range(1, MOST_AHEAD + 1)))
        eventually(lambda: len(_tickets(begun)) > random.random() * MOST_AHEAD / 2, what="some calls begun")
        line.process.kill()
        line.process.wait()
        taken_back = line.take_back()

    ran = _tickets(begun)
    assert taken_back == list(range(taken_back[0], MOST_AHEAD + 1))
    assert ran == list(range(1, len(ran) + 1))
    # At most one call is in doubt: the child may have died between its token and its first line.
    assert taken_back[0] - len(ran) in (1, 2)
