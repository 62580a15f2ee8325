"""The command line itself: what it lists, and what it refuses."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.cli.conftest import misused

pytestmark = pytest.mark.usefixtures("workplace")

APP = """
app = Horsies()
"""


def test_without_a_command_the_help_is_printed_and_the_exit_code_is_1(workplace):
    result = workplace.run()

    assert result.returncode == 1
    for command in ("worker", "scheduler", "check", "migrate", "doctor", "demo", "db"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("group", ["schedules", "workflows", "db"])
def test_a_group_without_a_command_prints_its_help_and_exits_with_1(workplace, group):
    result = workplace.run(group)

    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith(f"Usage: horsies {group} ")


def test_an_option_without_its_value_leads_to_the_help_of_the_command(workplace):
    misused(workplace.run("health", "--host"), "--host", "see `horsies health --help`")


def test_the_version_is_the_packages(workplace):
    result = workplace.run("--version")

    assert (result.returncode, result.stdout.strip()) == (0, f"horsies, version {version('horsies')}")


def test_an_unknown_command_is_named_and_so_is_the_one_that_was_meant(workplace):
    misused(workplace.run("wroker"), "wroker", "Did you mean 'worker'?")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--processes", "0"),
        ("--processes", "-1"),
        ("--processes", "many"),
        ("--threads", "0"),
        ("--async-processes", "0"),
        ("--async-concurrency", "none"),
        ("--max-tasks-per-child", "-1"),
        ("--max-tasks-per-child", "few"),
        ("--max-memory-per-child-mb", "0"),
        ("--max-claim-batch", "-1"),
        ("--max-claim-per-worker", "-1"),
        ("--prefetch-buffer", "-1"),
        ("--drain-seconds", "-1"),
        ("--start-method", "thread"),
        ("--loglevel", "CHATTY"),
        ("--queues", ""),
        ("--queues", "mail,,bulk"),
        ("--queues", "mail,mail"),
        ("--queues", '"mail'),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_flag(workplace, flag, value):
    workplace.write(APP)

    misused(workplace.run("worker", "app:app", f"{flag}={value}"), flag)


def test_an_unknown_flag_is_named(workplace):
    misused(workplace.run("worker", "app:app", "--speed=11"), "--speed")


def test_a_worker_that_is_given_no_app_says_how_to_name_one(workplace):
    misused(workplace.run("worker"), "HRS-206", "LOCATOR", "HORSIES_APP")


def test_two_different_apps_are_refused(workplace):
    misused(workplace.run("check", "app:app", "-m", "other:app"), "HRS-206", "app:app", "other:app")


def test_prefetching_is_refused_when_the_cluster_has_a_cap(workplace):
    workplace.write("app = Horsies(AppConfig(cluster_wide_cap=10))")

    refused = workplace.run("worker", "app:app", "--prefetch-buffer=2")

    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "error[HRS-201]: prefetch_buffer is 2 and the app has cluster_wide_cap=10"
    )


@pytest.mark.parametrize(
    "url", ["mysql://db/app", "postgresql://ann:two words@db/app", "postgresql://ann:s3cret@[db/app"]
)
def test_a_wrong_database_url_is_refused_without_showing_its_password(workplace, url):
    result = workplace.run("migrate", "--database-url", url)

    misused(result, "--database-url")
    assert "s3cret" not in result.stderr
    assert "two words" not in result.stderr


@pytest.mark.parametrize(
    ("first", "second"), [("--sql", "--check"), ("--app=app:app", "--database-url=postgresql://db/app")]
)
def test_options_that_contradict_each_other_are_refused(workplace, first, second):
    misused(workplace.run("migrate", first, second), first.partition("=")[0], second.partition("=")[0])
