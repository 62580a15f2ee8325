"""`signal`, `show`, `why`, `info` and `retry --from-step` for tasks with steps."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from tests.cli.conftest import misused, refused
from tests.e2e.observing import row
from tests.support.waiting import eventually

PARKED = """
    INSERT INTO horsies_tasks (id, task_name, parked_at, enqueued_at)
    VALUES (%(id)s, 'ask', now(), now() + interval '1 hour')
"""
STEPS = """
    INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, started_at, ended_at, due_at, result)
    VALUES (%(id)s, 'charge', 'step', 1, 1, now() - interval '2 min', now() - interval '1 min', NULL, '{"ok":"card"}'),
           (%(id)s, 'approved', 'wait', 1, 1, now() - interval '1 min', NULL, now() + interval '1 hour', NULL)
"""
FAILED = """
    INSERT INTO horsies_tasks (id, task_name, status, live, started_at, failed_at, terminal_at, error_code, result, claim_seq,
                               claimed_by_worker_id)
    VALUES (%(id)s, 'order', 'FAILED', false, now(), now(), now(), 'X', '{"err":{"error_code":"X"}}', 1, gen_random_uuid())
"""
ENDED = """
    INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, started_at, ended_at, result)
    SELECT %(id)s, name, 'step', 1, 1, now() - interval '1 hour' + make_interval(secs => place), now(), '{"ok":1}'
      FROM unnest(ARRAY['first', 'second', 'third']) WITH ORDINALITY AS step (name, place)
"""


@pytest.fixture
def parked(db):
    """The id of a task that waits for a signal."""
    task_id = str(uuid4())
    db.execute(PARKED, {"id": task_id})
    db.execute(STEPS, {"id": task_id})
    return task_id


def test_a_signal_lets_a_parked_task_go_on(workplace, parked, db):
    result = workplace.run("signal", parked, "approved", '{"by": "ann"}')

    assert (result.returncode, result.stdout) == (0, f"{parked}: signalled 'approved'\n"), result.stderr
    task = db.execute("SELECT parked_at, enqueued_at <= now() AS is_due FROM horsies_tasks").fetchone()
    assert task == {"parked_at": None, "is_due": True}
    again = workplace.run("signal", parked, "approved", "null")
    assert again.returncode == 1
    assert "not signalled" in again.stderr


def test_a_signal_that_makes_no_sense_is_refused(workplace, parked):
    misused(workplace.run("signal", parked, "approved", "yes"), "'yes'", "quotes of its own")
    misused(workplace.run("signal", "7", "approved"), "'7' is not a task id")
    misused(workplace.run("signal", parked), "give TASK_ID NAME [JSON], not 1 word")
    misused(workplace.run("signal", parked, ""), "1 to 255 characters")
    refused(workplace.run("signal", str(uuid4()), "approved"), "HRS-302", "there is no task")


def test_a_parked_task_is_explained(workplace, parked):
    assert "It is parked in step 'approved' until it is signalled" in workplace.run("why", parked).stdout
    shown = workplace.run("show", parked).stdout
    assert "charge" in shown
    assert '{"ok":"card"}' in shown
    assert "(waits until" in shown
    document = json.loads(workplace.run("show", parked, "--json").stdout)
    assert [(step["name"], step["result"]) for step in document["steps"]] == [
        ("charge", {"ok": "card"}),
        ("approved", None),
    ]
    assert json.loads(workplace.run("info", "--json").stdout)["queues"][0]["parked"] == 1
    assert "parked" in workplace.run("info").stdout


def test_a_failed_task_is_retried_from_a_step(workplace, db):
    task_id = str(uuid4())
    db.execute(FAILED, {"id": task_id})
    db.execute(ENDED, {"id": task_id})

    refused(workplace.run("retry", task_id, "--from-step=fourth"), "HRS-302", "first, second, third")
    misused(workplace.run("retry", "--all", "--from-step=second"), "give TASK_ID...")
    result = workplace.run("retry", task_id, "--from-step=second")

    assert result.returncode == 0, result.stderr
    assert "forgot 2 steps: second, third" in result.stdout
    assert [row["name"] for row in db.execute("SELECT name FROM horsies_steps").fetchall()] == ["first"]
    assert db.execute("SELECT status FROM horsies_tasks").fetchone() == {"status": "PENDING"}
    refused(workplace.run("retry", task_id, "--from-step=first"), "HRS-302", "has not failed")


APP = """
app = Horsies()

def charge(amount: int) -> str:
    raise AssertionError("it is not carried out")

@app.task("pay")
def pay(amount: int) -> str:
    t = current_task()
    card = t.step("charge", charge, amount)
    if amount > 100:
        raise ValueError(f"{card} has a limit")
    return card + " " + t.step("receipt", charge, amount)

@app.task("tell")
def tell(amount: int) -> str:
    card = current_task().step("charge", charge, amount)
    return pay.delay(amount).task_id

@app.task("pay_async")
async def pay_async(amount: int) -> str:
    return await current_async_task().step("charge", charge, amount)
"""


def sent(db, name, amount):
    """Store a task with one step, and return its id."""
    task_id = str(uuid4())
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES (%s, %s, %s)",
        (task_id, name, json.dumps({"amount": amount})),
    )
    db.execute(
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, ended_at, result)"
        " VALUES (%s, 'charge', 'step', 1, 1, now(), '{\"ok\":\"card 7\"}')",
        (task_id,),
    )
    return task_id


def test_a_replay_returns_stored_steps_and_writes_nothing(workplace, db):
    workplace.write(APP)
    task_id = sent(db, "pay", 5)
    before = (
        db.execute("SELECT * FROM horsies_tasks").fetchall()
        + db.execute("SELECT * FROM horsies_steps").fetchall()
    )

    result = workplace.run("replay", "app:app", task_id)

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        'step \'charge\': {"ok":"card 7"}',
        "the replay ends: step 'receipt' has no stored result, and is not carried out",
    ]
    asynchronous = workplace.run("replay", "app:app", sent(db, "pay_async", 5))
    assert asynchronous.stdout.splitlines()[-1] == "returned 'card 7'", asynchronous.stderr
    db.execute("DELETE FROM horsies_tasks WHERE task_name = 'pay_async'")
    db.execute("DELETE FROM horsies_steps WHERE task_id <> %s", (task_id,))
    after = (
        db.execute("SELECT * FROM horsies_tasks").fetchall()
        + db.execute("SELECT * FROM horsies_steps").fetchall()
    )
    assert after == before


def test_a_replay_sends_no_tasks(workplace, db):
    workplace.write(APP)
    task_id = sent(db, "tell", 5)

    result = workplace.run("replay", "app:app", task_id)

    assert result.returncode == 1
    assert "read-only transaction" in result.stderr
    assert db.execute("SELECT task_name FROM horsies_tasks").fetchall() == [{"task_name": "tell"}]


def test_a_replay_shows_the_error_and_stops_where_it_is_told_to(workplace, db):
    workplace.write(APP)
    task_id = sent(db, "pay", 500)

    failed = workplace.run("replay", "app:app", task_id)
    assert failed.returncode == 1
    assert "ValueError: card 7 has a limit" in failed.stderr

    until = workplace.run("replay", "app:app", task_id, "--until=charge")
    assert (until.returncode, until.stdout) == (0, "the replay ends: it has come to step 'charge'\n"), (
        until.stderr
    )
    debugged = workplace.run("replay", "app:app", task_id, "--pdb")
    assert "(Pdb)" in debugged.stdout
    at_step = workplace.run(
        "replay", "app:app", task_id, "--pdb", "--until=charge", input="p 'amount', amount\nq\n"
    )
    assert "('amount', 500)" in at_step.stdout, at_step.stderr
    refused(workplace.run("replay", "app:app", str(uuid4())), "HRS-302", "there is no task")


FLAKY = """
app = Horsies()

@app.task("flaky", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[ConnectionError], jitter=False))
def flaky() -> str:
    t = current_task()
    t.log.info("begin")
    t.step("first", str, 1)
    t.log.info("attempt %d", t.attempt)
    if t.attempt == 1:
        raise ConnectionError("not yet")
    return t.step("second", str, 2)
"""


def lines_stored(db, task_id):
    return db.execute("SELECT count(*) AS n FROM horsies_task_logs WHERE task_id = %s", [task_id]).fetchone()[
        "n"
    ]


def test_attempts_are_shown_side_by_side(workplace, db):
    workplace.write(FLAKY)
    workplace.start("--processes", "1")
    task_id = workplace.load().flaky.delay().task_id
    eventually(lambda: row(db, task_id)["status"] == "COMPLETED", what="the second attempt")
    eventually(lambda: lines_stored(db, task_id) == 4, what="the log lines of both attempts")

    lines = workplace.run("show", task_id, "--diff").stdout.splitlines()

    assert lines[0] == f"flaky {task_id}"
    assert lines[1].split() == ["attempt", "1", "2"]
    cells = {" ".join(line.split()[:3]): line for line in lines[2:]}
    assert "FAILED, retried" in cells["≠ outcome FAILED,"]
    assert "COMPLETED" in cells["≠ outcome FAILED,"]
    assert "ConnectionError: not yet" in cells["≠ message ConnectionError:"]
    assert [line.count("stored before") for line in lines if "step first" in line] == [1]
    assert [line.split() for line in lines if " log " in line] == [
        ["log", "INFO", "begin", "INFO", "begin"],
        ["≠", "log", "INFO", "attempt", "1"],
        ["≠", "log", "INFO", "attempt", "2"],
    ]
    document = json.loads(workplace.run("show", task_id, "--diff", "--json").stdout)
    assert document["attempts"] == [1, 2]
    facts = {fact["fact"]: fact for fact in document["facts"]}
    assert facts["outcome"] == {"fact": "outcome", "differs": True, "texts": ["FAILED, retried", "COMPLETED"]}
    assert facts["step second"]["texts"][0] == ""


def test_a_task_that_has_not_begun_has_no_attempts_to_compare(workplace, parked, db):
    task_id = str(uuid4())
    db.execute("INSERT INTO horsies_tasks (id, task_name) VALUES (%s, 'ask')", (task_id,))
    assert workplace.run("show", task_id, "--diff").stdout == f"ask {task_id}\nthe task has not begun\n"
    assert "waits" in workplace.run("show", parked, "--diff").stdout
