"""What a worker logs, and how."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys

import pytest

from horsies.logs import JsonFormatter, TextFormatter

APP = """
app = Horsies(AppConfig({settings}))
logging_set_up = {setup}
"""

ADD = """
@app.task("add")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""


def record(message: str, **extra) -> logging.LogRecord:
    made = logging.LogRecord("horsies.worker", logging.INFO, __file__, 1, message, (), None)
    vars(made).update(extra)
    return made


def test_a_json_line_holds_the_message_and_its_extras():
    line = JsonFormatter().format(record("two\nlines", task_id="7", at=object))

    told = json.loads(line)
    assert "\n" not in line
    assert told["message"] == "two\nlines"
    assert (told["level"], told["logger"], told["task_id"]) == ("INFO", "horsies.worker", "7")
    assert set(told) == {"time", "level", "logger", "message", "task_id", "at"}


def test_a_json_line_holds_the_traceback():
    try:
        raise ValueError("no licence")
    except ValueError as error:
        made = record("failed", exc_info=(ValueError, error, error.__traceback__))

    assert "no licence" in json.loads(JsonFormatter().format(made))["exception"]


def test_text_lines_are_aligned():
    line = TextFormatter().format(record("hello"))

    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  INFO      hello", line)


def test_what_is_logged_forges_no_line_of_text():
    forged = "2030-01-01 00:00:00.000  CRITICAL  all is lost"
    try:
        raise ValueError(f"no\n{forged}")
    except ValueError as error:
        made = record(
            f"a\n{forged}\rb\x1b[2K\x85c\u2028d\te", exc_info=(ValueError, error, error.__traceback__)
        )

    first, *rest = TextFormatter().format(made).splitlines()

    assert first.endswith("INFO      a")
    assert rest[0] == f"    {forged}\\rb\\x1b[2K\\x85c\\u2028d\te"
    assert rest[-1] == f"    {forged}"
    assert all(line.startswith("    ") for line in rest)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [("logging.basicConfig(format='mine %(message)s')", "mine beware"), ("pass", "WARNING   beware")],
)
def test_warnings_of_others_are_heard_once(setup, expected):
    script = f"""
import logging
from horsies import logs
{setup}
logs.configure("INFO", "text")
logging.getLogger("theirs").warning("beware")
logging.getLogger("theirs").info("hush")
"""

    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr

    (line,) = said.splitlines()
    assert line.endswith(expected)


def test_a_worker_says_what_it_does_in_text(workplace):
    workplace.write(APP.format(settings="", setup=None))

    worker = workplace.start("--processes=1")

    last = next(line for line in worker.log.splitlines() if "Concurrency config" in line)
    assert last.endswith(
        "INFO      Concurrency config: processes=1, cluster_wide_cap=unlimited, max_claim_per_worker=1, max_claim_batch=0"
    )


def test_a_worker_says_what_it_does_in_json(workplace):
    workplace.write(APP.format(settings="log_format='json'", setup=None))

    worker = workplace.start("--processes=1")
    worker.stop()

    told = [json.loads(line) for line in worker.log.splitlines()]
    assert any(line["message"].startswith("Concurrency config: processes=1") for line in told)


def test_a_quiet_worker_works_without_a_word(workplace):
    workplace.write(APP.format(settings="", setup=None) + ADD)
    worker = workplace.start("--processes=1", "--loglevel=ERROR", ready=False)

    result = workplace.load().add.send(2, 3).unwrap().get(timeout_ms=20_000)

    assert result.ok_value == 5
    assert worker.stop() == 0
    assert worker.log == ""


@pytest.mark.parametrize("setup", ["__import__('logging').basicConfig(format='mine %(message)s')", "None"])
def test_a_line_is_logged_once_whatever_the_user_has_set_up(workplace, setup):
    workplace.write(
        APP.format(settings="", setup=setup) + "\n__import__('logging').getLogger('theirs').info('hush')"
    )

    log = workplace.start("--processes=1").log

    assert log.count("Concurrency config") == 1
    assert "hush" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_exits_with_0(workplace, number):
    workplace.write(APP.format(settings="", setup=None))
    worker = workplace.start("--processes=1")

    worker.signal(number)

    assert worker.wait() == 0
    assert "Traceback" not in worker.log
