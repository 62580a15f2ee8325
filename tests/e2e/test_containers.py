"""Workers as containers run them: on a read-only file system, without rights, and scaled from zero and back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from horsies import TaskResult
from tests.e2e.observing import until_status
from tests.support.waiting import eventually
from tests.support.workers import Workplace

Db = psycopg.Connection[dict[str, Any]]
MANIFESTS = Path(__file__).parents[2] / "examples" / "deploy" / "kubernetes.yaml"

APP = """
app = Horsies()

@app.task("add")
def add(x: int, y: int) -> int:
    return x + y

@app.task("write")
def write(path: str) -> str:
    try:
        Path(path).write_text("written")
    except OSError as error:
        return os.strerror(error.errno)
    return "written"

@app.task("rights")
def rights() -> str:
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))

@app.task("wait_for")
def wait_for(gate: str) -> bool:
    while not os.path.exists(gate):
        time.sleep(0.01)
    return True
"""

# Makes everything read-only but the folder "scratch", as a container with a volume for /tmp, and gives up all rights.
CONFINE = """
set -e
mount -o remount,bind,ro /
folder=$(findmnt --noheadings --output TARGET --target .)
[ "$folder" = / ] || mount -o remount,bind,ro "$folder"
mount -t tmpfs tmpfs scratch
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""
WRAPPER = ["unshare", "--mount", "sh", "-c", CONFINE, "sh"]


def _can_confine() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "findmnt", "setpriv"))):
        return False
    probe = ["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_confine(), reason="making a file system read-only takes root and unshare(1)")
def test_a_worker_runs_on_a_read_only_file_system_without_rights(workplace: Workplace) -> None:
    workplace.write(APP)
    scratch = workplace.folder / "scratch"
    scratch.mkdir()
    workplace.env |= {"TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    tasks = workplace.load()
    worker = workplace.start("--processes=1", wrapper=WRAPPER)

    denied = tasks.write.delay(str(workplace.folder / "elsewhere"))
    written = tasks.write.delay(str(scratch / "file"))

    assert tasks.add.delay(2, 3).result(timeout=20) == 5
    assert int(tasks.rights.delay().result(timeout=20), 16) == 0
    assert denied.result(timeout=20) == "Read-only file system"
    assert written.result(timeout=20) == "written"
    assert worker.stop() == 0


def waiting(db: Db) -> int:
    """Return the number by which the manifests scale the workers."""
    documents = yaml.safe_load_all(MANIFESTS.read_text())
    [scaled] = [each for each in documents if each["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    [row] = db.execute(query.encode()).fetchall()
    [number] = row.values()
    return number


def test_workers_scale_from_zero_with_the_first_task_and_back_when_all_are_done(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(APP)
    tasks = workplace.load()
    assert waiting(db) == 0

    first = tasks.add.send(2, 3).unwrap()
    assert waiting(db) == 1
    worker = workplace.start("--processes=1")

    assert first.get(20_000) == TaskResult(ok=5)
    eventually(lambda: waiting(db) == 0, what="no work being left")
    assert worker.stop() == 0


def test_a_worker_that_is_scaled_down_hands_back_all_that_it_has_not_begun(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(APP)
    tasks = workplace.load()
    gate = workplace.folder / "gate"
    worker = workplace.start("--processes=1", "--prefetch-buffer=3")
    running = tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, running, "RUNNING")
    held = [tasks.add.send(number, 1).unwrap() for number in range(3)]
    for handle in held:
        until_status(db, handle, "CLAIMED")

    worker.signal(signal.SIGTERM)
    for handle in held:
        until_status(db, handle, "PENDING")
    assert waiting(db) == 4  # the task that still runs, too
    gate.touch()

    assert worker.wait() == 0
    assert running.get(20_000) == TaskResult(ok=True)
    assert waiting(db) == 3
    workplace.start("--processes=1")
    assert [handle.get(20_000).ok_value for handle in held] == [1, 2, 3]
