"""A schedule that is declared above a task can run; what is wrong with it is said where it is declared, under HRS-205."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time, timedelta
from typing import Any

import pytest

from horsies import (
    AppConfig,
    CronSchedule,
    DailySchedule,
    ErrorCode,
    Horsies,
    HorsiesError,
    IntervalSchedule,
    MultipleValidationErrors,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.schedule.scheduler import Starters


@pytest.fixture
def app() -> Horsies:
    return Horsies()


def define(app: Horsies, decorate: Callable[[Any], Any], *more: Callable[[Any], Any]) -> Any:
    """Declare schedules above a task with an optional and a required argument, the first one next to the task."""

    @app.task("report")
    def report(kind: str = "full") -> TaskResult[str, TaskError]:
        return TaskResult(ok=kind)

    task: Any = report
    for each in (decorate, *more):
        task = each(task)
    return task


def problem(declare: Callable[[], Any]) -> str:
    with pytest.raises(HorsiesError) as caught:
        declare()
    error = caught.value
    assert not isinstance(error, MultipleValidationErrors)
    assert error.code == ErrorCode.CONFIG_INVALID_SCHEDULE
    assert error.help_text
    return str(error)


def test_the_task_is_returned_as_it_is_and_its_schedule_has_its_name(app: Horsies) -> None:
    task = define(app, app.schedule("0 8 * * mon", timezone="Europe/Berlin"))

    assert task is app.tasks["report"]
    assert task("short") == TaskResult(ok="short")
    assert app.declared_schedules == [
        TaskSchedule(
            name="report",
            task_name="report",
            pattern=CronSchedule("0 8 * * mon"),
            timezone="Europe/Berlin",
        )
    ]


@pytest.mark.parametrize(
    ("declared", "pattern"),
    [
        ({"every": 90}, IntervalSchedule(seconds=90)),
        ({"every": timedelta(days=2)}, IntervalSchedule(days=2)),
        ({"every": timedelta(days=1, hours=1)}, IntervalSchedule(days=1, seconds=3600)),
        ({"pattern": DailySchedule(time=time(3, 0))}, DailySchedule(time=time(3, 0))),
        ({"pattern": "@daily"}, CronSchedule("0 0 * * *")),
    ],
)
def test_a_time_is_given_as_a_cron_text_a_pattern_or_an_interval(
    app: Horsies, declared: dict[str, Any], pattern: Any
) -> None:
    define(app, app.schedule(**declared))

    assert app.declared_schedules[0].pattern == pattern


def test_all_options_of_a_schedule_can_be_given(app: Horsies) -> None:
    options: dict[str, Any] = {
        "args": ("short",),
        "queue_name": "default",
        "enabled": False,
        "catch_up_missed": True,
        "max_catch_up_runs": 5,
        "overlap": "skip",
    }
    define(app, app.schedule(every=60, name="often", **options))

    [declared] = app.declared_schedules
    assert declared.name == "often"
    assert {name: getattr(declared, name) for name in options} == options


def test_declared_schedules_stand_beside_those_of_the_configuration() -> None:
    given = TaskSchedule(name="given", task_name="report", pattern=IntervalSchedule(minutes=1))
    app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[given], check_interval_seconds=7)))
    define(app, app.schedule(every=60), app.schedule(every=120, name="second"))

    config = app.schedule_config
    assert config is not None
    assert config.check_interval_seconds == 7
    assert [each.name for each in config.schedules] == ["given", "report", "second"]
    assert app.check() == []


def test_a_module_that_is_imported_twice_declares_its_schedules_once(app: Horsies) -> None:
    for _ in range(2):
        define(app, app.schedule(every=60))

    assert len(app.declared_schedules) == 1


def test_a_name_is_used_once(app: Horsies) -> None:
    assert "two schedules named 'report'" in problem(
        lambda: define(app, app.schedule(every=60), app.schedule(every=120))
    )
    given = TaskSchedule(name="report", task_name="report", pattern=IntervalSchedule(minutes=1))
    configured = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[given])))
    assert "name='report-2'" in problem(lambda: define(configured, configured.schedule(every=60)))


def test_a_schedule_below_the_task_decorator_is_refused_with_the_right_order(app: Horsies) -> None:
    def below() -> None:
        misplaced: Any = app.schedule(every=60)

        @app.task("report")
        @misplaced
        def report() -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

    assert "above @app.task(…), not below" in problem(below)


def test_a_schedule_without_a_time_or_with_two_is_refused(app: Horsies) -> None:
    assert "neither" in problem(lambda: define(app, app.schedule()))
    assert "both" in problem(lambda: define(app, app.schedule("@daily", every=60)))
    bare: Any = app.schedule
    assert "as its pattern" in problem(lambda: define(app, bare))


def test_a_task_of_another_app_is_refused(app: Horsies) -> None:
    assert "another app" in problem(lambda: define(app, Horsies().schedule(every=60)))


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ({"pattern": "0 8 * *"}, "'0 8 * *'"),
        ({"pattern": "0 99 * * *"}, "wrong hour"),
        ({"pattern": 5}, "5 as its pattern"),
        ({"every": 60, "timezone": "Mars/Olympus"}, "'Mars/Olympus'"),
        ({"every": 60, "args": (1,)}, "argument 'kind'"),
        ({"every": 60, "kwargs": {"colour": "red"}}, "'colour'"),
        ({"every": 60, "queue_name": "mail"}, "queue 'mail' is not configured"),
        ({"every": 60, "overlap": "perhaps"}, "'perhaps'"),
        ({"every": 60, "max_catch_up_runs": 0}, "max_catch_up_runs is 0"),
        ({"every": 0}, "the interval is"),
        ({"every": 0.5}, "the interval is"),
        ({"every": -5}, "the interval is"),
        ({"every": float("inf")}, "the interval is inf"),
        ({"every": float("nan")}, "the interval is nan"),
        ({"every": True}, "the interval is True"),
        ({"every": "1h"}, "the interval is '1h'"),
        ({"every": timedelta(days=366)}, "the interval is"),
    ],
)
def test_a_mistake_is_an_error_at_the_definition_with_its_value(
    app: Horsies, declared: dict[str, Any], shown: str
) -> None:
    assert shown in problem(lambda: define(app, app.schedule(**declared)))
    assert app.declared_schedules == []


def test_a_task_that_needs_arguments_must_be_given_them(app: Horsies) -> None:
    @app.task("greet")
    def greet(name: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=name)

    assert "missing 'name'" in problem(lambda: app.schedule(every=60)(greet))
    assert app.schedule(every=60, kwargs={"name": "ann"})(greet) is greet
    assert app.schedule(every=60, args=("bob",), name="bob")(greet) is greet


def test_a_key_that_no_definition_has_cannot_be_scheduled_and_the_error_says_what_has_one(
    app: Horsies,
) -> None:
    @app.task("step")
    def step() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    app.workflow("drawn", [step.node()()], definition_key="unit.drawn")
    schedule = TaskSchedule(
        name="drawn", definition_key="unit.drawn", pattern=IntervalSchedule.every(timedelta(hours=1))
    )

    [error] = Starters(app).problems(schedule)

    assert error.code == ErrorCode.CONFIG_INVALID_SCHEDULE
    assert "'unit.drawn'" in error.message
    assert "WorkflowDefinition class" in (error.help_text or "")
