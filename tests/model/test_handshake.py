"""A call that was sent ahead is begun by the child or taken back by the worker, in every order of their steps."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.model.handshake import Rules, explore

# For each rule, the problem that arises without it.
NEEDS = {
    "child_needs_a_token": "a call was begun and taken back",
    "child_drops_older_calls": "a call was begun and taken back",
    "child_waits_for_the_call": "two calls were blamed for one crash",
    "worker_needs_a_token": "a call was begun and taken back",
    "worker_hears_all_before_it_judges": "a call that had ended was blamed for a crash",
    "retiring_child_takes_no_token": "a call was begun and taken back",
}


def test_each_call_is_begun_or_taken_back_and_never_both() -> None:
    outcome = explore(5, Rules())

    assert outcome.problem is None, outcome
    assert outcome.states > 10_000


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_no_rule_can_be_left_out(rule: str) -> None:
    outcome = explore(3, replace(Rules(), **{rule: False}))

    assert outcome.problem == NEEDS[rule], outcome
    assert outcome.trace
