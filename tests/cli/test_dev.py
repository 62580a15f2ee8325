"""One terminal for everything: what it runs is the code as it is now, and nothing of it stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil

from tests.support.waiting import eventually

APP = """
app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[])))

@app.task("version")
def version() -> TaskResult[int, TaskError]:
    return TaskResult(ok={version})
"""


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; what has ended and is not reaped by whoever inherited it does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_changed_file_is_run_as_it_is_now_and_one_interrupt_ends_everything(workplace):
    workplace.write(APP.format(version=1))
    log = workplace.folder / "dev.log"
    with log.open("wb") as out:
        dev = subprocess.Popen(
            [sys.executable, "-m", "horsies", "dev", "app:app", "--processes", "1", "--no-web"],
            cwd=workplace.folder, env=workplace.env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        version = workplace.load().version
        assert version.send().unwrap().get(timeout_ms=30_000).unwrap() == 1
        first = psutil.Process(dev.pid).children(recursive=True)

        workplace.write("def broken(:")
        eventually(
            lambda: "worker ended with exit code 1" in log.read_text(), what="the broken file being told"
        )
        assert not any(map(is_alive, first))
        workplace.write(APP.format(version=2))
        assert version.send().unwrap().get(timeout_ms=30_000).unwrap() == 2

        second = psutil.Process(dev.pid).children(recursive=True)
        assert second
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    finally:
        dev.kill()
        dev.wait()
    said = log.read_text()
    assert not any(map(is_alive, second))
    assert "worker | error[HRS-210]: importing 'app' failed with SyntaxError" in said
    assert "dev    | app.py has changed: starting anew" in said
    assert "Scheduler started: 0 schedules" in said
    assert "Traceback" not in said
    assert all(line.startswith(("dev    |", "worker |")) for line in said.splitlines())


def test_without_an_app_it_says_how_to_name_one(workplace):
    result = workplace.run("dev")

    assert result.returncode == 2
    assert "give LOCATOR as package.module:app" in result.stderr
