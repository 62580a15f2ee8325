"""Outcomes are values: one side or the other, never both, and reprs that tell no secrets."""

import asyncio
import copy
import pickle
import typing
from dataclasses import FrozenInstanceError, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import horsies
import horsies.core.models.tasks
import horsies.result as results_module
from horsies.errors import (
    HorsiesError,
    ResultUnavailable,
    SendError,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskNotFound,
    TaskTimeout,
    UnwrapError,
    exception_for,
)
from horsies.result import (
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
    RetrievalCode,
    SubWorkflowError,
    TaskError,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    TaskSendResult,
    WorkflowStartError,
    WorkflowStartErrorCode,
    as_result,
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
    assert not BrokerOperationError(code=BrokerErrorCode.TASK_CANCEL_FAILED, message="m").retryable
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
    assert all(getattr(horsies.core.models.tasks, name) is getattr(results_module, name) for name in offered)
    assert results_module.OperationalErrorCode is OperationalErrorCode


def test_unwrapping_a_failed_send_raises_it():
    cause = OSError("no route")
    error = TaskSendError(
        code=TaskSendErrorCode.ENQUEUE_FAILED, message="no route", retryable=True, exception=cause
    )

    for unwrap in (Err(error).unwrap, lambda: Err(error).expect("could not send")):
        with pytest.raises(SendError) as raised:
            unwrap()
        assert (raised.value.code, raised.value.retryable, raised.value.error) == (error.code, True, error)
        assert raised.value.__cause__ is cause
    assert str(raised.value) == "ENQUEUE_FAILED: could not send: no route"


def test_unwrapping_a_failed_start_raises_it():
    error = WorkflowStartError(
        code=WorkflowStartErrorCode.VALIDATION_FAILED, message="no nodes", workflow_name="w"
    )
    with pytest.raises(SendError, match=r"^VALIDATION_FAILED: no nodes$") as raised:
        Err(error).unwrap()
    assert raised.value.code is WorkflowStartErrorCode.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NO_STOCK", TaskFailed),
        (None, TaskFailed),
        (OutcomeCode.TASK_TIMEOUT, TaskFailed),
        (OperationalErrorCode.WORKER_CRASHED, TaskFailed),
        (OutcomeCode.WORKFLOW_FAILED, TaskFailed),
        (RetrievalCode.WAIT_TIMEOUT, TaskTimeout),
        (RetrievalCode.RESULT_NOT_READY, TaskTimeout),
        (RetrievalCode.TASK_NOT_FOUND, TaskNotFound),
        (RetrievalCode.WORKFLOW_NOT_FOUND, TaskNotFound),
        (RetrievalCode.RESULT_NOT_AVAILABLE, ResultUnavailable),
        (OperationalErrorCode.BROKER_ERROR, ResultUnavailable),
        (OutcomeCode.TASK_CANCELLED, TaskCancelled),
        (OutcomeCode.WORKFLOW_CANCELLED, TaskCancelled),
        (OutcomeCode.TASK_EXPIRED, TaskExpired),
        (OutcomeCode.WORKFLOW_EXPIRED, TaskExpired),
    ],
)
def test_unwrapping_the_result_of_a_task_raises_by_its_code(code: Any, kind: type[Exception]):
    error = TaskError(error_code=code, message="why")
    for unwrap in (TaskResult[int, TaskError](err=error).unwrap, Err(error).unwrap):
        with pytest.raises(ValueError, match="why") as raised:
            unwrap()
        assert type(raised.value) is kind
        assert isinstance(raised.value, HorsiesError)
        assert raised.value.error is error  # type: ignore[attr-defined]  # pyright: ignore
        assert raised.value.code == code


def test_any_other_error_is_an_unwrap_error_with_its_value():
    for unwrap in (
        Err("no").unwrap,
        TaskResult[int, str](err="no").unwrap,
        lambda: Ok("no").unwrap_err(),
        TaskResult[str, str](ok="no").unwrap_err,
    ):
        with pytest.raises(UnwrapError, match="'no'") as raised:
            unwrap()
        assert raised.value.error == "no"


def test_a_failed_task_tells_the_end_of_its_traceback_without_passwords():
    frames = "".join(f'  File "shop.py", line {n}, in f{n}\n    f{n + 1}()\n' for n in range(20))
    described = {
        "traceback": f"Traceback (most recent call last):\n{frames}OSError: postgresql://a:s3cret@db/x\n"
    }
    error = TaskError(error_code="BROKEN", message="it broke", exception=described)

    text = str(exception_for(error, task_name="shop.charge", task_id="0199"))

    lines = text.splitlines()
    assert lines[0] == "task 'shop.charge' 0199 failed: BROKEN: it broke"
    assert lines[-1] == "  OSError: postgresql://a:***@db/x"
    assert "in f19" in text
    assert len(lines) == 11


@pytest.mark.parametrize(
    "error",
    [
        SendError(TaskSendErrorCode.ENQUEUE_FAILED, "no route", retryable=True),
        exception_for(TaskError(error_code="NO"), task_name="add", task_id="1"),
        UnwrapError("no", 5),
    ],
)
def test_exceptions_can_be_pickled_and_copied(error: HorsiesError):
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), other.code) == (type(error), str(error), error.code)


def frozen_classes() -> list[type]:
    public = [getattr(horsies, name) for name in horsies.__all__]
    return [
        each
        for each in public
        if isinstance(each, type) and is_dataclass(each) and vars(each)["__dataclass_params__"].frozen
    ]


@pytest.mark.parametrize("cls", frozen_classes(), ids=lambda cls: cls.__name__)
def test_a_frozen_value_refuses_every_assignment(cls: type):
    value = object.__new__(cls)
    for name in ("no_such_field", *(field.name for field in fields(cls))):
        with pytest.raises(FrozenInstanceError, match=repr(name)):
            setattr(value, name, 1)
        with pytest.raises(FrozenInstanceError, match=repr(name)):
            delattr(value, name)


def test_a_subclass_of_a_frozen_value_may_have_attributes_of_its_own():
    class Mine(Ok[int]):
        pass

    mine = Mine(1)
    mine.note = "x"  # type: ignore[attr-defined]  # pyright: ignore
    assert mine.note == "x"  # type: ignore[attr-defined]  # pyright: ignore
    with pytest.raises(FrozenInstanceError):
        mine.ok_value = 2  # type: ignore[misc]  # pyright: ignore


def test_a_task_error_can_be_a_field_of_a_pydantic_model():
    class Report(pydantic.BaseModel):
        error: TaskError
        more: list[TaskError] = []

    error = TaskError(error_code=OutcomeCode.TASK_TIMEOUT, message="too long", data={"n": 1})
    report = Report(error=error, more=[TaskError(error_code="NO_STOCK", exception=OSError("gone"))])

    assert report.error is error
    assert (
        report.model_dump()["error"]
        == error.model_dump()
        == {
            "error_code": OutcomeCode.TASK_TIMEOUT,
            "message": "too long",
            "data": {"n": 1},
            "exception": None,
        }
    )
    again = Report.model_validate_json(report.model_dump_json())
    assert again.error == error
    assert again.error.error_code is OutcomeCode.TASK_TIMEOUT
    assert again.more[0].exception == {"type": "OSError", "module": "builtins", "message": "gone"}
    assert "error_code" in str(Report.model_json_schema())
    for wrong in ("x", {"code": "x"}, {"error_code": 5}):
        with pytest.raises(pydantic.ValidationError):
            Report.model_validate({"error": wrong})
    nested = pydantic.TypeAdapter(SubWorkflowError).validate_python({"sub_workflow_id": "w"})
    assert isinstance(nested, SubWorkflowError)


def test_async_functions_are_applied_to_an_ok_only():
    async def double(number: int) -> int:
        return number * 2

    async def half_of(number: int) -> Result[int, str]:
        return half(number)

    async def run() -> list[object]:
        return [
            await Ok(2).map_async(double),
            await Err("no").map_async(double),
            await Ok(2).and_then_async(half_of),
            await Ok(3).and_then_async(half_of),
            await Err("no").and_then_async(half_of),
        ]

    assert asyncio.run(run()) == [Ok(4), Err("no"), Ok(1), Err("3 is odd"), Err("no")]


def test_as_result_turns_the_named_exceptions_into_errors():
    @as_result(ValueError, KeyError)
    def parse(text: str) -> int:
        """Parse."""
        if text == "boom":
            raise OSError(text)
        return int(text)

    assert parse("7") == Ok(7)
    assert isinstance(parse("seven").unwrap_err(), ValueError)
    assert (parse.__name__, parse.__doc__) == ("parse", "Parse.")
    with pytest.raises(OSError, match="boom"):
        parse("boom")


def test_as_result_awaits_an_async_function():
    @as_result(ValueError)
    async def parse(text: str) -> int:
        """Parse."""
        await asyncio.sleep(0)
        if text == "boom":
            raise OSError(text)
        return int(text)

    assert asyncio.run(parse("7")) == Ok(7)
    assert isinstance(asyncio.run(parse("seven")).unwrap_err(), ValueError)
    assert (parse.__name__, parse.__doc__) == ("parse", "Parse.")
    with pytest.raises(OSError, match="boom"):
        asyncio.run(parse("boom"))


@pytest.mark.parametrize("wrong", [(), ("x",), (int,)])
def test_as_result_needs_exception_classes(wrong: Any):
    with pytest.raises(TypeError, match="one or more exception classes"):
        as_result(*wrong)
