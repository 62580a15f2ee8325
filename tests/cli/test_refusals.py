"""Bad days: each is one screen that names the cause and the remedy, and exit code 1."""

from __future__ import annotations

import psycopg
import pytest

from tests.cli.conftest import refused

ADD = """
app = Horsies()

@app.task("add")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""


@pytest.fixture(params=["worker", "check"])
def command(request) -> str:
    """Both commands that load an app refuse it in the same words."""
    return request.param


def line_of(text: str, path) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize("locator", [":app", "app.tasks.py:app"])
def test_a_locator_that_cannot_be_read(workplace, command, locator):
    refused(workplace.run(command, locator), "HRS-207", locator.removesuffix(":app"))


def test_a_module_that_does_not_exist(workplace, command):
    refused(workplace.run(command, "nowhere:app"), "HRS-206", "'nowhere'", str(workplace.folder))


def test_a_file_that_does_not_exist(workplace, command):
    refused(workplace.run(command, "jobs/nowhere.py:app"), "HRS-206", "jobs/nowhere.py")


def test_an_attribute_that_does_not_exist(workplace, command):
    workplace.write(ADD)

    refused(workplace.run(command, "app:application"), "HRS-207", "'application'", "use one of: app")


def test_an_attribute_that_is_no_app(workplace, command):
    workplace.write(ADD + "answer = 42")

    refused(workplace.run(command, "app:answer"), "HRS-207", "'answer' is int", "use one of: app")


def test_a_module_that_imports_what_is_not_installed(workplace, command):
    file = workplace.write("import not_installed\napp = Horsies()")

    refused(
        workplace.run(command, "app:app"),
        "HRS-210",
        "ModuleNotFoundError",
        f"{file}:{line_of('not_installed', file)}",
    )


def test_a_module_with_a_syntax_error(workplace, command):
    file = workplace.write("app = Horsies(\n")

    refused(
        workplace.run(command, "app:app"), "HRS-210", "SyntaxError", f"{file}:{line_of('Horsies(', file)}"
    )


@pytest.mark.parametrize("module", ["tasks", "tasks.py"])
def test_a_task_file_that_raises(workplace, command, module):
    workplace.write(f"app = Horsies()\napp.discover_tasks([{module!r}])")
    file = workplace.write("raise RuntimeError('no licence')", "tasks.py")

    refused(workplace.run(command, "app:app"), "HRS-210", "no licence", f"{file}:{line_of('raise', file)}")


def test_a_failed_import_shows_every_line_of_the_users_that_led_to_it(workplace, command):
    app = workplace.write("import models\napp = Horsies()")
    models = workplace.write("from settings import load\nload('x')", "models.py")
    settings = workplace.write("def load(name):\n    return json.loads(name)", "settings.py")

    result = workplace.run(command, "app:app")

    refused(result, "HRS-210", "JSONDecodeError", "return json.loads(name)")
    assert f"--> {settings}:{line_of('json.loads', settings)}" in result.stderr
    notes = [line for line in result.stderr.splitlines() if "= note:" in line]
    assert notes == [
        f"   = note: reached from {models}:{line_of('load(', models)}: load('x')",
        f"   = note: reached from {app}:{line_of('import models', app)}: import models",
    ]


def test_two_tasks_of_one_name(workplace, command):
    file = workplace.write(ADD + ADD.replace("app = Horsies()", ""))

    refused(
        workplace.run(command, "app:app"),
        "HRS-301",
        "task 'add' is defined twice",
        f"{file}:{line_of('@app', file)}",
    )


def test_a_queue_that_is_not_configured(workplace):
    workplace.write(ADD)

    refused(
        workplace.run("worker", "app:app", "--queues", "mail"), "HRS-217", "'mail'", "use one of: default"
    )


def test_a_child_start_hook_that_raises(workplace):
    workplace.write(ADD + "@app.on_child_process_start\ndef hook():\n    raise RuntimeError('no licence')")

    refused(workplace.run("worker", "app:app"), "HRS-214", "no licence")


def test_a_database_that_is_not_there(workplace, deaf_port):
    workplace.write(
        """
        app = Horsies(AppConfig(resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_attempts=1)))
        """
    )
    workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://ann:s3cret@127.0.0.1:{deaf_port}/app"

    result = workplace.run("worker", "app:app")

    said, _, error = result.stderr.partition("error[")
    result.stderr = "error[" + error
    refused(result, "HRS-413", "ann:***@127.0.0.1")
    assert "WARNING" in said
    assert "next try in" in said
    assert "s3cret" not in said + error


def with_other(url: str, old: str, new: str) -> str:
    assert old in url
    return url.replace(old, new)


def test_a_wrong_password(workplace):
    workplace.write(ADD)
    password = psycopg.conninfo.conninfo_to_dict(workplace.database_url)["password"]
    workplace.env["HORSIES_DATABASE_URL"] = with_other(workplace.database_url, f":{password}@", ":s3cret@")

    result = workplace.run("worker", "app:app")

    refused(result, "HRS-414", "password authentication failed")
    assert "s3cret" not in result.stderr


def test_a_database_of_another_name(workplace):
    workplace.write(ADD)
    workplace.env["HORSIES_DATABASE_URL"] = workplace.database_url + "_gone"

    refused(workplace.run("worker", "app:app"), "HRS-414", "_gone")


@pytest.mark.parametrize("arguments", [["worker", "app:app"], ["migrate"]])
def test_a_role_that_may_not_create_the_schema(workplace, stranger, arguments):
    workplace.write(ADD)
    workplace.env["HORSIES_DATABASE_URL"] = stranger

    result = workplace.run(*arguments)

    refused(result, "HRS-412", "horsies migrate --sql")
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [["worker", "app:app"], ["check", "app:app", "--live"], ["migrate", "--check"]]
)
def test_a_role_that_may_not_use_the_tables(workplace, stranger, empty_database_url, arguments):
    workplace.write(ADD)
    workplace.env["HORSIES_DATABASE_URL"] = empty_database_url
    assert workplace.run("migrate").returncode == 0
    workplace.env["HORSIES_DATABASE_URL"] = stranger

    refused(workplace.run(*arguments), "HRS-412", "permission denied")


def test_a_url_that_cannot_be_read_is_refused_without_showing_its_password(workplace, command):
    workplace.write(ADD)
    workplace.env["HORSIES_DATABASE_URL"] = "postgresql://ann:two words@db/app"

    result = workplace.run(command, "app:app", "--loglevel=DEBUG")

    assert "error[HRS-203]" in result.stderr
    assert "two words" not in result.stderr


def test_all_that_is_wrong_with_a_configuration_is_told_at_once(workplace, command):
    workplace.write("app = Horsies(AppConfig(claim_lease_ms=0, log_format='xml'))")

    refused(
        workplace.run(command, "app:app"), "HRS-202", "error[HRS-218]", "aborting due to 2 previous errors"
    )


def test_a_known_error_has_its_traceback_at_debug_only(workplace, command):
    workplace.write("raise RuntimeError('no licence')")

    quiet = workplace.run(command, "app:app", "--loglevel=INFO")
    full = workplace.run(command, "app:app", "--loglevel=DEBUG")

    assert "Traceback" not in quiet.stderr
    assert "Traceback" in full.stderr
    assert full.stderr.endswith(quiet.stderr)


def test_errors_are_coloured_on_request_only(workplace):
    plain = workplace.run("check", "nowhere:app")
    workplace.env["HORSIES_FORCE_COLOR"] = "1"
    coloured = workplace.run("check", "nowhere:app")

    assert "\x1b[" not in plain.stderr
    assert "\x1b[1;31merror[HRS-206]" in coloured.stderr
