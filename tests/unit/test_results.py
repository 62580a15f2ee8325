"""Outcomes are values: one side or the other, never both, and reprs that tell no secrets."""

import copy
import pickle
import typing
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

import horsies.core.models.tasks
from horsies import results
from horsies.results import (
    BrokerErrorCode,
    BrokerOperationError,
    BrokerResult,
    Err,
    HandleErrorCode,
    HandleOperationError,
    HandleResult,
    Ok,
    OperationalErrorCode,
    OutcomeCode,
    Result,
    SubWorkflowError,
    TaskError,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    TaskSendResult,
    is_err,
    is_ok,
)
from horsies.status import BUILTIN_CODE_REGISTRY, TaskStatus

values = st.integers() | st.text() | st.none()


def half(number: int) -> Result[int, str]:
    return Ok(number // 2) if number % 2 == 0 else Err(f"{number} is odd")


def less_one(number: int) -> Result[int, str]:
    return Ok(number - 1) if number > 0 else Err("below zero")


def either() -> st.SearchStrategy[Result[int, str]]:
    return st.integers().map(Ok) | st.text().map(Err)


@given(st.integers())
def test_and_then_of_a_value_is_the_call_itself(number: int):
    assert Ok(number).and_then(half) == half(number)


@given(either())
def test_and_then_ok_changes_nothing(result: Result[int, str]):
    assert result.and_then(Ok) == result
    assert result.or_else(Err) == result


@given(either())
def test_and_then_can_be_grouped_either_way(result: Result[int, str]):
    assert result.and_then(half).and_then(less_one) == result.and_then(lambda n: half(n).and_then(less_one))


@given(either())
def test_map_keeps_identity_and_composition(result: Result[int, str]):
    assert result.map(lambda n: n) == result
    assert result.map(lambda n: n + 1).map(str) == result.map(lambda n: str(n + 1))
    assert result.map_err(len).map_err(str) == result.map_err(lambda e: str(len(e)))


@given(values)
def test_an_ok_answers_with_its_value(value: object):
    result = Ok(value)

    assert (result.is_ok(), result.is_err(), is_ok(result), is_err(result)) == (True, False, True, False)
    assert result.ok() == result.ok_value == result.unwrap() == result.expect("why") == value
    assert result.err() is None
    assert (
        result.unwrap_or("other") == result.unwrap_or_else(str) == result.unwrap_or_raise(KeyError) == value
    )
    assert result.map_or(0, lambda v: [v]) == result.map_or_else(lambda: 0, lambda v: [v]) == [value]
    assert result.map_err(str) is result.or_else(half) is result.inspect_err(print) is result
    for wrong_side in (result.unwrap_err, lambda: result.expect_err("unwrap_err")):
        with pytest.raises(ValueError, match="unwrap_err"):
            wrong_side()


@given(values)
def test_an_err_answers_with_its_error(error: object):
    result = Err(error)

    assert (result.is_ok(), result.is_err(), is_ok(result), is_err(result)) == (False, True, False, True)
    assert result.err() == result.err_value == result.unwrap_err() == result.expect_err("why") == error
    assert result.ok() is None
    assert result.unwrap_or("other") == "other"
    assert result.unwrap_or_else(lambda e: [e]) == [error]
    assert result.map_or(0, str) == result.map_or_else(lambda: 0, str) == 0
    assert result.map(str) is result.and_then(half) is result.inspect(print) is result
    for wrong_side in (result.unwrap, lambda: result.expect("unwrap")):
        with pytest.raises(ValueError, match="unwrap"):
            wrong_side()


def test_unwrap_or_raise_raises_what_is_made_of_the_error():
    with pytest.raises(KeyError, match="gone"):
        Err("gone").unwrap_or_raise(KeyError)


def test_unwrapping_an_exception_keeps_it_as_the_cause():
    cause = OSError("no route")

    with pytest.raises(ValueError) as caught:
        Err(cause).unwrap()

    assert caught.value.__cause__ is cause


def test_inspect_looks_at_its_own_side_and_returns_the_result():
    seen: list[object] = []

    assert Ok(1).inspect(seen.append) == Ok(1)
    assert Err(2).inspect_err(seen.append) == Err(2)
    assert seen == [1, 2]


def test_results_can_be_matched():
    def say(result: Result[int, str]) -> str:
        match result:
            case Ok(value):
                return f"value {value}"
            case Err(error):
                return f"error {error}"

    assert [say(Ok(1)), say(Err("no"))] == ["value 1", "error no"]


@given(values, values)
def test_results_are_equal_when_side_and_content_are(a: object, b: object):
    assert (Ok(a) == Ok(b)) == (a == b)
    assert (Err(a) == Err(b)) == (a == b)
    assert Ok(a) != Err(a)
    assert hash(Ok(a)) == hash(Ok(a))
    assert len({Ok(a), Ok(a), Err(a)}) == 2


def test_results_show_side_and_content_and_do_not_change():
    assert (repr(Ok(1)), repr(Err("no"))) == ("Ok(1)", "Err('no')")
    with pytest.raises(FrozenInstanceError):
        Ok(1).ok_value = 2  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("alias", "error"),
    [
        (TaskSendResult, TaskSendError),
        (HandleResult, HandleOperationError),
        (BrokerResult, BrokerOperationError),
    ],
)
def test_the_aliases_are_results_with_their_own_error(alias: typing.Any, error: type):
    assert alias[int] == Result[int, error]
    assert typing.get_args(alias[int]) == (Ok[int], Err[error])


# --- TaskError


def test_a_code_of_your_own_is_a_plain_string():
    error = TaskError(error_code="CARD_DECLINED", message="no", data={"attempt": 2})

    assert (error.error_code, error.message, error.data) == ("CARD_DECLINED", "no", {"attempt": 2})
    assert error.exception is None


@pytest.mark.parametrize("code", BUILTIN_CODE_REGISTRY)
def test_a_reserved_code_must_be_the_enum_member(code: str):
    member = BUILTIN_CODE_REGISTRY[code]

    with pytest.raises(ValueError, match=f"{type(member).__name__}.{member.name}"):
        TaskError(error_code=code)
    assert TaskError(error_code=member).error_code is member


class OwnCode(StrEnum):
    MINE = "MINE"


@pytest.mark.parametrize("code", [OwnCode.MINE, 7, TaskSendErrorCode.ENQUEUE_FAILED])
def test_an_enum_or_number_of_your_own_is_no_code(code: typing.Any):
    with pytest.raises(ValueError, match="plain str"):
        TaskError(error_code=code)


def test_an_error_shows_its_code_message_and_data_but_no_traceback():
    assert (
        repr(TaskError(error_code="X", message="m", exception=OSError("x")))
        == "TaskError(error_code='X', message='m')"
    )
    assert (
        repr(TaskError(error_code=OutcomeCode.TASK_TIMEOUT, data=[1]))
        == "TaskError(error_code='TASK_TIMEOUT', message=None, data=[1])"
    )


def test_a_failed_subworkflow_is_a_task_error_that_names_it():
    error = SubWorkflowError(error_code=OutcomeCode.SUBWORKFLOW_FAILED, message="m", sub_workflow_id="w1")

    assert isinstance(error, TaskError)
    assert error.sub_workflow_id == "w1"
    assert repr(error).startswith("SubWorkflowError(error_code='SUBWORKFLOW_FAILED'")
    with pytest.raises(ValueError):
        SubWorkflowError(error_code="SUBWORKFLOW_FAILED", sub_workflow_id="w1")


# --- TaskResult

oops = TaskError(error_code="OOPS", message="broken")


@pytest.mark.parametrize(
    "sides", [{}, {"ok": 1, "err": oops}, {"ok": None, "err": oops}, {"ok": 1, "err": None}, {"err": None}]
)
def test_a_task_result_has_exactly_one_side(sides: dict[str, typing.Any]):
    with pytest.raises(ValueError, match="exactly one"):
        TaskResult(**sides)


@pytest.mark.parametrize("value", [5, None, 0, ""])
def test_a_task_that_worked_has_a_value_even_an_empty_one(value: object):
    result = TaskResult(ok=value)

    assert (result.is_ok(), result.is_err()) == (True, False)
    assert result.ok == result.ok_value == result.unwrap() == value
    assert result.err is None
    with pytest.raises(ValueError, match="no error"):
        result.unwrap_err()
    with pytest.raises(ValueError, match="no error"):
        _ = result.err_value


def test_a_task_that_failed_has_an_error():
    result = TaskResult(err=oops)

    assert (result.is_ok(), result.is_err()) == (False, True)
    assert result.err == result.err_value == result.unwrap_err() == oops
    assert result.ok is None
    with pytest.raises(ValueError, match="OOPS"):
        result.unwrap()
    with pytest.raises(ValueError, match="OOPS"):
        _ = result.ok_value


def test_task_results_show_their_one_side():
    assert repr(TaskResult(ok=5)) == "TaskResult(ok=5)"
    assert repr(TaskResult(err=oops)) == "TaskResult(err=TaskError(error_code='OOPS', message='broken'))"


def test_task_results_are_equal_when_side_and_content_are():
    assert TaskResult(ok=5) == TaskResult(ok=5) != TaskResult(ok=6)
    assert TaskResult(ok=None) != TaskResult(err=oops)
    assert TaskResult(ok=5) != 5
    assert len({TaskResult(ok=5), TaskResult(ok=5), TaskResult(err=oops), TaskResult(err=oops)}) == 2


@pytest.mark.parametrize("result", [Ok(1), Err("e"), TaskResult(ok=None), TaskResult(err=oops)])
def test_results_survive_pickling_and_copying(result: object):
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result


def test_the_annotation_tells_value_and_error_type():
    def charge() -> TaskResult[int, TaskError]:
        return TaskResult[int, TaskError](ok=1)

    annotation = typing.get_type_hints(charge)["return"]

    assert typing.get_origin(annotation) is TaskResult
    assert typing.get_args(annotation) == (int, TaskError)
    assert charge() == TaskResult(ok=1)


# --- errors of sends and operations


def test_a_send_error_shows_no_arguments():
    payload = TaskSendPayload(
        task_name="pay",
        queue_name="default",
        priority=100,
        args_json='["4111-1111"]',
        kwargs_json='{"card": "4111-1111"}',
        sent_at=datetime(2026, 1, 1, tzinfo=UTC),
        good_until=None,
        enqueue_delay_seconds=None,
        task_options=None,
        enqueue_sha="ab" * 32,
    )
    error = TaskSendError(
        code=TaskSendErrorCode.ENQUEUE_FAILED,
        message="the database is away",
        retryable=True,
        task_id="t1",
        payload=payload,
        exception=OSError("while sending 4111-1111"),
    )

    assert "4111" not in repr(error)
    assert "4111" not in repr(payload)
    assert "pay" in repr(error)
    assert payload.kwargs_json == '{"card": "4111-1111"}'


def test_operation_errors_are_permanent_unless_said_otherwise():
    assert not TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED, message="m").retryable
    assert not BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message="m").retryable
    assert not HandleOperationError(
        code=HandleErrorCode.WORKFLOW_NOT_FOUND, message="m", workflow_id="w"
    ).retryable


def test_task_info_has_extras_only_on_request():
    info = TaskInfo(
        task_id="t",
        task_name="n",
        status=TaskStatus.PENDING,
        queue_name="q",
        priority=1,
        retry_count=0,
        max_retries=0,
    )

    assert (info.attempts, info.result, info.failed_reason, info.worker_pid) == (None, None, None, None)


def test_the_documented_path_leads_to_the_same_names():
    offered = [name for name in vars(horsies.core.models.tasks) if not name.startswith("_")]

    assert {"BUILTIN_CODE_REGISTRY", "TaskResult", "TaskError", "OperationalErrorCode"} <= set(offered)
    assert all(getattr(horsies.core.models.tasks, name) is getattr(results, name) for name in offered)
    assert results.OperationalErrorCode is OperationalErrorCode
