"""What is secret stays so, and no line of the log is anyone's but the worker's."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.errors import HorsiesError
from tests.e2e.observing import Db, descendants
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

FORGED = "2030-01-01 00:00:00.000  CRITICAL  all is lost"

APP = f"""
FORGED = {FORGED!r}
app = Horsies(AppConfig.for_database_url(
    URL,
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[
        CustomQueueConfig(name="default", max_concurrency=None), CustomQueueConfig(name="q\\r" + FORGED + "\\x1b[2K")
    ],
))

@app.task("pid", queue_name="default")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("async_pid", queue_name="default")
async def async_pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("die\\n" + FORGED, queue_name="default")
def die() -> TaskResult[int, TaskError]:
    os._exit(1)
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1", "--loglevel=DEBUG")


def password_of(url: str) -> str:
    password = conninfo_to_dict(url)["password"]
    assert isinstance(password, str)
    return password


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_no_process_of_a_worker_shows_the_password_on_its_command_line(
    workplace: Workplace, method: str
) -> None:
    office = staffed(workplace, APP, "--processes=1", f"--start-method={method}")
    children = {
        task.send().unwrap().get(20_000).ok_value for task in (office.tasks.pid, office.tasks.async_pid)
    }

    processes = {office.worker.pid, *descendants(office.worker.pid)}

    assert len(children) == 2
    assert children < processes
    secret = password_of(workplace.database_url).encode()
    for pid in processes:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_lost_connection_is_logged_without_the_password(office: Office, shared_db: Db) -> None:
    assert office.tasks.pid.send().unwrap().get(20_000).is_ok()  # so that it is connected

    shared_db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'horsies-worker'"
    )
    eventually(
        lambda: re.search("next try in|lost its connection", office.worker.log), what="a word about it"
    )

    assert office.tasks.pid.send().unwrap().get(20_000).is_ok()
    assert password_of(office.place.database_url) not in office.worker.log


def test_no_name_of_a_task_or_queue_forges_a_line_of_the_log(office: Office) -> None:
    office.tasks.die.send().unwrap().get(20_000)
    eventually(lambda: "was lost" in office.worker.log, what="the crash being logged")

    log = office.worker.log

    assert log.count("all is lost") >= 2
    assert "\x1b" not in log
    assert [line for line in re.split(r"[\r\n]", log) if line.startswith("2030")] == []


SECRETS = ("s3cr%65t!x", "s3cret!x")
URLS = {
    "in its place": "postgresql://ann:{}@127.0.0.1:1/app",
    "as a parameter": "postgresql://127.0.0.1:1/app?user=ann&password={}",
    "under an encoded name": "postgresql://127.0.0.1:1/app?p%61ssword={}",
    "where libpq stumbles over it": "postgresql://ann:{}%zz@127.0.0.1:1/app",
    "as a parameter that libpq stumbles over": "postgresql://127.0.0.1:1/app?password={}%zz",
    "without a host": "postgresql://ann:{}/app",
}


@pytest.fixture(params=[name for name in URLS if name != "without a host"])
def secret_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database that is not there, with a password in it."""
    return URLS[request.param].format(SECRETS[0])


@pytest.fixture
def stray_app(secret_url: str) -> Horsies:
    return Horsies(AppConfig.for_database_url(secret_url))


def test_no_error_repr_or_log_of_a_producer_tells_the_password(
    stray_app: Horsies, caplog: pytest.LogCaptureFixture
) -> None:
    @stray_app.task("add")
    def add(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    handle = stray_app.handle("01960000-0000-7000-8000-000000000000")
    attempts: list[Callable[[], Any]] = [
        lambda: add.send(1),
        lambda: asyncio.run(add.send_async(1)),
        lambda: handle.get(1_000),
        handle.info,
        lambda: asyncio.run(stray_app.get_broker().migrate()),
    ]

    with caplog.at_level(logging.DEBUG):
        said = [outcome_of(attempt) for attempt in attempts]
        said += [repr(stray_app.config), repr(stray_app), repr(stray_app.get_broker()), str(vars(add))]
        stray_app.config.log_config()

    assert "Configuration" in caplog.text
    for secret in SECRETS:
        assert secret not in caplog.text + "".join(said)


def test_a_url_in_which_libpq_would_not_find_the_password_is_refused_without_telling_it() -> None:
    with pytest.raises(HorsiesError) as refused:
        AppConfig.for_database_url(URLS["without a host"].format(SECRETS[0]))

    for secret in SECRETS:
        assert secret not in str(refused.value) + repr(refused.value)


def outcome_of(attempt: Callable[[], Any]) -> str:
    try:
        return repr(attempt())
    except Exception:  # noqa: BLE001  whatever it is, it is looked through
        return traceback.format_exc()


@pytest.mark.parametrize("command", ["worker app:app", "check app:app --live", "migrate", "migrate --sql"])
def test_no_command_tells_the_password(workplace: Workplace, command: str) -> None:
    workplace.write(
        "app = Horsies(AppConfig(resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_attempts=1)))"
    )
    debug = [] if "migrate" in command else ["--loglevel=DEBUG"]
    for name in ("under an encoded name", "where libpq stumbles over it", "without a host"):
        workplace.env["HORSIES_DATABASE_URL"] = URLS[name].format(SECRETS[0])

        ran = workplace.run(*command.split(), *debug)

        assert ran.returncode == 1
        assert "error[HRS-" in ran.stderr
        for secret in SECRETS:
            assert secret not in ran.stdout + ran.stderr
