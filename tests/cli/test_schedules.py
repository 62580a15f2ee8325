"""`horsies schedules`: look at what is to run when, stop it, run it out of turn, have more of it."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import misused, refused

APP = """
app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[
    TaskSchedule(name="in-code", task_name="add", pattern=DailySchedule(time=datetime(2026, 1, 1, 2, 30).time()),
                 timezone="America/New_York", kwargs={"x": 1}),
])))

@app.task("add", priority=7)
def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""


@pytest.fixture
def place(workplace):
    workplace.write(APP)
    workplace.env["HORSIES_APP"] = "app:app"
    return workplace


@pytest.fixture
def schedules(place):
    """Run a command that must succeed; gives what it printed."""

    def run(*words):
        result = place.run("schedules", *words)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def create(schedules, name="mine", **more):
    flags = {"task": "add", "cron": "*/5 9-17 * * mon-fri", "kwargs": '{"x": 4}', **more}
    return schedules("create", name, *(f"--{flag}={value}" for flag, value in flags.items()))


def test_a_schedule_is_made_listed_paused_resumed_run_and_deleted(schedules, db):
    assert "mine runs first at 20" in create(schedules)
    assert "mine is paused" in schedules("pause", "mine")
    assert "paused" in schedules("list")
    assert "these would be its next runs" in schedules("next", "mine")
    assert "mine runs next at 20" in schedules("resume", "mine")

    task_id = schedules("run-now", "mine").strip()
    row = db.execute("SELECT id, kwargs, priority FROM horsies_tasks").fetchone()
    assert (str(row["id"]), row["kwargs"], row["priority"]) == (task_id, '{"x":4}', 7)

    header, line, summary = schedules("list").splitlines()
    assert header.split()[:5] == ["name", "source", "runs", "when", "zone"]
    assert line.split()[:9] == ["mine", "runtime", "add", "*/5", "9-17", "*", "*", "mon-fri", "UTC"]
    assert summary == "1 schedule"

    assert "mine is deleted" in schedules("delete", "mine")
    assert schedules("list").strip() == "0 schedules"


def test_an_interval_is_a_duration(schedules, db):
    schedules(
        "create", "often", "--task=add", "--every=15m", '--kwargs={"x": 1}', "--overlap=skip", "--catch-up"
    )

    row = db.execute("SELECT definition FROM horsies_schedule_state").fetchone()
    assert json.loads(row["definition"]) == {
        "task_name": "add",
        "pattern": {"kind": "interval", "minutes": 15},
        "timezone": "UTC",
        "arguments": {"x": 1},
        "catch_up_missed": True,
        "overlap": "skip",
    }


def test_the_list_is_one_json_document_without_arguments(schedules, db):
    create(schedules, kwargs='{"x": 987654}')

    document = json.loads(schedules("list", "--json"))

    (entry,) = document["schedules"]
    assert (entry["name"], entry["state"], entry["run_count"]) == ("mine", "active", 0)
    assert entry["schedule"]["pattern"] == {"kind": "cron", "expression": "*/5 9-17 * * mon-fri"}
    assert "987654" not in json.dumps(document)


def test_what_is_wrong_with_a_schedule_is_in_the_list(schedules, db):
    create(schedules)
    db.execute("UPDATE horsies_schedule_state SET error = 'no such luck', error_at = now()")

    assert "no such luck" in schedules("list")


def test_the_next_five_slots_are_shown_on_the_wall_clock_with_its_changes(schedules, db):
    create(schedules, cron="30 1 * * sun", timezone="America/New_York")
    db.execute("UPDATE horsies_schedule_state SET next_run_at = '2027-03-07 06:30:00Z'")

    header, *slots = schedules("next", "mine").splitlines()

    assert header.split() == ["day", "in", "America/New_York", "in", "UTC"]
    assert [line.split()[:5] for line in slots] == [
        ["Sun", "2027-03-07", "01:30:00.000-05:00", "2027-03-07", "06:30:00.000+00:00"],
        ["Sun", "2027-03-14", "01:30:00.000-05:00", "2027-03-14", "06:30:00.000+00:00"],
        ["Sun", "2027-03-21", "01:30:00.000-04:00", "2027-03-21", "05:30:00.000+00:00"],
        ["Sun", "2027-03-28", "01:30:00.000-04:00", "2027-03-28", "05:30:00.000+00:00"],
        ["Sun", "2027-04-04", "01:30:00.000-04:00", "2027-04-04", "05:30:00.000+00:00"],
    ]
    assert ["the clock went" in line for line in slots] == [False, False, True, False, False]
    assert "after the clock went forward by 1:00:00" in slots[2]


def test_a_database_will_do_where_no_task_is_concerned(place, schedules, database_url):
    create(schedules)
    del place.env["HORSIES_APP"], place.env["HORSIES_DATABASE_URL"]

    for words in (["list"], ["next", "mine"], ["pause", "mine"], ["resume", "mine"], ["delete", "mine"]):
        ran = place.run("schedules", *words, "--database-url", database_url)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["create", "x", "--task=add"], "--cron and --every"),
        (["create", "x", "--task=add", "--cron=* * * * *", "--every=5m"], "--cron and --every"),
        (["create", "x", "--task=add", "--cron=0 0 30 2 *"], "--cron"),
        (["create", "x", "--task=add", "--every=5"], "30s, 15m, 12h or 7d"),
        (["create", "x", "--task=add", "--every=999999999d"], "--every"),
        (["create", "x", "--task=add", "--every=1m", "--kwargs=[1]"], "--kwargs"),
        (["create", "x", "--cron=* * * * *"], "--task"),
        (["run-now", "x", "--database-url=postgresql://db/x"], "needs the app"),
        (["list", "--app=app:app", "--database-url=postgresql://db/x"], "--database-url"),
        (["pause"], "NAME"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(place, words, named):
    misused(place.run("schedules", *words), named)


def test_what_cannot_be_run_is_refused_with_its_reasons(place, db):
    result = place.run("schedules", "create", "x", "--task=ad", "--every=5m", "--timezone=Mars/Olympus")

    refused(result, "HRS-205", "did you mean 'add'?", "Mars/Olympus")
    for words in (["pause", "x"], ["resume", "x"], ["delete", "x"], ["next", "x"], ["run-now", "x"]):
        refused(place.run("schedules", *words), "HRS-205", "'x'")
    refused(place.run("schedules", "delete", "in-code"), "HRS-205", "in the code")


def test_a_database_that_is_away_is_named(place, deaf_port):
    place.env["HORSIES_DATABASE_URL"] = f"postgresql://127.0.0.1:{deaf_port}/app"

    refused(place.run("schedules", "list"), "HRS-413")
