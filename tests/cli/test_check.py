"""`horsies check` and `app.check`: the first phase that finds something reports all it found."""

from __future__ import annotations

import pytest

from horsies import AppConfig, Horsies, OutcomeCode, RetryPolicy, TaskError, TaskResult
from horsies.errors import ErrorCode
from tests.cli.conftest import refused

TASKS = """
app = Horsies(AppConfig(
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[CustomQueueConfig(name="mail"), CustomQueueConfig(name="bulk")],
    default_task_timeout_ms=60_000,
))

@app.task("greet", queue_name="mail", retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["*"]))
def greet(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"hello {name}")

@app.task("crawl", queue_name="bulk", timeout_ms=500)
async def crawl(url: str) -> TaskResult[int, TaskError]:
    return TaskResult(ok=200)
"""


def test_the_tasks_are_listed(workplace):
    workplace.write(TASKS)

    result = workplace.run("check", "app:app")

    header, *rows, summary = (line.split() for line in result.stdout.splitlines())
    assert result.returncode == 0, result.stderr
    assert header == ["task", "queue", "kind", "retries", "timeout"]
    assert rows == [
        ["crawl", "bulk", "async", "0", "500", "ms"],
        ["greet", "mail", "def", "2", "60,000", "ms"],
    ]
    assert summary == ["2", "tasks,", "nothing", "wrong"]


def test_the_columns_are_aligned_and_strange_names_cannot_disturb_them(workplace):
    workplace.write(TASKS.replace('"greet"', r'"[bold]\x1b[2J\n" + "long" * 50'))

    workplace.env["COLUMNS"] = "80"

    header, greet, _crawl, _summary = workplace.run("check", "app:app").stdout.splitlines()

    assert r"[bold]\x1b[2J\nlonglong" in greet
    assert "long" * 50 in greet
    assert greet.index("mail") == header.index("queue")


def test_the_app_may_come_from_the_environment_or_an_option(workplace):
    workplace.write(TASKS)
    by_option = workplace.run("check", "-m", "app:app")
    workplace.env["HORSIES_APP"] = "app:app"
    by_environment = workplace.run("check")

    assert by_option.returncode == by_environment.returncode == 0
    assert by_option.stdout == by_environment.stdout


def test_no_database_is_needed_unless_asked_for(workplace, deaf_port):
    workplace.write(TASKS)
    workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://127.0.0.1:{deaf_port}/app"

    assert workplace.run("check", "app:app").returncode == 0
    refused(workplace.run("check", "app:app", "--live"), "HRS-413")


def test_a_good_database_passes(workplace):
    workplace.write(TASKS)

    assert workplace.run("check", "app:app", "--live").returncode == 0


def test_a_schema_that_is_behind_is_reported(workplace, empty_database_url):
    workplace.write(TASKS)
    workplace.env["HORSIES_DATABASE_URL"] = empty_database_url

    refused(workplace.run("check", "app:app", "--live"), "HRS-411", "horsies migrate")


def test_a_schema_that_is_newer_is_reported(workplace, db):
    workplace.write(TASKS)
    db.execute("INSERT INTO horsies_schema_version (version) VALUES (999999)")

    refused(workplace.run("check", "app:app", "--live"), "HRS-410", "999999")


def test_every_module_that_cannot_be_imported_is_reported():
    app = Horsies()
    app.discover_tasks(["no_such_module_1", "no_such_module_2"])

    found = app.check()

    assert [error.code for error in found] == [ErrorCode.CLI_INVALID_ARGS] * 2


def test_sends_are_possible_again_after_a_failed_import():
    app = Horsies()
    app.discover_tasks(["no_such_module"])

    app.check()

    assert not app.are_sends_suppressed()


def test_a_phase_that_fails_ends_the_check():
    app = Horsies(AppConfig(exception_mapper={ValueError: "TASK_TIMEOUT"}))
    app.discover_tasks(["no_such_module"])

    assert [error.code for error in app.check()] == [ErrorCode.CLI_INVALID_ARGS]


def app_with(config: AppConfig | None = None, **options) -> Horsies:
    app = Horsies(config)

    @app.task("work", **options)
    def work() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    return app


@pytest.mark.parametrize(
    "app",
    [
        app_with(exception_mapper={ValueError: "TASK_CANCELLED"}),
        app_with(default_unhandled_error_code="WORKER_CRASHED"),
        app_with(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WAIT_TIMEOUT"])),
        app_with(AppConfig(exception_mapper={ValueError: "TASK_CANCELLED"})),
        app_with(AppConfig(default_unhandled_error_code="TASK_NOT_FOUND")),
    ],
)
def test_a_code_of_ours_is_not_lent_out(app):
    assert [error.code for error in app.check()] == [ErrorCode.CHECK_RESERVED_CODE_COLLISION]


@pytest.mark.parametrize(
    "app",
    [
        app_with(),
        app_with(exception_mapper={ValueError: "BAD_INPUT"}),
        app_with(exception_mapper={TimeoutError: OutcomeCode.TASK_TIMEOUT}),
        app_with(default_unhandled_error_code="UNHANDLED_EXCEPTION"),
        app_with(
            retry_policy=RetryPolicy.fixed(
                [1], auto_retry_for=["WORKER_CRASHED", "TASK_TIMEOUT", "TASK_EXCEPTION", "MY_OWN", "*"]
            )
        ),
    ],
)
def test_codes_that_are_meant_pass(app):
    assert app.check() == []


def test_globs_become_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mail_tasks.py", "deep/bulk_tasks.py", "deep/test_tasks.py", "deep/other.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    found = Horsies().expand_module_globs(["**/*_tasks.py", "mail_tasks.py", "pkg.mod"], exclude=["*/test_*"])

    assert found == ["deep/bulk_tasks.py", "mail_tasks.py", "pkg.mod"]


def test_globs_leave_out_what_is_no_task_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "jobs/mail.py",
        "jobs/test_mail.py",
        "jobs/__pycache__/mail.py",
        "jobs/mail.pyc",
        "jobs/notes.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "jobs" / "folder.py").mkdir()

    assert Horsies().expand_module_globs(["jobs/**"]) == ["jobs/mail.py"]
    assert Horsies().expand_module_globs(["jobs/*"], exclude=["*/mail.py"]) == []
    assert Horsies().expand_module_globs(["jobs/test_mail.py"]) == [
        "jobs/test_mail.py"
    ]  # named, so it is meant
