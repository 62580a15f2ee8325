"""What happened is read from what the rows say, each event once, whoever looks and however often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncClientCursor

from horsies import CronSchedule, Horsies, PostgresConfig, TaskNode, TaskSchedule
from horsies.db.connection import connect
from horsies.db.queries import events, inspect
from horsies.db.queries.events import SQL, EventFilter
from horsies.events import KINDS, Event
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.pg.players import Player, play
from tests.pg.stepped_scheduler import SteppedScheduler, put_back

Db = psycopg.Connection[dict[str, Any]]
ANYTHING = EventFilter()
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


class Follower:
    """Reads on from where it stopped, looking as the command does."""

    def __init__(self, url: str, since: datetime = LONG_AGO) -> None:
        self._url = url
        self.since = since

    def look(self, wanted: EventFilter = ANYTHING, until: datetime | None = None) -> list[Event]:
        async def look() -> list[Event]:
            found: list[Event] = []
            async with await connect(PostgresConfig(database_url=self._url)) as connection:
                end = until or await events.horizon(connection)
                async for passage in events.read(connection, wanted, self.since, end):
                    found += passage.events
            self.since = max(end, self.since)
            return found

        return asyncio.run(look())

    def look_at_all(self, wanted: EventFilter = ANYTHING) -> list[Event]:
        return self.look(wanted, datetime.now(UTC) + timedelta(minutes=1))


@pytest.fixture
def follower(database_url: str) -> Follower:
    return Follower(database_url)


def test_a_task_that_fails_once_and_then_succeeds_has_all_five_events(
    add: Add, hands: Hands, follower: Follower
) -> None:
    handle = add.send(1).unwrap()
    hands.fail(hands.run_next(), delay_seconds=0)
    hands.complete(hands.run_next())

    found = follower.look_at_all()

    assert [(event.kind, event.attempt) for event in found] == [
        ("queued", 1),
        ("processing", 1),
        ("retry", 1),
        ("processing", 2),
        ("completed", 2),
    ]
    assert {event.task_id for event in found} == {handle.task_id}
    assert {(event.task_name, event.queue_name) for event in found} == {("add", "default")}
    retry = found[2]
    assert (retry.error_code, retry.message, retry.will_retry) == ("BROKEN", "it broke", True)
    assert retry.worker_id == str(hands.worker_id)
    assert len({event.id for event in found}) == 5


def test_a_requeue_changes_nothing_that_happened_before(add: Add, hands: Hands, database_url: str) -> None:
    add.send(1).unwrap()
    hands.fail(hands.run_next())
    before = Follower(database_url).look_at_all()
    hands.requeue()
    hands.complete(hands.run_next())

    after = Follower(database_url).look_at_all()

    assert [event.kind for event in before] == ["queued", "processing", "failed"]
    assert after[:3] == before
    assert [(event.kind, event.attempt) for event in after[3:]] == [
        ("queued", 2),
        ("processing", 2),
        ("completed", 2),
    ]


def test_an_end_has_the_name_of_its_reason(add: Add, hands: Hands, db: Db, follower: Follower) -> None:
    add.with_options(good_until=datetime.now(UTC) + timedelta(milliseconds=1)).send(1).unwrap()
    hands.expire()
    for number in range(3):
        add.send(number).unwrap()
    hands.fail(hands.run_next())
    codes = ("TASK_TIMEOUT", "WORKER_CRASHED", "BROKEN")
    rows = db.execute(
        "SELECT id, terminal_at FROM horsies_tasks_history WHERE status = 'FAILED' ORDER BY id"
    ).fetchall()
    db.execute("ALTER TABLE horsies_tasks_history DISABLE TRIGGER horsies_tasks_final")
    for code, row in zip(codes, rows, strict=True):
        db.execute("UPDATE horsies_tasks_history SET error_code = %s WHERE id = %s", (code, row["id"]))

    kinds = [event.kind for event in follower.look_at_all() if event.kind not in ("queued", "processing")]

    assert kinds == ["expired", "timeout", "crashed", "failed"]


async def reasons(url: str, task_id: UUID) -> list[str] | None:
    async with await connect(PostgresConfig(database_url=url)) as connection:
        return await inspect.why(connection, task_id)


def node_task(db: Db) -> UUID:
    row = db.execute("SELECT id FROM horsies_tasks").fetchone()
    assert row is not None
    return row["id"]


def test_a_workflow_tells_when_it_started_paused_went_on_and_ended(
    app: Horsies, player: Player, follower: Follower, database_url: str, db: Db
) -> None:
    node = TaskNode(fn=define_add(app), kwargs={"x": 1})
    handle = app.workflow("sum", [node], definition_key="sum.v1").start().unwrap()
    assert handle.pause().unwrap()
    assert asyncio.run(reasons(database_url, node_task(db))) == [
        f"Its workflow is paused; `horsies workflows resume {handle.workflow_id}` goes on with it.",
        "No worker is running; start one with `horsies worker`.",
    ]
    assert handle.resume().unwrap()
    play(player, handle)

    found = [event for event in follower.look_at_all() if event.kind.startswith("workflow.")]

    assert [event.kind for event in found] == [
        "workflow.started",
        "workflow.paused",
        "workflow.resumed",
        "workflow.completed",
    ]
    assert {(event.workflow_id, event.workflow_name) for event in found} == {(handle.workflow_id, "sum")}


def test_a_slot_of_long_ago_is_an_event_of_now(
    app: Horsies, scheduler: SteppedScheduler, db: Db, follower: Follower
) -> None:
    define_add(app)
    scheduler.sync(TaskSchedule(name="tick", pattern=CronSchedule("* * * * *"), task_name="add", args=(1,)))
    put_back(db, 3_600)
    follower.look_at_all()
    follower.since = datetime.now(UTC) - timedelta(minutes=1)
    scheduler.run_due()

    fired, queued = sorted(follower.look_at_all(), key=lambda event: KINDS.index(event.kind), reverse=True)

    assert (fired.kind, fired.schedule_name, fired.task_id) == ("schedule.fired", "tick", queued.task_id)
    assert queued.kind == "queued"
    assert follower.look_at_all() == []


def test_what_a_slow_transaction_adds_to_the_past_is_not_missed(add: Add, database_url: str, db: Db) -> None:
    follower = Follower(database_url, datetime.now(UTC) - timedelta(seconds=5))
    with psycopg.connect(database_url) as slow:
        slow.execute("SELECT 1")  # its time is that of its first word, and it has written nothing yet
        add.send(1).unwrap()
        first = follower.look()
        late = add.with_options(conn=slow).send(2).unwrap()
        slow.execute("SELECT pg_sleep(0.3)")
        second = follower.look()
        slow.commit()
    db.execute("SELECT pg_sleep(0.3)")

    found = first + second + follower.look()

    assert first == second == []
    assert [event.kind for event in found] == ["queued", "queued"]
    assert found[0].task_id == late.task_id
    assert follower.look() == []


def test_nobody_waits_for_a_transaction_for_longer_than_a_minute(database_url: str, db: Db) -> None:
    """Asked of a session list in which a transaction is as old as we say."""
    statement = SQL["horizon"].replace(b"FROM pg_stat_activity", b"FROM sessions")
    for age, has_written, expected in (
        (5, False, 5),
        (30, False, 10),
        (30, True, 30),
        (300, True, 60),
        (None, True, 0.2),
    ):
        said = (
            "WITH sessions AS (SELECT current_database() AS datname, 0 AS pid, '' AS query,"
            f" now() - make_interval(secs => {age or 'NULL'}) AS xact_start,"
            f" {'1' if has_written else 'NULL'} AS backend_xid) "
        )
        row = db.execute(
            said.encode() + b"SELECT now() - horizon AS behind FROM (" + statement + b") AS asked (horizon)"
        ).fetchone()
        assert row is not None
        assert row["behind"] == pytest.approx(timedelta(seconds=expected), abs=timedelta(microseconds=1))


def test_many_events_of_one_moment_come_in_pages_each_once(
    add: Add, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    add.send_many([(number,) for number in range(25)]).unwrap()
    monkeypatch.setattr(events, "BATCH", 10)

    found = follower.look_at_all()

    assert len(found) == len({event.id for event in found}) == 25
    assert len({event.at for event in found}) == 1


def test_what_is_asked_for_is_what_is_shown(
    make_app: Callable[..., Horsies], hands: Hands, follower: Follower
) -> None:
    add = define_add(make_app())
    handles = [add.send(number).unwrap() for number in range(3)]
    hands.complete(hands.run_next(limit=1))

    def shown(**wanted: Any) -> int:
        follower.since = LONG_AGO
        return len(follower.look_at_all(EventFilter(**wanted)))

    assert shown() == 5
    assert shown(kinds=["completed"]) == 1
    assert shown(name="add", queue="default") == 5
    assert shown(name="other") == shown(queue="other") == 0
    assert shown(task=handles[2].task_id) == 1


def test_an_event_has_the_key_of_its_task(add: Add, hands: Hands, follower: Follower) -> None:
    add.with_options(key="acme").send(1).unwrap()
    add.send(2).unwrap()
    follower.since = LONG_AGO
    assert [event.key for event in follower.look_at_all()] == ["acme", None]

    (running,) = hands.claim_keys()
    hands.claim_keys(completed=[running])
    follower.since = LONG_AGO
    found = follower.look_at_all(EventFilter(key="acme"))
    assert [(event.kind, event.key) for event in found] == [
        ("queued", "acme"), ("processing", "acme"), ("completed", "acme"),
    ]  # fmt: skip


def test_a_sink_never_goes_back(database_url: str) -> None:
    async def moved() -> list[datetime | None]:
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            seen = [await events.position(connection, "logs")]
            for hour in (2, 1, 3):
                await events.save_position(connection, "logs", LONG_AGO + timedelta(hours=hour))
                seen.append(await events.position(connection, "logs"))
            return seen

    assert asyncio.run(moved()) == [None, *(LONG_AGO + timedelta(hours=hour) for hour in (2, 2, 3))]


HISTORY = """
INSERT INTO horsies_tasks (task_name, live, status, sent_at, started_at, completed_at, terminal_at, result)
SELECT 'add', false, 'COMPLETED', at, at, at, at, '1'
  FROM (SELECT date_trunc('day', now(), 'UTC') + n * interval '0.1 s' AS at FROM generate_series(1, 30000) AS n) AS days
"""


@pytest.fixture(scope="module")
def long_history(quiet_url: str) -> Iterator[str]:
    with psycopg.connect(quiet_url, autocommit=True) as connection:
        connection.execute(HISTORY.encode())
        connection.execute("VACUUM ANALYZE horsies_tasks")
        yield quiet_url
        connection.execute("TRUNCATE horsies_tasks")


def test_a_look_at_the_last_second_reads_the_last_second_of_history(long_history: str) -> None:
    async def plan() -> str:
        async with await connect(PostgresConfig(database_url=long_history)) as connection:
            cursor = AsyncClientCursor(connection)
            await cursor.execute("SELECT max(terminal_at) FROM horsies_tasks_history")
            row = await cursor.fetchone()
            assert row is not None
            values = ANYTHING._asdict() | {"until": row[0], "since": row[0] - timedelta(seconds=1)}
            await cursor.execute(b"EXPLAIN (ANALYZE, TIMING OFF) " + SQL["events"], values)
            return "\n".join(row[0] for row in await cursor.fetchall())

    explained = asyncio.run(plan())

    today = f"horsies_tasks_{datetime.now(UTC):%Y%m%d}"
    assert f"Bitmap Heap Scan on {today} " in explained
    assert f"Seq Scan on {today} " not in explained
    removed = [int(line.rpartition(":")[2]) for line in explained.splitlines() if "Rows Removed by" in line]
    assert max(removed, default=0) < 5_000, explained
