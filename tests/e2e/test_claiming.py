"""Who gets which task, in which order, and that each is run once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from tests.e2e.observing import Db, lines, row, until_status
from tests.e2e.office import URL, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL,
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[
        CustomQueueConfig(name="bulk", priority=100, max_concurrency=None),
        CustomQueueConfig(name="mail", priority=50, max_concurrency=None),
        CustomQueueConfig(name="urgent", priority=1, max_concurrency=None),
    ],
    prefetch_buffer=4,
    claim_lease_ms=10_000,
))

def write(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\\n")
    return TaskResult(ok=os.getpid())

@app.task("bulk", queue_name="bulk")
def bulk(path: str, text: str) -> TaskResult[int, TaskError]:
    return write(path, text)

@app.task("mail", queue_name="mail")
def mail(path: str, text: str) -> TaskResult[int, TaskError]:
    return write(path, text)

@app.task("urgent", queue_name="urgent")
def urgent(path: str, text: str) -> TaskResult[int, TaskError]:
    return write(path, text)

@app.task("wait_for", queue_name="bulk")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())
"""


def test_two_thousand_tasks_and_four_workers_run_each_task_once(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    path = workplace.folder / "ran"
    for _ in range(4):
        workplace.start("--processes=2", ready=False)

    handles = tasks.bulk.send_many([(str(path), str(number)) for number in range(2_000)]).unwrap()

    done = "SELECT count(*) AS done FROM horsies_tasks WHERE status = 'COMPLETED'"
    eventually(lambda: db.execute(done).fetchone()["done"] == 2_000, 60, "all tasks being done")
    assert Counter(lines(path)) == Counter(str(number) for number in range(2_000))
    assert len(handles) == 2_000
    owners = db.execute("SELECT count(DISTINCT claimed_by_worker_id) AS owners FROM horsies_tasks").fetchone()
    assert owners is not None
    assert owners["owners"] > 1


def test_two_workers_share_the_work_and_hold_no_more_than_their_processes(
    workplace: Workplace, db: Db
) -> None:
    first = staffed(workplace, APP, "--processes=2", "--prefetch-buffer=0")
    workplace.start("--processes=2", "--prefetch-buffer=0")
    gate = first.gate("all")
    handles = [first.tasks.wait_for.send(str(gate)).unwrap() for _ in range(6)]
    in_flight = "SELECT claimed_by_worker_id, count(*) AS tasks FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1"

    eventually(
        lambda: sum(entry["tasks"] for entry in db.execute(in_flight)) == 4, what="four tasks in flight"
    )
    assert [entry["tasks"] for entry in db.execute(in_flight)] == [2, 2]
    gate.touch()

    pids = [handle.get(20_000).ok_value for handle in handles]
    assert len(set(pids)) == 4


def test_tasks_start_by_priority_then_by_time_then_by_id(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    path = str(workplace.folder / "order")
    expected: dict[str, list[str]] = {"urgent": [], "mail": [], "bulk": []}
    for turn in range(3):
        for queue, order in expected.items():
            getattr(tasks, queue).send(path, f"{queue}-{turn}").unwrap()
            order.append(f"{queue}-{turn}")
    first = tasks.bulk.with_options(priority=2).send(path, "bulk-preferred").unwrap()

    workplace.start("--processes=1")

    for task in ("urgent", "mail", "bulk"):
        eventually(
            lambda task=task: f"{task}-2" in lines(workplace.folder / "order"), what=f"{task} being done"
        )
    assert first.get(20_000).is_ok()
    assert lines(workplace.folder / "order") == [
        *expected["urgent"],
        *expected["mail"],
        "bulk-preferred",
        *expected["bulk"],
    ]


def test_tasks_of_the_same_moment_start_in_the_order_of_their_ids(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    path = workplace.folder / "order"
    moment = datetime.now(UTC) - timedelta(seconds=1)
    sender = tasks.bulk.with_options(eta=moment)
    handles = sender.send_many([(str(path), str(number)) for number in range(200)]).unwrap()
    by_id = sorted(range(200), key=lambda number: handles[number].task_id)

    workplace.start("--processes=1")

    eventually(lambda: len(lines(path)) == 200, 30, "all tasks being done")
    assert lines(path) == [str(number) for number in by_id]


def test_a_prefetched_task_is_claimed_with_its_owner_and_a_lease(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--prefetch-buffer=2")
    gate = office.gate("blocker")
    blocker = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, blocker, "RUNNING")
    behind = [office.tasks.bulk.send(str(office.gate("ran")), str(number)).unwrap() for number in range(3)]

    claimed = [until_status(db, handle, "CLAIMED") for handle in behind[:2]]

    (worker,) = db.execute("SELECT worker_id, pid FROM horsies_workers").fetchall()
    for stored in claimed:
        assert stored["claimed_by_worker_id"] == worker["worker_id"]
        assert stored["claimed_at"] is not None
        assert (stored["started_at"], stored["worker_pid"]) == (None, None)
    assert worker["pid"] == office.worker.pid
    assert row(db, behind[2])["status"] == "PENDING"
    assert lines(office.gate("ran")) == []
    gate.touch()
    assert all(handle.get(20_000).is_ok() for handle in behind)


def test_short_tasks_do_not_get_stuck_behind_a_long_one(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=2")
    path = office.gate("ran")
    # When all recent tasks were short, a worker may send several at once to a child.
    warm_up = office.tasks.bulk.send_many([(str(path), "short")] * 200).unwrap()
    assert all(handle.get(20_000).is_ok() for handle in warm_up)
    gate = office.gate("long")
    long = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, long, "RUNNING")

    short = [office.tasks.bulk.send(str(path), "short").unwrap() for _ in range(20)]
    stuck = [handle for handle in short if handle.get(2_000).is_err()]
    gate.touch()

    assert stuck == []


def test_a_worker_serves_only_the_queues_it_is_given(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--queues=mail,urgent")
    path = str(office.gate("ran"))

    bulk = office.tasks.bulk.send(path, "bulk").unwrap()
    others = [
        office.tasks.mail.send(path, "mail").unwrap(),
        office.tasks.urgent.send(path, "urgent").unwrap(),
    ]

    assert all(handle.get(20_000).is_ok() for handle in others)
    assert row(db, bulk)["status"] == "PENDING"


def test_prefetched_tasks_that_cannot_be_started_go_to_others_in_the_end(
    workplace: Workplace, db: Db
) -> None:
    source = """
app = Horsies(AppConfig.for_database_url(
    URL, prefetch_buffer=4, claim_lease_ms=1_000, max_claim_renew_age_ms=1_000,
    resilience=WorkerResilienceConfig(notify_poll_interval_ms=1_000),
))

@app.task("hold")
def hold(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getppid())

@app.task("quick")
def quick() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getppid())
"""
    office = staffed(workplace, source, "--processes=1")
    gate = office.gate("hold")
    long = office.tasks.hold.send(str(gate)).unwrap()
    until_status(db, long, "RUNNING")
    behind = [office.tasks.quick.send().unwrap() for _ in range(3)]
    for handle in behind:
        until_status(db, handle, "CLAIMED")

    workplace.start("--processes=1")

    templates = {handle.get(20_000).unwrap() for handle in behind}
    gate.touch()
    assert len(templates) == 1
    assert long.get(20_000).unwrap() not in templates
