"""With default settings a worker claims short tasks ahead, and a task that turns out long holds up no other."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import count
from random import Random

from tests.e2e.observing import Db, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("maybe_wait")
def maybe_wait(path: str | None = None) -> TaskResult[int, TaskError]:
    while path and not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=1)
"""
WARM_UP = 400
AHEAD = 50


def _known_as_short(place: Workplace, *arguments: str) -> Office:
    """Start a worker that has learned that `maybe_wait` is short."""
    office = staffed(place, APP, *arguments)
    for handle in [office.tasks.maybe_wait.send().unwrap() for _ in range(WARM_UP)]:
        assert handle.get(30_000).is_ok()
    return office


def test_tasks_claimed_ahead_of_a_child_that_is_held_up_run_in_another_child(workplace: Workplace) -> None:
    office = _known_as_short(workplace, "--processes=2")
    gate = office.gate("held-up")

    handles = office.tasks.maybe_wait.send_many([{"path": str(gate)}, *[{}] * AHEAD]).unwrap()

    for handle in handles[1:]:
        assert handle.get(30_000).is_ok()
    assert not gate.exists()
    gate.touch()
    assert handles[0].get(30_000).is_ok()


def test_an_idle_child_takes_over_all_calls_behind_a_long_one_without_another_claim(
    workplace: Workplace, db: Db
) -> None:
    office = _known_as_short(workplace, "--processes=2")
    rounds = count()

    def moved() -> int:
        """Return how many tasks of one batch ran in another child than they were claimed for, by their only claim."""
        gate = office.gate(f"held-up-{next(rounds)}")
        handles = office.tasks.maybe_wait.send_many([{"path": str(gate)}, *[{}] * AHEAD]).unwrap()
        ran_in = [handle.get(30_000).unwrap() for handle in handles[1:]]
        gate.touch()
        assert handles[0].get(30_000).is_ok()
        rows = [row(db, handle) for handle in handles[1:]]
        return sum(
            each["claim_seq"] == 1 and each["worker_pid"] != pid
            for each, pid in zip(rows, ran_in, strict=True)
        )

    eventually(lambda: moved() >= 2, what="an idle child that takes over the calls behind a long one")


def test_tasks_claimed_ahead_of_a_child_that_is_held_up_run_in_another_worker(
    workplace: Workplace, db: Db
) -> None:
    office = _known_as_short(workplace, "--processes=1")
    rounds = count()

    def moved() -> int:
        """Return how many tasks were claimed ahead by the worker, released, and run by another one."""
        gate = office.gate(f"held-up-{next(rounds)}")
        handles = office.tasks.maybe_wait.send_many([{"path": str(gate)}, *[{}] * AHEAD]).unwrap()
        held_up_by = until_status(db, handles[0], "RUNNING")["claimed_by_worker_id"]
        other = workplace.start("--processes=1")
        for handle in handles[1:]:
            assert handle.get(30_000).is_ok()
        gate.touch()
        assert handles[0].get(30_000).is_ok()
        rows = [row(db, handle) for handle in handles[1:]]
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
        return sum(each["claim_seq"] > 1 and each["claimed_by_worker_id"] != held_up_by for each in rows)

    eventually(lambda: moved() > 0, 60, what="a task that was claimed ahead and run by another worker")


def test_tasks_of_an_unknown_run_time_are_claimed_one_for_each_process(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=2")
    gate = office.gate("unknown")

    handles = office.tasks.wait_for.send_many([{"path": str(gate)}] * 6).unwrap()
    for handle in handles[:2]:
        until_status(db, handle, "RUNNING")

    tally = "SELECT status, count(*) AS tasks FROM horsies_tasks_live GROUP BY 1 ORDER BY 1"
    found = [(each["status"], each["tasks"]) for each in db.execute(tally)]
    assert found == [("PENDING", 4), ("RUNNING", 2)]
    gate.touch()
    for handle in handles:
        assert handle.get(30_000).is_ok()


def test_short_tasks_are_claimed_ahead_by_default(workplace: Workplace, db: Db) -> None:
    office = _known_as_short(workplace, "--processes=1")

    def shared_a_claim() -> int:
        """Send a batch, and return the greatest number of its tasks that one claim started."""
        handles = office.tasks.maybe_wait.send_many([{}] * AHEAD).unwrap()
        for handle in handles:
            assert handle.get(30_000).is_ok()
        query = """SELECT max(tasks) AS most FROM (SELECT count(*) AS tasks FROM horsies_tasks WHERE id = ANY (%s::uuid[])
                   GROUP BY started_at) AS claims"""
        found = db.execute(query, ([handle.task_id for handle in handles],)).fetchone()
        assert found is not None
        return found["most"]

    eventually(lambda: shared_a_claim() > 2, what="a claim of more tasks than the worker has processes")


MIXED = """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("mixed")
def mixed(number: int, seconds: float) -> int:
    with open("begun", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(seconds)
    return number
"""
MANY = 3_000


def test_every_call_is_run_once_while_calls_are_shared_recalled_cancelled_and_children_replaced(
    workplace: Workplace, db: Db
) -> None:
    random = Random(5)
    office = staffed(workplace, MIXED, "--processes=2", "--max-tasks-per-child=50")
    # One in a hundred runs for longer than calls wait behind it.
    seconds = [0.08 if random.random() < 0.01 else 0.0 for _ in range(MANY)]
    handles = office.tasks.mixed.send_many(list(enumerate(seconds))).unwrap()
    cancelled = random.sample(range(MANY), 60)
    for number in cancelled:
        handles[number].cancel()

    rows = [row(db, handle) for handle in handles if handle.get(60_000)]

    begun = Counter(map(int, lines(workplace.folder / "begun")))
    assert max(begun.values()) == 1
    ended = Counter(each["status"] for each in rows)
    assert set(ended) == {"COMPLETED", "CANCELLED"}
    assert ended["CANCELLED"] <= len(cancelled)
    completed = {number for number, each in enumerate(rows) if each["status"] == "COMPLETED"}
    assert completed <= set(begun)
    assert max(each["claim_seq"] for each in rows) > 1, "no call was recalled and released"
