"""Every command finds the app in the same way: by LOCATOR, by HORSIES_APP or by pyproject.toml, in this order."""

from __future__ import annotations

import pytest

from tests.cli.conftest import misused, refused

TASK = """
app = Horsies()

@app.task("{name}")
def task() -> TaskResult[None, TaskError]: ...
"""


@pytest.fixture
def apps(workplace):
    """Three modules, each with an app that has a task named after it."""
    for name in ("first", "second", "third"):
        workplace.write(TASK.format(name=name), f"{name}.py")
    return workplace


def name_in_project(place, locator: str, folder: str = ".") -> None:
    (place.folder / folder / "pyproject.toml").write_text(f'[tool.horsies]\napp = "{locator}"\n')


def checked(place, *words: str) -> str:
    result = place.run("check", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[1].split()[0]


def test_the_argument_comes_before_the_variable_and_the_variable_before_the_project(apps):
    name_in_project(apps, "third:app")
    assert checked(apps) == "third"

    apps.env["HORSIES_APP"] = "second:app"
    assert checked(apps) == "second"
    assert checked(apps, "first:app") == "first"


@pytest.mark.parametrize("option", ["-m", "--module", "--app"])
def test_the_old_options_still_name_the_app(apps, option):
    assert checked(apps, option, "first:app") == "first"
    assert option not in apps.run("check", "--help").stdout


@pytest.mark.parametrize("locator", ["first:app", "first.py:app"])
def test_the_project_names_the_app_for_all_its_folders(apps, locator):
    name_in_project(apps, locator)
    apps.folder = apps.folder / "deep" / "down"
    apps.folder.mkdir(parents=True)

    assert checked(apps) == "first"


def test_only_the_nearest_project_counts(apps):
    name_in_project(apps, "first:app")
    apps.folder = apps.folder / "inner"
    apps.folder.mkdir()
    (apps.folder / "pyproject.toml").write_text("[project]\nname = 'inner'\n")

    misused(apps.run("check"), str(apps.folder / "pyproject.toml"))


def test_a_worker_of_a_project_runs_its_tasks_from_any_folder(apps):
    apps.write(
        TASK.format(name="answer").replace(
            "None, TaskError]: ...", "int, TaskError]:\n    return TaskResult(ok=42)"
        )
    )
    name_in_project(apps, "app:app")
    task = apps.load().task
    apps.folder = apps.folder / "deep"
    apps.folder.mkdir()

    apps.start("--processes=1", "--start-method=spawn", locator="--loglevel=INFO")

    assert task.send().unwrap().get(timeout_ms=30_000).unwrap() == 42


@pytest.mark.parametrize(
    "words", [["worker"], ["scheduler"], ["dev"], ["check"], ["schedules", "run-now", "x"]]
)
def test_without_an_app_the_error_names_all_three_ways(workplace, words):
    misused(
        workplace.run(*words),
        "LOCATOR as package.module:app",
        "HORSIES_APP",
        "[tool.horsies] in pyproject.toml",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.horsies]\nap = 'first:app'\n", "no setting 'ap'"),
        ("[tool.horsies]\napp = 7\n", "app under [tool.horsies] is 7"),
        ("[tool.horsies]\napp = ''\n", "app under [tool.horsies] is ''"),
        ("[tool]\nhorsies = 'first:app'\n", "is 'first:app', not a table"),
        ("[tool.horsies\n", "cannot be read"),
    ],
)
def test_a_project_file_that_names_no_app_properly_is_refused(apps, text, problem):
    (apps.folder / "pyproject.toml").write_text(text)

    refused(apps.run("check"), "HRS-206", problem, str(apps.folder / "pyproject.toml"))


@pytest.fixture
def elsewhere(workplace, deaf_port):
    """The database of the test is known to the app only: the environment names one that is away."""
    workplace.write(f"app = Horsies(AppConfig.for_database_url({workplace.database_url!r}))")
    workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://127.0.0.1:{deaf_port}/app"
    return workplace


ID, OTHER_ID = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"


@pytest.mark.parametrize(
    "words",
    [
        ["info", "app:app"], ["tasks", "app:app"], ["failed", "app:app"], ["events", "app:app"], ["doctor", "app:app"],
        ["migrate", "app:app", "--check"], ["pause", "app:app", "--queue=x"], ["resume", "app:app", "--queue=x"],
        ["retry", "app:app", "--all"], ["purge", "app:app", "--older-than=1d"], ["workflows", "list", "app:app"],
        ["schedules", "list", "app:app"],
    ],
    ids=lambda words: " ".join(words),
)  # fmt: skip
def test_a_command_that_needs_a_database_takes_that_of_the_app(elsewhere, words):
    result = elsewhere.run(*words)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["show", "app:app", ID], "HRS-302", "there is no task"),
        (["why", "app:app", ID], "HRS-302", "there is no task"),
        (["cancel", "app:app", ID, OTHER_ID], "HRS-302", "there is no task"),
        (["workflows", "show", "app:app", ID], "HRS-032", "there is no workflow"),
        (["workflows", "pause", "app:app", ID], "HRS-032", "there is no workflow"),
        (["schedules", "next", "app:app", "nightly"], "HRS-205", "nightly"),
        (["schedules", "pause", "app:app", "nightly", "hourly"], "HRS-205", "nightly"),
        (["schedules", "pause", "a:name"], "HRS-413", ""),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_the_app_stands_before_what_the_command_is_about(elsewhere, words, code, problem):
    refused(elsewhere.run(*words), code, problem)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["show"], "Missing argument 'TASK_ID'"),
        (["show", "app:app"], "Missing argument 'TASK_ID'"),
        (["show", ID, ID], "give one TASK_ID, not 2"),
        (["show", "app", ID], "Invalid value for 'TASK_ID': 'app' is not a valid UUID"),
        (["cancel", ID, "12"], "Invalid value for 'TASK_ID': '12' is not a valid UUID"),
        (["schedules", "next", "a", "b", "c"], "give one NAME"),
        (["show", "app:app", ID, "--app=other:app"], "give one of the two"),
        (["show", "app:app", ID, "--database-url=postgresql://db/app"], "give one of the two"),
        (["info", "app:app", "--database-url=postgresql://db/app"], "give one of the two"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_cannot_be_meant_is_refused(workplace, words, problem):
    misused(workplace.run(*words), problem)
