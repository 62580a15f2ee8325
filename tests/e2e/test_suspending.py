"""A suspended queue is left alone by every worker, at once and through restarts, until it is resumed."""

from __future__ import annotations

from tests.e2e.observing import Db, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
QUEUES = [CustomQueueConfig(name=name, priority=1) for name in ("mail", "sms")]
app = Horsies(AppConfig.for_database_url(
    URL, queue_mode=QueueMode.CUSTOM, custom_queues=QUEUES, prefetch_buffer=2, claim_lease_ms=60_000
))

def define(queue):
    @app.task(queue, queue_name=queue)
    def note(path: str) -> TaskResult[int, TaskError]:
        with open(path, "a") as file:
            file.write("ran\\n")
        return TaskResult(ok=1)
    return note

mail, sms = define("mail"), define("sms")

@app.task("wait_for", queue_name="mail")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=1)
"""


def _states(db: Db) -> list[str]:
    return [found["state"] for found in db.execute("SELECT state FROM horsies_workers").fetchall()]


def _suspend(office: Office, *arguments: str) -> None:
    assert office.place.run("suspend", *arguments).returncode == 0


def test_nothing_is_claimed_while_all_is_suspended_and_everything_after(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    _suspend(office)
    eventually(lambda: _states(db) == ["suspended"], 20, "the worker being suspended")
    path = office.gate("note")
    handles = [task.send(str(path)).unwrap() for task in (office.tasks.mail, office.tasks.sms)]
    restarted = workplace.start("--processes=1")
    eventually(lambda: _states(db) == ["suspended"] * 2, 20, "the new worker being suspended, too")
    assert [row(db, handle)["status"] for handle in handles] == ["PENDING", "PENDING"]
    assert restarted.stop() == 0

    assert workplace.run("resume").returncode == 0

    assert all(handle.get(20_000).is_ok() for handle in handles)
    assert lines(path) == ["ran", "ran"]


def test_one_queue_can_be_suspended_alone(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    _suspend(office, "--queue=mail")
    held = office.tasks.mail.send(str(office.gate("held"))).unwrap()

    other = office.tasks.sms.send(str(office.gate("other"))).unwrap()

    assert other.get(20_000).is_ok()
    assert row(db, held)["status"] == "PENDING"
    assert workplace.run("resume", "--queue=mail").returncode == 0
    assert held.get(20_000).is_ok()


def test_what_runs_goes_on_and_what_was_claimed_ahead_goes_back(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("long")
    running = office.tasks.wait_for.send(str(gate)).unwrap()
    eventually(lambda: office.place.folder.joinpath("gate-long.begun").exists(), 20, "it having begun")
    ahead = [office.tasks.mail.send(str(office.gate("ahead"))).unwrap() for _ in range(2)]
    for handle in ahead:
        until_status(db, handle, "CLAIMED")

    _suspend(office)

    for handle in ahead:
        until_status(db, handle, "PENDING")
    gate.touch()
    assert running.get(20_000).is_ok()
    assert [row(db, handle)["status"] for handle in ahead] == ["PENDING", "PENDING"]
