"""States and codes are spelt as the database spells them."""

import pytest

from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    TASK_TERMINAL_STATES,
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    BrokerErrorCode,
    ContractCode,
    HandleErrorCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskAttemptOutcome,
    TaskSendErrorCode,
    TaskStatus,
    WorkerState,
    WorkflowStartErrorCode,
    WorkflowStatus,
    WorkflowTaskStatus,
)


@pytest.mark.parametrize(
    "words",
    [
        TaskStatus,
        TaskAttemptOutcome,
        WorkflowStatus,
        WorkflowTaskStatus,
        OperationalErrorCode,
        ContractCode,
        RetrievalCode,
        OutcomeCode,
        TaskSendErrorCode,
        WorkflowStartErrorCode,
        HandleErrorCode,
        BrokerErrorCode,
    ],
)
def test_a_word_is_its_own_name(words):
    assert all(word == word.name == str(word) for word in words)


def test_task_states_that_are_not_terminal_can_still_change():
    assert set(TaskStatus) - TASK_TERMINAL_STATES == {"PENDING", "CLAIMED", "RUNNING"}


def test_a_paused_workflow_is_not_at_its_end():
    assert set(WorkflowStatus) - WORKFLOW_TERMINAL_STATES == {"PENDING", "RUNNING", "PAUSED"}


def test_a_skipped_node_is_at_its_end():
    assert set(WorkflowTaskStatus) - WORKFLOW_TASK_TERMINAL_STATES == {
        "PENDING",
        "READY",
        "ENQUEUED",
        "RUNNING",
    }


def test_outcomes_and_worker_states_are_the_documented_ones():
    assert list(TaskAttemptOutcome) == ["COMPLETED", "FAILED"]
    assert list(WorkerState) == ["started", "idle", "busy", "suspended", "draining", "dead"]


def test_every_built_in_code_is_registered_under_its_value_and_none_twice():
    members = [*OperationalErrorCode, *ContractCode, *RetrievalCode, *OutcomeCode]

    assert len(BUILTIN_CODE_REGISTRY) == len(members) == 33
    assert all(BUILTIN_CODE_REGISTRY[member.value] is member for member in members)


@pytest.mark.parametrize(
    ("statuses", "terminal"),
    [
        (TaskStatus, TASK_TERMINAL_STATES),
        (WorkflowStatus, WORKFLOW_TERMINAL_STATES),
        (WorkflowTaskStatus, WORKFLOW_TASK_TERMINAL_STATES),
    ],
)
def test_a_status_says_whether_it_is_terminal(statuses, terminal):
    assert {status for status in statuses if status.is_terminal} == terminal
