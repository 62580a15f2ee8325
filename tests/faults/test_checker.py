"""The checker finds every kind of broken promise in forged histories, and none in an honest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.checker import Freeze, History, Policy, Row, check, held_over, repeated
from tests.faults.testimony import PRODUCERS, TASKS, Run, Send, Witness, read_runs, read_sends

POLICIES = {"once": Policy(1, frozenset({"NO_LUCK"})), "again": Policy(3)}


def _run(number: int, began: int, ended: int | None, pid: int = 100, task: str = "once") -> Run:
    return Run(number, task, "narrow", pid, began, ended)


def _row(run: Run, **changes: object) -> Row:
    row = Row(f"id-{run.number}", run.number, run.task, "COMPLETED", run.token)
    return replace(row, **changes)  # pyright: ignore[reportArgumentType]


FIRST = _run(1, 10, 20)
SECOND = _run(2, 15, 25, pid=101)
# Cut short with its process, and run again by another.
KILLED = _run(3, 30, None, pid=102, task="again")
RESCUED = _run(3, 50, 60, task="again")
FAILED = _run(4, 70, 80)

HONEST = History(
    sends=[
        Send(1, "once", 0, "id-1"),
        Send(2, "once", 2, "id-2"),
        Send(3, "again", 0, "id-3"),
        Send(4, "once", 0, "id-4"),
        Send(5, "once", 1, None),  # nobody knows what became of it, and it never was
    ],
    runs=[FIRST, SECOND, KILLED, RESCUED, FAILED],
    rows=[
        _row(FIRST),
        _row(SECOND),
        _row(RESCUED, claim_seq=3, crash_count=1),
        _row(FAILED, status="FAILED", result=None, error_code="NO_LUCK"),
    ],
    policies=POLICIES,
    caps={"narrow": 2},
    seen={"id-1": (30, _row(FIRST))},
    alive={100: 100, 101: 100, 102: 40},
)
Forge = Callable[[History], History]


def _with_row(history: History, row: Row) -> History:
    return replace(history, rows=[*(other for other in history.rows if other.id != row.id), row])


def _with_run(history: History, *runs: Run) -> History:
    return replace(history, runs=[*history.runs, *runs])


FORGED: dict[str, tuple[Forge, str]] = {
    "a row is missing": (
        lambda history: replace(history, rows=history.rows[1:], seen={}),
        "task 1 was acknowledged as id-1 and has no row",
    ),
    "a send made two rows": (
        lambda history: _with_row(history, _row(FIRST, id="id-9")),
        "task 1 has 2 rows: id-1, id-9",
    ),
    "another id was acknowledged": (
        lambda history: replace(history, sends=[Send(1, "once", 0, "id-9"), *history.sends[1:]]),
        "task 1 was acknowledged as id-9, its row is id-1",
    ),
    "a task never ends": (
        lambda history: _with_row(history, _row(SECOND, status="RUNNING", result=None)),
        "task 2 is RUNNING and will stay so",
    ),
    "a row that nobody sent": (
        lambda history: _with_row(history, Row("id-9", None, "once", "FAILED", None, "NO_LUCK")),
        "row id-9 (once) was sent by nobody",
    ),
    "a run that nobody sent": (
        lambda history: _with_run(history, _run(9, 90, 95)),
        "task 9 was run and sent by nobody",
    ),
    "two runs at once": (
        lambda history: replace(history, alive={**history.alive, 102: 51}),
        "task 3 ran in processes 102 and 100 at once",
    ),
    "a run after the stored one": (
        lambda history: _with_run(history, _run(3, 61, 65, task="again")),
        "task 3 was begun in process 100 after it had ended",
    ),
    "a run after the end was seen": (
        lambda history: _with_run(replace(history, seen={"id-4": (85, history.rows[3])}), _run(4, 86, 90)),
        "task 4 was begun in process 100 after it had ended",
    ),
    "a result of no run": (
        lambda history: _with_row(history, _row(SECOND, result="2:7:7")),
        "task 2 has the result '2:7:7', which no run of it gave",
    ),
    "completed without a run": (
        lambda history: replace(history, runs=[run for run in history.runs if run.number != 2]),
        "task 2 has the result '2:101:15', which no run of it gave",
    ),
    "a result of a run that did not end": (
        lambda history: _with_row(history, _row(KILLED)),
        "task 3 has the result of a run that never came to its end",
    ),
    "a stale result": (
        lambda history: replace(
            _with_row(history, _row(KILLED)),
            runs=[FIRST, SECOND, FAILED, replace(KILLED, ended=35), RESCUED],
        ),
        "task 3 has the result of a run that was followed by another one",
    ),
    "started twice against its policy": (
        lambda history: _with_run(history, _run(4, 60, 65)),
        "task 4 (once) started 2 times, 1 at most are allowed",
    ),
    "crashed though nothing did": (
        lambda history: replace(
            _with_row(history, _row(FAILED, status="FAILED", result=None, error_code="WORKER_CRASHED")),
            crashes_expected=False,
        ),
        "task 4 failed with WORKER_CRASHED, and no process of its had died",
    ),
    "an error that it cannot have": (
        lambda history: _with_row(history, _row(FAILED, status="FAILED", result=None, error_code="ODD")),
        "task 4 failed with ODD, which is none of its errors",
    ),
    "a cap by one, for a moment": (
        lambda history: replace(
            _with_run(history, _run(5, 19, 21, pid=103)), rows=[*history.rows, _row(_run(5, 19, 21, pid=103))]
        ),
        "queue narrow ran 3 tasks at once, its cap is 2",
    ),
    "a final row rewritten": (
        lambda history: replace(history, seen={"id-1": (30, _row(FIRST, status="FAILED", result=None))}),
        "task 1 was final as Row(",
    ),
    "a final row deleted": (
        lambda history: replace(history, seen={"id-7": (30, _row(_run(7, 1, 2)))}),
        "task 7 was COMPLETED and its row is gone",
    ),
    "a process left behind": (
        lambda history: replace(history, survivors=[101]),
        "process 101 has outlived its worker",
    ),
}


def test_an_honest_history_passes() -> None:
    assert check(HONEST) == []


@pytest.mark.parametrize(("forge", "words"), FORGED.values(), ids=FORGED)
def test_a_broken_promise_is_found(forge: Forge, words: str) -> None:
    assert [found for found in check(forge(HONEST)) if words in found]


def test_a_cap_is_not_exceeded_by_a_run_that_begins_when_another_ends() -> None:
    third = _run(5, 20, 22, pid=103)
    history = replace(_with_run(HONEST, third), rows=[*HONEST.rows, _row(third)])

    assert check(history) == []


SECOND_NS = 1_000_000_000
FROZEN = Freeze(frozenset({102}), until=35, thawed=45)


def _gone_on_until(ended: int) -> History:
    return replace(
        HONEST,
        runs=[FIRST, SECOND, FAILED, replace(KILLED, ended=ended), RESCUED],
        caps={},
    )


def test_the_code_of_a_frozen_process_may_go_on_when_it_thaws() -> None:
    history = replace(_gone_on_until(55), caps=HONEST.caps)

    assert check(history)
    assert check(replace(history, freezes=[FROZEN])) == []
    assert held_over(replace(history, freezes=[FROZEN])) == 1


def test_a_thawed_worker_has_two_seconds_to_notice() -> None:
    in_time, late = _gone_on_until(2 * SECOND_NS), _gone_on_until(2 * SECOND_NS + 46)

    assert check(replace(in_time, freezes=[FROZEN])) == []
    assert check(replace(late, freezes=[FROZEN])) == [
        "task 3 went on in process 102 for 2.0 s after its worker had thawed"
    ]


def test_what_begins_after_a_freeze_is_not_excused_by_it() -> None:
    begun = replace(KILLED, began=36, ended=55)
    history = replace(HONEST, runs=[FIRST, SECOND, FAILED, begun, RESCUED], freezes=[FROZEN])

    assert [found for found in check(history) if "task 3 ran in processes 102 and 100 at once" in found]


def test_a_process_may_thaw_at_the_first_line_of_one_task_and_no_more() -> None:
    thawed = Freeze(frozenset({102}), until=35, thawed=61)
    stray, second = _run(3, 62, 64, pid=102, task="again"), _run(1, 65, 66, pid=102)
    one = replace(_with_run(HONEST, stray), freezes=[thawed])

    assert check(one) == []
    assert held_over(one) == 1
    assert check(replace(one, freezes=[replace(thawed, whole=False)]))
    assert [found for found in check(_with_run(one, second)) if "task 1 was begun in process 102" in found]


def test_a_row_made_by_hand_is_no_loss() -> None:
    stranger = Row("id-9", None, "once", "FAILED", None, "WORKER_SERIALIZATION_ERROR")

    assert check(replace(_with_row(HONEST, stranger), strangers=frozenset({"id-9"}))) == []


def test_only_finished_runs_count_as_repeated() -> None:
    finished = replace(HONEST, runs=[FIRST, SECOND, FAILED, replace(KILLED, ended=35), RESCUED])

    assert repeated(HONEST) == 0
    assert repeated(finished) == 1


def test_testimonies_are_read_as_they_were_given(tmp_path: Path) -> None:
    tasks, producers = Witness(tmp_path, TASKS), Witness(tmp_path, PRODUCERS)
    producers.say("send", number=1, task="once")
    producers.say("failed", number=1, code="ENQUEUE_FAILED")
    producers.say("acknowledged", number=1, id="id-1")
    producers.say("send", number=2, task="again")
    began = tasks.say("start", number=1, task="once", queue="wide")
    ended = tasks.say("end", number=1, began=began)
    tasks.say("start", number=2, task="again", queue="wide")

    runs = read_runs(tmp_path)

    assert read_sends(tmp_path) == [Send(1, "once", 1, "id-1"), Send(2, "again")]
    assert [(run.number, run.ended) for run in runs] == [(1, ended), (2, None)]
    assert runs[0].began == began


# The server crashes while a task of an idempotent kind runs, and its claim is undone: it runs again beside the first run.
UNDONE = replace(
    HONEST,
    runs=[FIRST, SECOND, _run(3, 30, 60, pid=102, task="again"), _run(3, 50, 70, task="again"), FAILED],
    rows=[*HONEST.rows[:2], _row(_run(3, 50, 70, task="again")), HONEST.rows[3]],
    unflushed=frozenset({"again"}),
)


@pytest.mark.parametrize("crash", [(35, 45), (25, 32)], ids=["during the run", "before its first line"])
def test_a_claim_that_a_crash_of_the_server_has_undone_permits_a_second_run(crash: tuple[int, int]) -> None:
    assert check(replace(UNDONE, server_crashes=[crash])) == []


@pytest.mark.parametrize("crash", [(10, 20), (55, 58)], ids=["before the run", "after the second had begun"])
def test_no_other_crash_permits_a_second_run(crash: tuple[int, int]) -> None:
    found = check(replace(UNDONE, server_crashes=[crash]))

    assert any("task 3 ran in processes 102 and 100 at once" in words for words in found)


def test_a_run_that_was_cancelled_lasted_until_then() -> None:
    cancelled = replace(KILLED, pid=100, stopped=45)

    assert check(replace(HONEST, runs=[FIRST, SECOND, cancelled, RESCUED, FAILED])) == []
    late = replace(cancelled, stopped=55)
    found = check(replace(HONEST, runs=[FIRST, SECOND, late, RESCUED, FAILED]))
    assert any("task 3 ran in processes 100 and 100 at once" in words for words in found)
