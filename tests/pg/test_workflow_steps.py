"""A step of a workflow is one transaction of a few messages: cut anywhere, it has happened wholly or not at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies import (
    Horsies,
    TaskError,
    TaskResult,
    WorkflowSpec,
    WorkflowStatus,
    from_node,
    map_node,
    sleep_node,
)
from horsies.db.connection import TRANSIENT
from horsies.db.queries.tasks import Claimed
from horsies.task import Task
from tests.pg.players import Player, play
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def make_list(app: Horsies) -> Task[..., list[int]]:
    @app.task("make_list")
    def make_list(n: int = 0) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[n])

    return make_list


@pytest.fixture
def take(app: Horsies) -> Task[..., list[int]]:
    @app.task("take")
    def take(x: TaskResult[list[int], TaskError]) -> TaskResult[list[int], TaskError]:
        return x

    return take


@pytest.fixture
def item(app: Horsies) -> Task[..., list[int]]:
    @app.task("item")
    def item(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[n])

    return item


def everything(app: Horsies, make_list: Any, take: Any, item: Any) -> WorkflowSpec[Any]:
    """A workflow with something of each kind of step: a join, a feed, a map, and an end."""
    first = make_list.node(node_id="first")(n=1)
    left = take.node(node_id="left")(x=from_node(first))
    right = make_list.node(node_id="right", waits_for=[first])(n=2)
    mapped = map_node(item, over=right, node_id="mapped", waits_for=[left])
    last = make_list.node(node_id="last", waits_for=[mapped])(n=3)
    return app.workflow("everything", [first, left, right, mapped, last], definition_key="k")


def runs(db: Db) -> dict[str, int]:
    """How often each node's task was ended."""
    rows = db.execute(
        "SELECT node.node_id, count(*) AS times FROM horsies_tasks AS task JOIN horsies_workflow_tasks AS node"
        " ON node.workflow_id = task.workflow_id AND node.task_index = task.workflow_index"
        " WHERE NOT task.live GROUP BY node.node_id"
    ).fetchall()
    return {row["node_id"]: row["times"] for row in rows}


@pytest.mark.parametrize("fault", ["lose_reply", "lose_statement"])
@pytest.mark.parametrize("place", range(24))
def test_a_worker_that_is_cut_off_anywhere_leaves_a_workflow_that_goes_on(
    hire_player: Callable[..., Player],
    proxy: Proxy,
    app: Horsies,
    make_list: Any,
    take: Any,
    item: Any,
    db: Db,
    fault: str,
    place: int,
) -> None:
    handle = everything(app, make_list, take, item).start().unwrap()
    cut, healthy = hire_player(proxy.url), hire_player()
    first = cut.claim()
    getattr(proxy, fault)(skip=place)

    try:
        claimed = first
        while claimed:
            claimed = cut.complete(claimed)
    except TRANSIENT:
        held = [task for task in claimed if _runs(db, task)]
        if held:  # what was finished and could not be written is kept, and written over the next connection
            claimed = healthy.complete(held)
            healthy.worker_id, cut.worker_id = cut.worker_id, healthy.worker_id
            play(healthy, handle, claimed) if claimed else None
    db.execute(
        "UPDATE horsies_tasks_live SET status = 'PENDING', claim_seq = claim_seq + 1, claimed_by_worker_id = NULL,"
        " claimed_at = NULL, started_at = NULL"
    )  # what a lost reply has left in its name is given back
    play(healthy, handle)

    assert set(runs(db).values()) == {1}
    assert len(runs(db)) == 7


def _runs(db: Db, task: Claimed) -> bool:
    row = db.execute(
        "SELECT FROM horsies_tasks_live WHERE id = %s AND claim_seq = %s AND status = 'RUNNING'",
        (task.id, task.claim_seq),
    ).fetchone()
    return row is not None


def test_a_step_is_taken_on_a_connection_on_which_a_transaction_was_rolled_back(
    player: Player, app: Horsies, make_list: Any, take: Any, item: Any
) -> None:
    handle = everything(app, make_list, take, item).start().unwrap()
    claimed = player.complete(player.claim())

    player.roll_back()

    play(player, handle, claimed)


def test_a_step_takes_as_many_messages_for_a_hundred_workflows_as_for_one(
    hire_player: Callable[..., Player], proxy: Proxy, app: Horsies, make_list: Any
) -> None:
    first = make_list.node()(n=1)
    spec = app.workflow("two", [first, make_list.node(waits_for=[first])(n=2)], definition_key="k")
    player = hire_player(proxy.url)
    spec.start().unwrap()
    player.complete(player.complete(player.claim()))  # statements are prepared by now

    def messages(count: int) -> list[int]:
        for _ in range(count):
            spec.start().unwrap()
        claimed, counts = player.claim(), []
        assert len(claimed) == count
        while claimed:
            before = proxy.statements
            claimed = player.complete(claimed)
            counts.append(proxy.statements - before)
        return counts

    assert messages(1) == messages(60) == [2, 3]


def test_a_fan_is_joined_however_its_ends_are_spread_over_batches(
    player: Player, app: Horsies, make_list: Any, db: Db
) -> None:
    first = make_list.node()(n=1)
    fan = [make_list.node(waits_for=[first])(n=n) for n in range(100)]
    last = make_list.node(waits_for=fan, node_id="last")(n=2)
    handle = app.workflow("fan", [first, *fan, last], definition_key="k").start().unwrap()

    claimed = player.complete(player.claim(), limit=0)
    while claimed := player.claim(limit=7):
        player.complete(claimed, limit=0)

    assert handle.status().unwrap() is WorkflowStatus.COMPLETED
    assert set(runs(db).values()) == {1}


def test_a_result_that_came_too_late_moves_nothing(
    hire_player: Callable[..., Player], app: Horsies, make_list: Any, db: Db
) -> None:
    first = make_list.node(node_id="first")(n=1)
    handle = (
        app.workflow("two", [first, make_list.node(waits_for=[first])(n=2)], definition_key="k")
        .start()
        .unwrap()
    )
    slow, quick = hire_player(), hire_player()
    stale = slow.claim()
    slow.release()
    claimed = quick.claim()

    assert slow.complete(stale, limit=0) == []
    waiting = [str(task.status) for task in handle.tasks().unwrap()]
    play(quick, handle, claimed)

    assert waiting == ["RUNNING", "PENDING"]
    assert set(runs(db).values()) == {1}


def test_a_retry_does_not_move_the_workflow_and_shows_as_running(
    player: Player, app: Horsies, make_list: Any, db: Db
) -> None:
    first = make_list.node()(n=1)
    spec = app.workflow("two", [first, make_list.node(waits_for=[first])(n=2)], definition_key="k")
    handle = spec.start().unwrap()

    player.fail(player.claim(), delay=0.0)
    between = [str(task.status) for task in handle.tasks().unwrap()]
    play(player, handle)

    assert between == ["RUNNING", "PENDING"]


def test_what_fails_in_a_cancelled_workflow_is_not_tried_again(
    player: Player, app: Horsies, make_list: Any, db: Db
) -> None:
    handle = app.workflow("one", [make_list.node()(n=1)], definition_key="k").start().unwrap()
    claimed = player.claim()
    handle.cancel().unwrap()

    player.fail(claimed, delay=0.0)

    assert player.claim() == []
    assert [str(task.status) for task in handle.tasks().unwrap()] == ["FAILED"]
    assert handle.status().unwrap() is WorkflowStatus.CANCELLED


def test_a_prefetched_task_of_a_paused_workflow_is_not_started(
    player: Player, app: Horsies, make_list: Any, db: Db
) -> None:
    handle = app.workflow("one", [make_list.node()(n=1)], definition_key="k").start().unwrap()

    handle.pause().unwrap()
    while_paused = player.claim()
    handle.resume().unwrap()

    assert while_paused == []
    play(player, handle)


def test_a_timer_fires_once_whoever_looks(
    hire_player: Callable[..., Player], app: Horsies, make_list: Any, db: Db
) -> None:
    pause = sleep_node(60, node_id="pause")
    spec = app.workflow("timed", [pause, make_list.node(waits_for=[pause])(n=1)], definition_key="k")
    handle = spec.start().unwrap()
    one, other = hire_player(), hire_player()

    early = one.fire()
    db.execute("UPDATE horsies_workflow_tasks SET due_at = now() WHERE kind = 'sleep'")
    one.fire()
    left = other.fire()
    claimed = other.claim()

    assert early is not None
    assert 50 < early <= 60
    assert left is None
    assert len(claimed) == 1
    play(other, handle, claimed)


def test_a_workflow_runs_on_as_stored_when_its_code_has_changed(
    player: Player, make_app: Callable[..., Horsies], make_list: Any, app: Horsies
) -> None:
    first = make_list.node(node_id="first")(n=1)
    second = make_list.node(node_id="second", waits_for=[first])(n=2)
    handle = app.workflow("old", [first, second], definition_key="k").start().unwrap()

    second.kwargs = {"n": 99}  # the drawing is another one now
    claimed = player.complete(player.claim())

    assert [task.kwargs for task in claimed] == ['{"n":2}']
    play(player, handle, claimed)


def test_a_start_that_was_not_answered_can_be_repeated(
    proxy: Proxy, make_app: Callable[..., Horsies], db: Db
) -> None:
    app = make_app(url=proxy.url)

    @app.task("alone")
    def alone() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    spec = app.workflow("once", [alone.node()()], definition_key="k")
    spec.start().unwrap()
    proxy.lose_reply(of=b"horsies_start_workflow")

    error = spec.start().unwrap_err()
    handle = spec.retry_start(error).unwrap()

    assert handle.workflow_id == error.workflow_id
    assert error.retryable
    count = db.execute("SELECT count(*) AS n FROM horsies_workflows").fetchone()
    assert count == {"n": 2}


def test_a_node_starts_after_its_last_dependency_even_if_the_transaction_that_starts_it_began_before(
    app: Horsies,
    make_list: Task[..., list[int]],
    hire_player: Callable[..., Player],
    database_url: str,
    db: Db,
) -> None:
    """The transaction that ends `slow` begins first, waits for another workflow, and then sees that `quick` has ended too."""
    before = app.workflow("before", [make_list.node()(n=0)], definition_key="before").start().unwrap()
    slow, quick = make_list.node(node_id="slow")(n=1), make_list.node(node_id="quick")(n=2)
    join = make_list.node(node_id="join", waits_for=[slow, quick])(n=3)
    late = app.workflow("late", [slow, quick, join], definition_key="late").start().unwrap()
    one, other = hire_player(), hire_player()
    other.worker_id = one.worker_id
    blocked, first, second = sorted(one.claim(), key=lambda task: task.node or ("", 0))
    with ThreadPoolExecutor(1) as thread, psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM horsies_workflows WHERE id = %s FOR UPDATE", [before.workflow_id])
        ended = thread.submit(one.complete, [blocked, first], 0)
        eventually(lambda: waiting(db), what="the transaction that ends `slow` waiting for the lock")
        other.complete([second], 0)
        holder.rollback()
        ended.result(20)
    query = (
        "SELECT node_id, status, started_at, completed_at FROM horsies_workflow_tasks WHERE workflow_id = %s"
    )
    nodes = {row["node_id"]: row for row in db.execute(query, [late.workflow_id])}
    assert nodes["join"]["status"] == "ENQUEUED"
    assert nodes["join"]["started_at"] > nodes["quick"]["completed_at"]


def waiting(db: Db) -> bool:
    """Return True if a session of this database waits for a lock."""
    query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return db.execute(query).fetchone() is not None
