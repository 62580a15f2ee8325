"""Transactions that take long: a task is started soon after its slow commit, and a large result has the time that it needs."""

from __future__ import annotations

import pytest

from tests.e2e.observing import Db
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# With a poll of a minute, a task that is started within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(
    os.environ["HORSIES_DATABASE_URL"], resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000)
))

@app.task("quick")
def quick() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("slow_to_commit")
def slow_to_commit() -> TaskResult[int, TaskError]:
    return TaskResult(ok=2)
"""

# A deferred trigger runs at the commit, after the insert trigger has read the workers' rows. It keeps what that one saw.
DELAY = """
CREATE TABLE commits (id uuid, worker_waited boolean);
CREATE FUNCTION delay_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep({seconds});
    RETURN NULL;
END $$;
CREATE FUNCTION note_workers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commits SELECT NEW.id, bool_or(waiting) FROM horsies_workers;
    RETURN NULL;
END $$;
CREATE TRIGGER note_workers AFTER INSERT ON horsies_tasks_live FOR EACH ROW
    WHEN (NEW.task_name = 'slow_to_commit') EXECUTE FUNCTION note_workers();
CREATE CONSTRAINT TRIGGER delay_commit AFTER INSERT ON horsies_tasks_live DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.task_name = 'slow_to_commit') EXECUTE FUNCTION delay_commit();
"""


@pytest.mark.parametrize("seconds", [0.2, 1, 3])
def test_a_send_that_is_slow_to_commit_is_started_without_a_poll(
    workplace: Workplace, db: Db, seconds: float
) -> None:
    workplace.write(APP)
    tasks = workplace.load()
    db.execute(DELAY.format(seconds=seconds).encode())
    workplace.start("--processes=1")

    def missed_the_worker() -> bool:
        """Send right after a result, while the worker still looks for work by itself; True if it did."""
        assert tasks.quick.send().unwrap().get(20_000).is_ok()
        handle = tasks.slow_to_commit.send().unwrap()
        assert handle.get(20_000).is_ok(), "the task was not started until the next poll"
        row = db.execute("SELECT worker_waited FROM commits WHERE id = %s", (handle.task_id,)).fetchone()
        assert row is not None
        return not row["worker_waited"]

    eventually(missed_the_worker, 60, "a send that reads the worker's row before the worker waits")


LARGE = """
app = Horsies(AppConfig.for_database_url(
    os.environ["HORSIES_DATABASE_URL"], payload=PayloadPolicy(warn_bytes=None, reject_bytes=None)
))

@app.task("give")
def give(size: int) -> str:
    return "x" * size
"""

# Longer than the server and the worker wait for a statement of the usual size.
STALL = """
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(15.5);
    RETURN NEW;
END $$;
CREATE TRIGGER stall BEFORE UPDATE ON horsies_tasks_live FOR EACH ROW
    WHEN (length(NEW.result) > 9000000) EXECUTE FUNCTION stall();
"""


def test_a_large_result_is_stored_by_a_server_that_takes_long(workplace: Workplace, db: Db) -> None:
    workplace.write(LARGE)
    tasks = workplace.load()
    db.execute(STALL)
    worker = workplace.start("--processes=1")

    assert len(tasks.give.delay(10_000_000).result(timeout=60)) == 10_000_000

    assert tasks.give.delay(1).result(timeout=60) == "x"
    assert "closing the connection" not in worker.log
