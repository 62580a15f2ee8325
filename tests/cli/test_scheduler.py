"""`horsies scheduler`: what it refuses, all at once and before anything runs."""

from __future__ import annotations

import pytest

from tests.cli.conftest import refused

TASKS = """
@app.task("add")
def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""
EVERY = "pattern=IntervalSchedule(minutes=1)"


def app_with(*schedules: str, settings: str = "") -> str:
    return f"app = Horsies(AppConfig(schedule=ScheduleConfig({settings} schedules=[{', '.join(schedules)}])))\n{TASKS}"


BROKEN = [
    f'TaskSchedule(name="a", task_name="ad", {EVERY})',
    f'TaskSchedule(name="b", task_name="add", {EVERY}, kwargs={{"z": 1}})',
    f'TaskSchedule(name="c", task_name="add", {EVERY}, args=("one",))',
    f'TaskSchedule(name="d", task_name="add", {EVERY}, args=(1,), queue_name="mail")',
    f'TaskSchedule(name="e", task_name="add", {EVERY}, args=(1,), timezone="Mars/Olympus")',
    f'TaskSchedule(name="f", definition_key="flow", {EVERY})',
    f'TaskSchedule(name="off", task_name="nothing", {EVERY}, enabled=False)',
]


@pytest.mark.parametrize("words", [["scheduler"], ["check"], ["worker", "--with-scheduler"]])
def test_everything_that_is_wrong_with_schedules_is_said_together(workplace, words):
    workplace.write(app_with(*BROKEN))

    result = workplace.run(words[0], "app:app", *words[1:])

    assert result.returncode == 1
    assert result.stderr.count("error[HRS-205]") == 6
    for words in (
        "did you mean 'add'?",
        "'z'",
        "argument 'x'",
        ["queue 'mail' is not configured", " use one of"][0],
        "use one of: default",
        "no time zone 'Mars/Olympus'",
        "'flow'",
        "aborting due to 6 previous errors",
    ):
        assert words in result.stderr
    assert "'off'" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_worker_without_a_scheduler_does_not_mind(workplace, db):
    workplace.write(app_with(*BROKEN))

    assert workplace.start("--processes=1").stop() == 0


@pytest.mark.parametrize(
    "source",
    ["app = Horsies()", app_with(settings="enabled=False,")],
    ids=["no schedules", "switched off"],
)
@pytest.mark.parametrize("words", [["scheduler"], ["worker", "--with-scheduler"]])
def test_an_app_without_schedules_has_nothing_for_a_scheduler_to_do(workplace, source, words):
    workplace.write(source)

    refused(workplace.run(words[0], "app:app", *words[1:]), "HRS-205", "ScheduleConfig")


@pytest.mark.parametrize(
    "pattern", ['CronSchedule("0 0 30 2 *")', "IntervalSchedule(seconds=0)", 'CronSchedule("* * * *")']
)
def test_a_pattern_that_cannot_be_is_an_error_of_its_line(workplace, pattern):
    workplace.write(app_with(f'TaskSchedule(name="a", task_name="add", pattern={pattern})'))

    refused(workplace.run("scheduler", "app:app"), "HRS-205", "app.py")


def test_names_are_used_once(workplace):
    twice = f'TaskSchedule(name="a", task_name="add", {EVERY}, args=(1,))'
    workplace.write(app_with(twice, twice))

    refused(workplace.run("scheduler", "app:app"), "HRS-205", "'a' 2 times")


def test_a_name_that_was_taken_at_run_time_is_refused_at_start(workplace, db):
    workplace.write(app_with(f'TaskSchedule(name="a", task_name="add", {EVERY}, args=(1,))'))
    db.execute(
        "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash) VALUES ('a', '{}', '')"
    )

    refused(workplace.run("scheduler", "app:app"), "HRS-205", "horsies schedules delete")


def test_a_database_that_says_no_ends_a_scheduler(workplace, database_url):
    workplace.write(app_with())
    workplace.env["HORSIES_DATABASE_URL"] = database_url.rpartition("/")[0] + "/nowhere"

    refused(workplace.run("scheduler", "app:app"), "HRS-414")


def test_a_scheduler_counts_its_schedules_when_it_starts(workplace, db):
    one, two = (f'TaskSchedule(name="{name}", task_name="add", {EVERY}, args=(1,))' for name in "ab")

    for schedules, said in [([one], "1 schedule in"), ([one, two], "2 schedules in")]:
        workplace.write(app_with(*schedules))
        scheduler = workplace.start(command="scheduler")

        assert scheduler.stop() == 0
        assert f"Scheduler started: {said} the code\n" in scheduler.log
