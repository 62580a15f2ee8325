"""Tasks with a key run at most so many at once in the whole cluster, whatever happens to their workers."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.observing import Db, lines
from tests.e2e.office import URL
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# With a poll of a minute, what starts within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(
    URL,
    resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000),
    claim_lease_ms=3_000,
    recovery=RecoveryConfig(crashed_worker_recovery_grace_ms=0),
))
DIARY = "diary"

def note(word: str, customer: str) -> None:
    diary = os.open(DIARY, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(diary, f"{word} {customer}\\n".encode())
    os.close(diary)

@app.task("serve", key="customer", key_concurrency=2, idempotent=True)
def serve(customer: str, seconds: float = 0.005) -> None:
    note("begin", customer)
    time.sleep(seconds)
    note("end", customer)

@app.task("serve_async", key="customer", key_concurrency=2)
async def serve_async(customer: str, seconds: float = 0.005) -> None:
    note("begin", customer)
    await asyncio.sleep(seconds)
    note("end", customer)

@app.task("one", key=lambda customer: customer, key_concurrency=1, retry_on=(ValueError,), retry_policy=RetryPolicy.fixed([1]))
def one(customer: str) -> int:
    return 1

@app.task("plain")
def plain(number: int = 0) -> int:
    time.sleep(0.0005)
    return number
"""


def most_at_once(diary: Path) -> Counter[str]:
    """How many tasks of each customer ran at once at most, as their own code has noted it."""
    at_once, most = Counter[str](), Counter[str]()
    for line in lines(diary):
        word, customer = line.split()
        at_once[customer] += 1 if word == "begin" else -1
        most[customer] = max(most[customer], at_once[customer])
    return most


def ended(db: Db) -> int:
    found = db.execute("SELECT count(*) AS n FROM horsies_tasks WHERE NOT live").fetchone()
    assert found is not None
    return found["n"]


@pytest.mark.parametrize("name", ["serve", "serve_async"])
def test_two_workers_run_at_most_two_tasks_of_a_key_at_once(workplace: Workplace, db: Db, name: str) -> None:
    workplace.write(URL + APP)
    task = getattr(workplace.load(), name)
    for worker in [workplace.start("--processes=3", ready=False) for _ in range(2)]:
        worker.wait_until_ready()

    task.send_many([(f"c{number % 5}",) for number in range(150)]).unwrap()

    eventually(lambda: ended(db) == 150, 30, "every task having ended")
    most = most_at_once(workplace.folder / "diary")
    assert set(most) == {f"c{number}" for number in range(5)}
    assert max(most.values()) == 2


def test_a_key_with_a_backlog_delays_another_key_by_one_turn(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    workplace.start("--processes=1")
    tasks.serve.send_many([("big",)] * 300).unwrap()
    eventually(lambda: ended(db) > 5, 20, "the backlog being worked on")

    for number in range(5):
        tasks.serve.delay(f"small{number}").result(timeout=20)

    assert ended(db) < 250


def test_a_key_of_a_send_is_found_although_the_worker_knows_no_task_with_keys(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(
        URL
        + 'app = Horsies(AppConfig.for_database_url(URL))\n@app.task("plain")\ndef plain() -> int:\n    return 1\n'
    )
    tasks = workplace.load()
    workplace.start("--processes=1")

    assert tasks.plain.with_options(key="acme").delay().result(timeout=20) == 1
    handles = [tasks.plain.with_options(key=number % 3).delay() for number in range(30)]

    assert [handle.result(timeout=20) for handle in handles] == [1] * 30


def test_tasks_with_keys_are_not_starved_by_short_tasks_that_are_claimed_ahead(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    workplace.start("--processes=2")
    for handle in [tasks.plain.delay() for _ in range(300)]:
        handle.result(timeout=30)
    tasks.plain.send_many([(number,) for number in range(20_000)]).unwrap()

    tasks.serve.delay("acme").result(timeout=20)

    assert ended(db) < 10_000


def test_the_tasks_of_a_killed_worker_run_again_within_the_limit(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    first = workplace.start("--processes=4")
    tasks.serve.send_many([(f"c{number % 3}", 0.05) for number in range(60)]).unwrap()
    eventually(lambda: ended(db) > 6, 20, "some tasks having ended")
    first.signal(signal.SIGKILL)
    workplace.start("--processes=4")

    eventually(lambda: ended(db) == 60, 60, "every task having ended")
    statuses = db.execute("SELECT DISTINCT status FROM horsies_tasks").fetchall()
    assert statuses == [{"status": "COMPLETED"}]
    left = db.execute("SELECT count(*) AS n FROM horsies_key_slots").fetchone()
    assert left == {"n": 0}


def test_a_row_with_a_key_that_cannot_be_claimed_stops_no_other(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, rate_key, claim_seq, kwargs, enqueued_at)"
        " VALUES ('serve', 'key=bad', 2147483647, '{\"customer\": \"bad\"}', now() - interval '1 hour')"
    )
    workplace.start("--processes=2")

    for customer in ("a", "bad", "z"):
        tasks.serve.delay(customer).result(timeout=20)

    poisoned = db.execute(
        "SELECT status, error_code FROM horsies_tasks WHERE claim_seq = 2147483647"
    ).fetchall()
    assert poisoned == [{"status": "FAILED", "error_code": "POISONED_ROW"}]


def test_a_refused_request_holds_its_key_and_no_other(workplace: Workplace, db: Db) -> None:
    workplace.write(
        URL
        + """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("ask", key="customer")
def ask(customer: str) -> float:
    if customer == "busy" and not Path("asked").exists():
        Path("asked").touch()
        raise RateLimited(after=1.5)
    return time.time()
"""
    )
    tasks = workplace.load()
    workplace.start("--processes=1")
    began = time.time()
    first, second = tasks.ask.delay("busy"), tasks.ask.delay("busy")

    other = tasks.ask.delay("idle").result(timeout=20)

    assert first.result(timeout=20) >= began + 1.5
    assert second.result(timeout=20) >= first.result(timeout=20)
    assert other < first.result(timeout=20)
    retries = db.execute("SELECT DISTINCT retry_count FROM horsies_tasks").fetchall()
    assert retries == [{"retry_count": 0}]
