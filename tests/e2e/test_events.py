"""A worker tells hooks, logs and probes how it is and what it does."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, events="log"))
FOLDER = Path(__file__).parent

@app.task("flaky", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["SHY"], jitter=False))
def flaky() -> TaskResult[int, TaskError]:
    try:
        (FOLDER / "tried").touch(exist_ok=False)
    except FileExistsError:
        return TaskResult(ok=1)
    return TaskResult(err=TaskError(error_code="SHY", message="not the first time"))

@app.task("hang", timeout_ms=100)
def hang() -> TaskResult[int, TaskError]:
    while True:
        pass

@app.task("late")
def late() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.on("completed")
def broken(event: Event) -> None:
    raise RuntimeError("a hook of the user")

@app.on("*")
def note(event: Event) -> None:
    with (FOLDER / f"told-{event.task_id}").open("a") as told:
        told.write(event.kind + "\\n")
"""


class Systemd:
    """Hears what systemd would hear."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while said := self._socket.recv(100):
            self.heard.append(said.decode())

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.path)
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path_factory.mktemp("run") / "notify")
    yield systemd
    systemd.close()


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace, systemd: Systemd, port: int) -> Office:
    shared_workplace.env |= {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "1000000"}
    return staffed(shared_workplace, APP, "--processes=2", f"--health-port={port}")


def kinds(folder: Path, task_id: str) -> list[str]:
    path = folder / f"told-{task_id}"
    return path.read_text().split() if path.exists() else []


def test_hooks_and_the_log_are_told_what_the_worker_does(office: Office) -> None:
    folder = office.place.folder
    flaky, hang = office.tasks.flaky.send().unwrap(), office.tasks.hang.send().unwrap()
    past = office.tasks.datetime.now(office.tasks.UTC) + office.tasks.timedelta(milliseconds=1)
    late = office.tasks.late.with_options(good_until=past).send().unwrap()

    eventually(lambda: "completed" in kinds(folder, flaky.task_id), what="the hooks being told")
    eventually(
        lambda: kinds(folder, late.task_id) and kinds(folder, hang.task_id)[1:], what="the others' end"
    )

    assert kinds(folder, flaky.task_id) == ["processing", "retry", "processing", "completed"]
    assert kinds(folder, hang.task_id) == ["processing", "timeout"]
    assert kinds(folder, late.task_id) in (["expired"], ["processing", "completed"])
    assert "a hook of the user" in office.worker.log

    def logged_events() -> list[dict[str, Any]]:
        lines = [line[line.index("{") :] for line in office.worker.log.splitlines() if '{"kind"' in line]
        return [event for event in map(json.loads, lines) if event["task_id"] == flaky.task_id]

    # The line of an event is written after its hooks were called.
    logged = eventually(lambda: (found := logged_events())[3:] and found, what="the last line of the log")
    assert [event["kind"] for event in logged] == ["processing", "retry", "processing", "completed"]
    assert [event["attempt"] for event in logged] == [1, 1, 2, 2]
    assert logged[1]["message"] == "not the first time"


def test_a_worker_that_is_well_says_so_to_whoever_asks(office: Office, systemd: Systemd, port: int) -> None:
    for path in ("/live", "/ready", "/"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            assert json.loads(reply.read()) == {"ok": True, "reasons": []}, office.worker.log
    eventually(lambda: "WATCHDOG=1" in systemd.heard, what="a sign of life")
    assert "READY=1" in systemd.heard
    well = office.place.run("health")
    assert (well.returncode, well.stderr) == (0, ""), well.stderr

    office.worker.stop()

    eventually(lambda: "STOPPING=1" in systemd.heard, what="word of the stop")
    gone: subprocess.CompletedProcess[str] = office.place.run("health", "--json")
    assert gone.returncode == 1
    assert "no worker has registered" in json.loads(gone.stdout)["reason"]
