"""A retry comes when the policy says so, within its bounds, and never too late."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.errors import ErrorCode, HorsiesError, MultipleValidationErrors, TaskDefinitionError
from horsies.result import OperationalErrorCode, OutcomeCode
from horsies.retry import (
    RetryPolicy,
    add_local_names,
    backoff,
    check_exception_mapper,
    class_names,
    code_for,
    is_error_code,
    retry_delay,
    take_errors,
)

chance = st.floats(0, 1)


def policy(**changes: Any) -> RetryPolicy:
    return RetryPolicy(**{"auto_retry_for": ["RATE_LIMITED"], **changes})


def refusal(**changes: Any) -> TaskDefinitionError:
    with pytest.raises(TaskDefinitionError) as caught:
        policy(**changes)
    assert caught.value.code == ErrorCode.TASK_INVALID_OPTIONS
    assert caught.value.help_text
    return caught.value


# --- what a policy may be


def test_a_policy_has_the_documented_defaults():
    assert policy() == RetryPolicy(
        auto_retry_for=("RATE_LIMITED",),
        max_retries=3,
        intervals=(60, 300, 900),
        backoff_strategy="fixed",
        jitter=True,
        max_delay_seconds=None,
    )


@pytest.mark.parametrize("retries", [1, 20])
def test_retries_are_accepted_at_their_bounds(retries: int):
    assert RetryPolicy.exponential(5, max_retries=retries, auto_retry_for=["*"]).max_retries == retries
    assert RetryPolicy.fixed([5] * retries, auto_retry_for=["*"]).max_retries == retries


@pytest.mark.parametrize("retries", [0, 21, -1, True, 2.5, "3", None])
def test_retries_outside_their_bounds_are_refused_by_name_and_value(retries: Any):
    error = refusal(max_retries=retries, intervals=[5], backoff_strategy="exponential")

    assert f"max_retries={retries!r}" in error.message


@pytest.mark.parametrize("wait", [1, 86_400])
def test_intervals_are_accepted_at_their_bounds(wait: int):
    assert policy(max_retries=1, intervals=[wait]).intervals == (wait,)


@pytest.mark.parametrize("wait", [0, 86_401, True, 1.5, "60", None])
def test_intervals_outside_their_bounds_are_refused_with_the_value(wait: Any):
    assert repr(wait) in refusal(max_retries=1, intervals=[wait]).message


@pytest.mark.parametrize("count", [0, 21])
def test_the_number_of_intervals_is_bounded(count: int):
    with pytest.raises(MultipleValidationErrors, match=f"has {count} intervals"):
        RetryPolicy.fixed([5] * count, auto_retry_for=["*"])


def test_a_fixed_policy_has_one_interval_for_each_retry():
    assert "2 intervals for 3 retries" in refusal(max_retries=3, intervals=[5, 5]).message


def test_an_exponential_policy_has_one_interval():
    assert "exactly one" in str(refusal(backoff_strategy="exponential", intervals=[5, 5, 5]))


def test_an_unknown_strategy_is_refused():
    assert "'linear'" in refusal(backoff_strategy="linear").message


@pytest.mark.parametrize("seconds", [0, -1, True, 1.5])
def test_the_longest_delay_is_at_least_a_second(seconds: Any):
    assert f"max_delay_seconds={seconds!r}" in refusal(max_delay_seconds=seconds).message
    assert policy(max_delay_seconds=1).max_delay_seconds == 1


@pytest.mark.parametrize("codes", [[], ()])
def test_a_policy_names_at_least_one_error(codes: Any):
    assert "auto_retry_for" in refusal(auto_retry_for=codes).message


@pytest.mark.parametrize(
    "code", ["RateLimitError", "rate_limited", "9LIVES", "", "A-B", "A\n", int, None, "**", "a.", "a b.c"]
)
def test_what_is_neither_an_error_code_nor_an_exception_is_refused_with_the_remedy(code: Any):
    error = refusal(auto_retry_for=[code])

    assert repr(code) in error.message
    assert "ConnectionError without quotes" in (error.help_text or "")


def test_a_lone_code_is_a_list_of_one():
    assert policy(auto_retry_for="RATE_LIMITED").auto_retry_for == ("RATE_LIMITED",)


def test_everything_wrong_is_said_at_once():
    with pytest.raises(MultipleValidationErrors) as caught:
        policy(auto_retry_for=["no"], max_retries=99, intervals=[0], max_delay_seconds=0)

    assert len(caught.value.errors) == 5  # and 1 interval is not 99


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="max_retry"):
        policy(max_retry=3)


# --- delays


@given(st.integers(1, 86_400), st.integers(1, 20), chance)
def test_an_exponential_delay_doubles_within_a_quarter(base: int, retry: int, random: float):
    delay = RetryPolicy.exponential(base, max_retries=20, auto_retry_for=["*"]).delay(retry, random)

    expected = base * 2 ** (retry - 1)
    assert max(1.0, 0.75 * expected) <= delay <= 1.25 * expected


@given(st.lists(st.integers(1, 86_400), min_size=1, max_size=20), chance, st.data())
def test_a_fixed_delay_is_its_interval_within_a_quarter(
    intervals: list[int], random: float, data: st.DataObject
):
    retry = data.draw(st.integers(1, len(intervals)))

    delay = RetryPolicy.fixed(intervals, auto_retry_for=["*"]).delay(retry, random)

    assert max(1.0, 0.75 * intervals[retry - 1]) <= delay <= 1.25 * intervals[retry - 1]


def test_jitter_uses_the_whole_band():
    exact = RetryPolicy.exponential(100, auto_retry_for=["*"])

    assert [exact.delay(1, random) for random in (0, 0.5, 1)] == [75, 100, 125]


@given(chance)
def test_without_jitter_chance_has_no_say(random: float):
    steady = RetryPolicy.fixed([120] * 10, auto_retry_for=["*"], jitter=False)

    assert steady.delay(10, random) == 120


def test_a_delay_is_never_under_a_second():
    assert RetryPolicy.exponential(1, auto_retry_for=["*"]).delay(1, 0) == 1


@given(st.integers(1, 86_400), st.integers(1, 20), chance, st.integers(1, 100_000), st.booleans())
def test_a_delay_is_never_over_its_limit(base: int, retry: int, random: float, limit: int, jitter: bool):
    capped = RetryPolicy.exponential(
        base, max_retries=20, auto_retry_for=["*"], jitter=jitter, max_delay_seconds=limit
    )

    assert 1 <= capped.delay(retry, random) <= limit


# --- decisions


def after(error_code: str | None, *listed: str, retry_count: int = 0, **given: Any) -> float | None:
    chosen = RetryPolicy.fixed([10, 20], auto_retry_for=listed, jitter=False)
    return retry_delay(chosen, error_code, retry_count=retry_count, random=0.5, **given)


def test_a_listed_error_is_retried_after_the_delay_of_its_turn():
    assert after("RATE_LIMITED", "RATE_LIMITED") == 10
    assert after("RATE_LIMITED", "RATE_LIMITED", retry_count=1) == 20


def test_chance_moves_the_delay():
    jittered = RetryPolicy.fixed([100], auto_retry_for=["*"])

    assert retry_delay(jittered, "X", retry_count=0, random=0) == 75


def test_an_error_that_is_not_listed_stands():
    assert after("NO_STOCK", "RATE_LIMITED") is None
    assert after(None, "RATE_LIMITED") is None


def test_without_a_policy_every_error_stands():
    assert retry_delay(None, "X", retry_count=0, random=0.5) is None


def test_retries_run_out():
    assert after("RATE_LIMITED", "RATE_LIMITED", retry_count=2) is None
    assert after("RATE_LIMITED", "RATE_LIMITED", retry_count=3) is None


@pytest.mark.parametrize(
    "code", ["NO_STOCK", OutcomeCode.TASK_TIMEOUT, OperationalErrorCode.WORKER_CRASHED, None]
)
def test_a_star_stands_for_every_error(code: str | None):
    assert after(code, "*") == 10


def test_codes_may_be_listed_as_enum_members():
    assert after("WORKER_CRASHED", OperationalErrorCode.WORKER_CRASHED) == 10


@pytest.mark.parametrize("listed", ["TASK_EXCEPTION", "UNHANDLED_EXCEPTION", "OWN_DEFAULT"])
def test_an_unmapped_exception_is_known_by_each_of_its_names(listed: str):
    assert after("OWN_DEFAULT", listed, unmapped_exception=True) == 10


@pytest.mark.parametrize("listed", ["TASK_EXCEPTION", "UNHANDLED_EXCEPTION"])
def test_the_code_of_unhandled_exceptions_says_enough(listed: str):
    assert after(OperationalErrorCode.UNHANDLED_EXCEPTION, listed) == 10


def test_a_mapped_exception_is_known_by_its_own_code_only():
    assert after("UPSTREAM_TIMEOUT", "TASK_EXCEPTION", "UNHANDLED_EXCEPTION") is None
    assert after(OperationalErrorCode.TASK_EXCEPTION, "UNHANDLED_EXCEPTION") is None


# --- exception classes


def test_a_class_is_kept_by_its_qualified_name():
    assert policy(auto_retry_for=[ConnectionError, "BUSY"]).auto_retry_for == (
        "builtins.ConnectionError",
        "BUSY",
    )
    assert policy(auto_retry_for=TimeoutError).auto_retry_for == ("builtins.TimeoutError",)


class Busy(Exception):
    pass


class VeryBusy(Busy):
    pass


@pytest.mark.parametrize(
    ("listed", "error", "is_retried"),
    [
        (OSError, ConnectionRefusedError(), True),
        (Busy, VeryBusy(), True),
        (VeryBusy, Busy(), False),
        (Exception, Busy(), True),
        (Exception, KeyboardInterrupt(), False),
        (BaseException, KeyboardInterrupt(), True),
        (object, Busy(), None),
    ],
    ids=str,
)
def test_a_class_stands_for_its_subclasses(
    listed: type[BaseException], error: BaseException, is_retried: bool | None
):
    if is_retried is None:
        assert "auto_retry_for" in refusal(auto_retry_for=[listed]).message
        return
    chosen = RetryPolicy.fixed([10], auto_retry_for=[listed], jitter=False)

    delay = retry_delay(chosen, "X", exception_classes=class_names(error), retry_count=0, random=0.5)

    assert delay == (10 if is_retried else None)


def test_the_nearest_mapped_class_gives_the_code():
    mapper = {Exception: "ANY", OSError: "IO", ConnectionError: "NETWORK"}

    assert code_for(ConnectionRefusedError(), mapper) == "NETWORK"
    assert code_for(FileNotFoundError(), mapper) == "IO"
    assert code_for(ValueError(), mapper) == "ANY"
    assert code_for(KeyboardInterrupt(), mapper) is None
    assert code_for(ValueError(), None) is None


def test_a_class_without_a_usable_name_is_left_out():
    class Meta(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise RuntimeError("no module")

    class Odd(Busy, metaclass=Meta):
        pass

    nul = type("a\nb", (Busy,), {})

    assert class_names(Odd()) == class_names(Busy())
    assert class_names(nul()) == class_names(Busy())


def test_a_class_that_has_another_module_in_the_worker_is_still_known():
    stored = policy(auto_retry_for=["app_1.Busy", "NO_CLASS"])
    own = policy(auto_retry_for=["app.Busy", "other.Idle", "OTHER_CODE"])

    assert add_local_names(stored, own).auto_retry_for == ("app_1.Busy", "NO_CLASS", "app.Busy")
    assert add_local_names(stored, None) == stored
    assert add_local_names(stored, policy(auto_retry_for=["NO_CLASS", "other.Idle"])) == stored


def test_a_policy_without_errors_takes_those_of_another():
    bare = RetryPolicy.fixed([5])

    assert take_errors(bare, policy()).auto_retry_for == ("RATE_LIMITED",)
    assert take_errors(bare, None) == bare
    assert take_errors(policy(), policy(auto_retry_for=["OTHER"])) == policy()


def test_delays_may_be_timedeltas_of_whole_seconds():
    chosen = RetryPolicy.exponential(
        timedelta(minutes=1), auto_retry_for=["*"], max_delay_seconds=timedelta(minutes=2)
    )

    assert chosen == RetryPolicy.exponential(60, auto_retry_for=["*"], max_delay_seconds=120)
    assert (
        repr(timedelta(milliseconds=1500))
        in refusal(max_retries=1, intervals=[timedelta(milliseconds=1500)]).message
    )


# --- storage

policies = st.one_of(
    st.builds(
        RetryPolicy.fixed,
        st.lists(st.integers(1, 86_400), min_size=1, max_size=20),
        auto_retry_for=st.lists(st.from_regex(r"\A[A-Z][A-Z0-9_]*\Z|\A\*\Z"), min_size=1, max_size=3),
        jitter=st.booleans(),
        max_delay_seconds=st.none() | st.integers(1),
    ),
    st.builds(
        RetryPolicy.exponential,
        st.integers(1, 86_400),
        auto_retry_for=st.just([OperationalErrorCode.WORKER_CRASHED, ConnectionError]),
        max_retries=st.integers(1, 20),
    ),
)


@given(policies)
def test_a_policy_survives_storage(original: RetryPolicy):
    assert RetryPolicy.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_a_stored_policy_may_come_from_a_newer_release():
    assert RetryPolicy.from_json({**policy().to_json(), "new_option": 1}) == policy()


@pytest.mark.parametrize("stored", [{}, {"auto_retry_for": 3}, {"auto_retry_for": ["no"]}, [], None])
def test_a_stored_policy_that_makes_no_sense_is_refused(stored: Any):
    with pytest.raises(HorsiesError) as caught:
        RetryPolicy.from_json(stored)

    assert caught.value.code == ErrorCode.TASK_INVALID_OPTIONS


# --- backoff


@given(st.integers(0, 10_000), st.integers(100, 60_000), st.integers(500, 300_000), chance)
def test_backoff_doubles_up_to_its_cap_within_a_quarter(attempt: int, initial: int, cap: int, random: float):
    expected = min(cap, initial * 2**attempt) / 1_000

    assert 0.75 * expected <= backoff(attempt, initial, cap, random) <= 1.25 * expected


def test_backoff_uses_the_whole_band():
    assert [backoff(1, 500, 30_000, random) for random in (0, 0.5, 1)] == [0.75, 1.0, 1.25]


def test_backoff_copes_with_an_outage_of_a_year():
    assert backoff(1_000_000, 500, 30_000, 0.5) == 30


# --- exception mappers


@pytest.mark.parametrize("code", ["A", "RATE_LIMITED", "E404", OperationalErrorCode.TASK_EXCEPTION])
def test_codes_are_capitals_digits_and_underscores(code: str):
    assert is_error_code(code)


@pytest.mark.parametrize("code", ["", "a", "_A", "4XX", "FooError", "A B", "A\n", None, 7])
def test_anything_else_is_no_code(code: object):
    assert not is_error_code(code)


def test_a_mapper_of_classes_to_codes_is_fine():
    assert check_exception_mapper({TimeoutError: "UPSTREAM_TIMEOUT", KeyError: "MISSING"}, "AppConfig") == []
    assert check_exception_mapper({}, "AppConfig") == []


@pytest.mark.parametrize(
    ("mapper", "quoted"),
    [
        ([("TimeoutError", "X")], "TimeoutError"),
        ({"TimeoutError": "X"}, "'TimeoutError'"),
        ({int: "X"}, "int"),
        ({TimeoutError("no"): "X"}, "TimeoutError('no')"),
        ({TimeoutError: "TimeoutError"}, "'TimeoutError'"),
        ({TimeoutError: None}, "None"),
    ],
)
def test_a_mapper_of_anything_else_is_refused(mapper: object, quoted: str):
    (error,) = check_exception_mapper(mapper, "task 'pay'")

    assert error.code == ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
    assert "task 'pay'" in error.message
    assert quoted in error.message
    assert error.help_text


def test_every_fault_of_a_mapper_is_found():
    assert len(check_exception_mapper({"TimeoutError": "no", KeyError: "nor this"}, "AppConfig")) == 3
