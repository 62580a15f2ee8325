"""A rate limit is written as starts per period; anything else is refused where the task is defined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.durations import RateLimit
from horsies.errors import ErrorCode, HorsiesError, TaskDefinitionError

PERIODS = {"s": 1, "m": 60, "h": 3600}
BAD = ["10", "0/s", "x/m", "", "/s", "10/", "10/d", "10/S", "-1/s", "1.5/s", "+3/s", "01/s", " 10/s", "10/s "]
BAD += ["10 / s", "10/s\n", "10/sec", "1e3/s", "\u0661/s", "9999999999/s"]


@given(starts=st.integers(1, 999_999_999), period=st.sampled_from(list(PERIODS)))
def test_a_rate_is_one_start_in_its_share_of_the_period_and_a_tenth_of_them_at_once(
    starts: int, period: str
) -> None:
    rate = RateLimit.parse(f"{starts}/{period}")

    assert rate is not None
    assert rate.seconds * starts == pytest.approx(PERIODS[period])
    assert rate.burst == max(1, starts // 10)


@pytest.mark.parametrize("written", [*BAD, 5, 10.0, None, b"10/s", True, ["10/s"]])
def test_what_is_no_rate_is_not_taken_for_one(written: object) -> None:
    assert RateLimit.parse(written) is None


def define(rate_limit: object) -> Horsies:
    app = Horsies(AppConfig.for_database_url("postgresql://nobody@127.0.0.1:1/nowhere"))

    @app.task("call", rate_limit=rate_limit)  # type: ignore[arg-type]
    def call() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    return app


@pytest.mark.parametrize("rate_limit", [*BAD, 5, 10.0, b"10/s"])
def test_a_bad_rate_limit_is_refused_where_the_task_is_defined(rate_limit: object) -> None:
    with pytest.raises(HorsiesError) as caught:
        define(rate_limit)

    error = caught.value
    assert isinstance(error, TaskDefinitionError)
    assert error.code == ErrorCode.TASK_INVALID_OPTIONS == "HRS-102"
    assert "'call'" in error.message
    assert f"rate_limit={rate_limit!r}" in error.message
    assert error.help_text is not None
    assert '"100/m"' in error.help_text


def test_a_task_with_a_rate_limit_stands_in_a_line_of_its_own_and_others_do_not() -> None:
    limited = define("100/m").tasks["call"].definition
    free = define(None).tasks["call"].definition

    assert (limited.rate_key, limited.rate) == ("call", RateLimit(seconds=0.6, burst=10))
    assert (free.rate_key, free.rate) == ("", None)
