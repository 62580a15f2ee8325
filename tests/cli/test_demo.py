"""`horsies demo`: the tour keeps its promises, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from horsies import TaskError, TaskResult, embedded
from horsies.cli.demo import SCENARIOS, compare
from tests.cli.conftest import refused
from tests.support.waiting import eventually
from tests.support.workers import Workplace


class Demo:
    """A running `horsies demo`, its worker found by its descent."""

    def __init__(self, workplace, *arguments: str) -> None:
        self._out = workplace.folder.parent / f"{workplace.folder.name}-demo.log"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "horsies", "demo", *arguments],
                cwd=workplace.folder,
                env=workplace.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._out.read_text()

    def wait_for(self, words: str) -> None:
        eventually(lambda: words in self.said or self.process.poll() is not None, 60, f"{words!r}")
        assert words in self.said

    def interrupt(self) -> None:
        """As a terminal does it: everyone in the foreground group hears it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def descendants(self) -> set[int]:
        return _descendants(self.process.pid)


def _descendants(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = {int(child) for child in children.read_text().split()} if children.exists() else set()
    return found.union(*(_descendants(child) for child in found))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def new_server(home: Path) -> Iterator[str]:
    """A server on which no demo has ever run."""
    try:
        yield embedded.ensure(home, settings={"fsync": "off"}, announce=lambda _: None).url
    finally:
        embedded.stop(home, remove=True)


@pytest.fixture(scope="module")
def demo_server_url(tmp_path_factory) -> Iterator[str]:
    """A server for demos that run one after another: all demos on a server share a database, crashes included."""
    with new_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def workplace(workplace, demo_server_url) -> Workplace:
    workplace.env["HORSIES_DATABASE_URL"] = demo_server_url
    return workplace


@pytest.fixture
def start(workplace):
    """Start a demo in an empty folder; whatever is left of it is killed in the end."""
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(workplace, *arguments))
        return started[-1]

    yield start
    for demo in started:
        for pid in (demo.process.pid, *demo.descendants()):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        demo.process.wait()


def test_the_tour_keeps_its_promises_and_writes_nothing_here(workplace):
    result = workplace.run("demo", "--once", seconds=90)

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    for words in (
        "CARD_DECLINED",
        "UNHANDLED_EXCEPTION",
        "TASK_TIMEOUT",
        "WORKER_CRASHED",
        "TASK_EXPIRED",
        "'fetched'",
    ):
        assert words in result.stdout
    assert list(workplace.folder.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("words", ["Starting a worker", "runs a second later", "sent at once"])
def test_an_interrupted_tour_ends_quietly_and_takes_its_worker_with_it(start, words):
    demo = start("--once")
    demo.wait_for(words)
    family = demo.descendants()

    demo.interrupt()

    assert demo.process.wait(30) == 130
    assert "Traceback" not in demo.said
    eventually(lambda: not any(map(is_alive, family)), what="every process having ended")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_killed_demo_takes_its_worker_with_it(start):
    demo = start("--once")
    demo.wait_for("A task")
    family = demo.descendants()
    assert family

    demo.process.kill()

    eventually(lambda: not any(map(is_alive, family)), what="every process having ended")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_once_worker_and_dashboard_run_on_until_they_are_stopped(start, number):
    demo = start()
    demo.wait_for("Ctrl-C stops it")
    family = demo.descendants()
    assert family
    address = re.search(r"The dashboard is at (http://127.0.0.1:\d+/)", demo.said)
    assert address is not None
    with urlopen(address[1]) as page:
        assert b"horsies" in page.read()

    demo.process.send_signal(number)

    assert demo.process.wait(30) == 0
    assert "Traceback" not in demo.said
    eventually(lambda: not any(map(is_alive, family)), what="every process having ended")


def test_a_server_that_is_not_there_is_reported(workplace, deaf_port):
    workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://ann:s3cret@127.0.0.1:{deaf_port}/app"

    result = workplace.run("demo", "--once")

    refused(result, "HRS-413")
    assert "s3cret" not in result.stderr


def test_a_role_that_may_not_create_databases_is_told_what_to_ask_for(workplace, tmp_path_factory):
    with new_server(tmp_path_factory.mktemp("server")) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE ROLE ann LOGIN PASSWORD 's3cret'")
        workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://ann:s3cret@{url.rpartition('@')[2]}"

        result = workplace.run("demo", "--once")

    refused(result, "HRS-412", "CREATE DATABASE horsies_demo OWNER ann")
    assert "s3cret" not in result.stderr


def test_a_broken_promise_is_noticed():
    result = TaskResult(err=TaskError(error_code="CARD_DECLINED"))

    outcome = compare(SCENARIOS[0], None, result, 1.0)

    assert outcome.outcome == "CARD_DECLINED"
    assert outcome.expected == "COMPLETED after 1 attempt with 5"
