"""`horsies explain`: every code has a meaning, a cause and a remedy, and a typing error finds the code that was meant."""

from __future__ import annotations

import pytest

from horsies import ErrorCode
from horsies.status import BUILTIN_CODE_REGISTRY, BrokerErrorCode, TaskSendErrorCode
from tests.cli.conftest import misused


@pytest.mark.parametrize(
    "code", ["HRS-206", "hrs-206", "206", "CLI_INVALID_ARGS", "TASK_TIMEOUT", "task_timeout", "task-timeout"]
)
def test_a_code_is_known_by_number_and_by_name_in_any_case(workplace, code):
    result = workplace.run("explain", code)

    title, cause, remedy = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert title.startswith(("HRS-206: CLI_INVALID_ARGS", "TASK_TIMEOUT: the task ran past its time limit"))
    assert cause.startswith("  cause:  ")
    assert remedy.startswith("  remedy: ")


def test_every_code_is_explained(explained):
    for code in (*ErrorCode, *BUILTIN_CODE_REGISTRY, *TaskSendErrorCode, *BrokerErrorCode):
        assert f"{code}: " in explained(code), code


@pytest.fixture
def explained():
    """What the command prints for a code, in this process: starting one for each code takes long."""
    from click.testing import CliRunner

    from horsies.cli import horsies

    return lambda code: CliRunner().invoke(horsies, ["explain", str(code)], catch_exceptions=False).output


def test_a_name_with_two_meanings_is_explained_twice(workplace):
    said = workplace.run("explain", "TASK_NOT_FOUND").stdout

    assert "HRS-302: TASK_NOT_FOUND" in said
    assert "\nTASK_NOT_FOUND: no task has this id" in said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("TASK_TIMOUT", "TASK_TIMEOUT"), ("HRS-2066", "HRS-206"), ("WORKER_CRASH", "WORKER_CRASHED")],
)
def test_a_typing_error_finds_the_code_that_was_meant(workplace, typed, meant):
    misused(workplace.run("explain", typed), typed, f"did you mean {meant}?")


def test_a_code_of_the_users_own_is_said_to_be_so(workplace):
    misused(workplace.run("explain", "CARD_DECLINED"), "CARD_DECLINED", "your own tasks")
