"""No row, however malformed, stops a worker: it is parked with its error, and all other work goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from random import Random
from uuid import UUID, uuid4

import pytest

from tests.e2e import hostile
from tests.e2e.observing import Db
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

pytestmark = pytest.mark.breaks_invariants

APP = """
app = Horsies(AppConfig.for_database_url(
    os.environ["HORSIES_DATABASE_URL"], claim_lease_ms=2_000, unknown_task_grace_seconds=1,
    recovery=RecoveryConfig(check_interval_ms=1_000, crashed_worker_recovery_grace_ms=0),
))

@app.task("add")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("break")
def break_(x: int, y: int) -> TaskResult[int, TaskError]:
    raise ValueError("it broke")

@app.task("async_add")
async def async_add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("follow")
def follow(task_id: str, task_name: str, error_code: str, message: str) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""

# Rows for `make test`; docs/guarantees.md names the number for a longer run.
ROWS = int(os.environ.get("HORSIES_TEST_HOSTILE_ROWS", "1500"))
ADD = {"task_name": "add", "kwargs": '{"x":1,"y":1}'}
BREAK = {"task_name": "break", "kwargs": '{"x":1,"y":1}'}


class Scene:
    """A worker at work, and a session of somebody who may write any row."""

    def __init__(self, place: Workplace, db: Db) -> None:
        place.write(APP)
        self.tasks = place.load()
        self.db = db
        self.place = place
        self.worker = place.start("--processes=2")

    def ended(self) -> UUID:
        """Run a task to its end and return its id."""
        handle = self.tasks.add.send(1, 2).unwrap()
        assert handle.get(20_000).is_ok()
        return UUID(handle.task_id)

    def store(self, table: str, **row: object) -> None:
        assert hostile.store(self.db, table, row), f"the row was refused: {row}"

    def status(self, task_id: UUID, *, live: bool | None = None) -> str | None:
        row = self.db.execute(
            "SELECT status FROM horsies_tasks WHERE id = %(id)s AND live = coalesce(%(live)s, live)",
            {"id": task_id, "live": live},
        ).fetchone()
        return None if row is None else row["status"]

    def code(self, task_id: UUID) -> str | None:
        row = self.db.execute("SELECT error_code FROM horsies_tasks WHERE id = %s", (task_id,)).fetchone()
        return None if row is None else row["error_code"]

    def until(self, task_id: UUID, status: str, *, live: bool | None = None) -> None:
        eventually(lambda: self.status(task_id, live=live) == status, what=f"task {task_id} being {status}")

    def assert_well(self, worker: RunningWorker | None = None) -> None:
        """The worker has not ended, and works."""
        worker = worker or self.worker
        assert worker.process.poll() is None, worker.log
        urgent = self.tasks.add.with_options(priority=1)
        assert urgent.send(1, 2).unwrap().get(60_000).is_ok(), worker.log
        assert "horsies has a bug" not in worker.log


@pytest.fixture
def scene(workplace: Workplace, db: Db) -> Scene:
    return Scene(workplace, db)


def test_a_task_with_the_id_of_one_that_has_ended_is_parked_where_it_is(scene: Scene) -> None:
    twin = scene.ended()

    scene.store("horsies_tasks_live", id=twin, **ADD)

    scene.until(twin, "FAILED", live=True)
    assert scene.status(twin, live=False) == "COMPLETED"
    assert scene.worker.log.count(f"task {twin} cannot be settled") == 1
    listed = scene.place.run("failed", "--code", "POISONED_ROW", "--json")
    assert [task["task_id"] for task in json.loads(listed.stdout)["tasks"]] == [str(twin)]
    assert "POISONED_ROW" in scene.place.run("doctor").stdout
    scene.assert_well()


def test_a_failing_task_with_the_id_of_one_that_has_ended_is_parked_where_it_is(scene: Scene) -> None:
    twin = scene.ended()

    scene.store("horsies_tasks_live", id=twin, **BREAK)

    scene.until(twin, "FAILED", live=True)
    scene.assert_well()


def test_the_tasks_of_the_same_batch_are_settled_as_if_the_bad_row_were_not_there(scene: Scene) -> None:
    twins = [scene.ended() for _ in range(3)]
    for twin in twins:
        scene.store("horsies_tasks_live", id=twin, **ADD)
    handles = [scene.tasks.add.send(n, 1).unwrap() for n in range(50)]

    assert [handle.get(30_000).unwrap() for handle in handles] == [n + 1 for n in range(50)]
    for twin in twins:
        scene.until(twin, "FAILED", live=True)


def test_a_worker_that_rescues_a_bad_row_of_a_dead_worker_lives_on(scene: Scene) -> None:
    twin = scene.ended()
    lost = uuid4()
    scene.store("horsies_tasks_live", id=twin, status="RUNNING", claimed_by_worker_id=uuid4(), **ADD)
    scene.store("horsies_tasks_live", id=lost, status="RUNNING", claimed_by_worker_id=uuid4(), **ADD)

    scene.until(twin, "FAILED", live=True)
    scene.until(lost, "FAILED", live=False)
    assert scene.code(lost) == "WORKER_CRASHED"
    scene.assert_well()


def test_a_bad_row_that_expires_does_not_keep_others_from_expiring(scene: Scene) -> None:
    twin = scene.ended()
    late = uuid4()
    for task_id in (twin, late):
        scene.store("horsies_tasks_live", id=task_id, good_until="1900-01-01", **ADD)

    scene.until(twin, "FAILED", live=True)
    scene.until(late, "EXPIRED", live=False)
    scene.assert_well()


@pytest.mark.parametrize("handler", ["", "h" * 5_000, "\0"], ids=["empty", "long", "nul"])
def test_a_failing_task_that_names_an_impossible_handler_fails_as_any_other(
    scene: Scene, handler: str
) -> None:
    task_id = uuid4()

    scene.store("horsies_tasks_live", id=task_id, task_options=json.dumps({"on_failure": handler}), **BREAK)

    scene.until(task_id, "FAILED", live=False)
    assert scene.code(task_id) == "UNHANDLED_EXCEPTION"
    scene.assert_well()


@pytest.mark.parametrize("row", [ADD, BREAK], ids=["completes", "fails"])
def test_a_task_of_a_workflow_that_does_not_exist_ends_as_any_other(
    scene: Scene, row: dict[str, str]
) -> None:
    task_id = uuid4()

    scene.store("horsies_tasks_live", id=task_id, workflow_id=uuid4(), workflow_index=0, **row)

    scene.until(task_id, "COMPLETED" if row is ADD else "FAILED", live=False)
    scene.assert_well()


@pytest.mark.parametrize("options", ['{{"headers": {}}}', "{}"], ids=["headers", "options"])
@pytest.mark.parametrize("row", [ADD, BREAK], ids=["completes", "fails"])
def test_a_task_with_options_nested_too_deep_ends(scene: Scene, row: dict[str, str], options: str) -> None:
    task_id = uuid4()
    deep = "[" * hostile.DEEP + "]" * hostile.DEEP

    scene.store("horsies_tasks_live", id=task_id, task_options=options.format(deep), **row)

    eventually(lambda: scene.status(task_id) in ("COMPLETED", "FAILED"), what="the task ending")
    scene.assert_well()


def test_a_task_that_cannot_be_claimed_is_parked_and_those_behind_it_run(scene: Scene) -> None:
    task_id = uuid4()

    scene.store("horsies_tasks_live", id=task_id, claim_seq=hostile.INT_MAX, priority=1, **ADD)

    scene.assert_well()
    scene.until(task_id, "FAILED", live=False)
    assert scene.code(task_id) == "POISONED_ROW"


def _start(scene: Scene, task: Callable[..., object] | None = None, **changed: object) -> UUID:
    """Store a workflow of two nodes by plain SQL, as `start` does but for what is changed; columns by table."""
    flow_id, first = uuid4(), uuid4()
    flow = {
        "id": flow_id,
        "root_workflow_id": flow_id,
        "open_tasks": 2,
        "status": "RUNNING",
        "on_error": "FAIL",
        "name": "pair",
        "definition_key": "",
    }
    node = {
        "workflow_id": flow_id,
        "kind": "task",
        "join_type": "all",
        "task_name": "add",
        "queue_name": "default",
        "priority": 100,
        "max_retries": 0,
        "task_kwargs": '{"x":1,"y":1}',
    }
    heads = {
        "task_index": 0,
        "node_id": "a",
        "task_id": first,
        "status": "ENQUEUED",
        "open_deps": 0,
        "dependents": [1],
    }
    tails = {
        "task_index": 1,
        "node_id": "b",
        "task_id": uuid4(),
        "status": "PENDING",
        "open_deps": 1,
        "dependencies": [0],
    }
    both: dict[str, dict[str, object]] = {"flow": flow, "head": node | heads, "tail": node | tails}
    for where, columns in changed.items():
        assert isinstance(columns, dict)
        both[where] |= columns
    scene.store("horsies_workflows", **both["flow"])
    scene.store("horsies_workflow_tasks", **both["head"])
    scene.store("horsies_workflow_tasks", **both["tail"])
    scene.store("horsies_tasks_live", id=first, workflow_id=flow_id, workflow_index=0, **ADD)
    return flow_id


@pytest.mark.parametrize(
    "changed",
    [
        {"tail": {"priority": 0}},
        {"flow": {"open_tasks": 0}},
        {"head": {"dependents": [1, 99]}},
        {"tail": {"kind": "sleep", "seconds": float("nan")}},
        {"tail": {"queue_name": None}},
        {"tail": {"kind": "map", "args_from": '{"x": "a"}'}},
    ],
    ids=["priority", "open_tasks", "dependents", "seconds", "queue", "map"],
)
def test_a_workflow_that_cannot_be_moved_on_fails_and_names_the_reason(
    scene: Scene, changed: dict[str, dict[str, object]]
) -> None:
    flow_id = _start(scene, **changed)

    def ended() -> str | None:
        row = scene.db.execute(
            "SELECT status, error FROM horsies_workflows WHERE id = %s", (flow_id,)
        ).fetchone()
        return row["error"] if row is not None and row["status"] == "FAILED" else None

    error = eventually(ended, what="the workflow failing")
    assert "POISONED_ROW" in error
    scene.assert_well()


@pytest.mark.parametrize("policy", ["{", '{"cases": 7}'])
def test_a_workflow_whose_success_policy_cannot_be_read_fails(scene: Scene, policy: str) -> None:
    flow_id = _start(scene, flow={"success_policy": policy})

    query = "SELECT status FROM horsies_workflows WHERE id = %s"
    eventually(lambda: scene.db.execute(query, (flow_id,)).fetchone()["status"] == "FAILED")
    scene.assert_well()


def test_a_workflow_as_start_stores_it_completes(scene: Scene) -> None:
    flow_id = _start(scene)

    query = "SELECT status FROM horsies_workflows WHERE id = %s"
    eventually(lambda: scene.db.execute(query, (flow_id,)).fetchone()["status"] == "COMPLETED")


def test_every_column_is_made_hostile(db: Db) -> None:
    random = Random(1)
    made: dict[str, set[str]] = {"horsies_tasks_live": {"live"}}  # which the partition decides
    for _ in range(4_000):
        made["horsies_tasks_live"].update(hostile.task(random, [uuid4()], [uuid4()]))
        for table, row in hostile.workflow(random):
            made.setdefault(table, set()).update(row)

    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
    for table, columns in made.items():
        assert {row["column_name"] for row in db.execute(query, (table,)).fetchall()} == columns


@pytest.mark.timeout(400)
def test_thousands_of_hostile_rows_stop_no_worker(scene: Scene) -> None:
    seed = int(os.environ.get("HORSIES_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
    random = Random(seed)
    ended = [scene.ended() for _ in range(20)]
    owners = [uuid4() for _ in range(5)]
    stored = 0
    while stored < ROWS:
        if random.random() < 0.5:
            stored += hostile.store(scene.db, "horsies_tasks_live", hostile.task(random, ended, owners))
        else:
            for table, row in hostile.workflow(random):
                stored += hostile.store(scene.db, table, row)

    try:
        scene.assert_well()
        due = (
            "SELECT count(*) AS n FROM horsies_tasks_live WHERE status = 'PENDING' AND enqueued_at <= now()"
            " AND queue_name = 'default' AND rate_key = ''"
        )
        eventually(lambda: scene.db.execute(due).fetchone()["n"] == 0, 100, "all due rows being taken")
        scene.assert_well()
        second = scene.place.start("--processes=1")
        scene.assert_well(second)
        assert "could not be singled out" not in scene.worker.log + second.log
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
