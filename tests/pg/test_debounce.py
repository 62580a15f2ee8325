"""Sends of a unique task while one waits or runs: the newer replaces the older, or one more run follows."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from horsies import Horsies, PostgresConfig, SendError
from horsies.db.connection import connect_worker
from horsies.db.queries import inspect
from horsies.db.queries.workers import Definition
from horsies.task import BaseTask
from tests.pg.hands import Hands
from tests.support.soundness import ailments
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
Index = BaseTask[..., Any]


def define_index(app: Horsies, on_conflict: Any, **options: Any) -> Index:
    """A task that is unique by its document."""

    @app.task("index", unique=lambda doc, text="": str(doc), on_conflict=on_conflict, **options)
    def index(doc: int, text: str = "") -> str:
        return text

    return index


@pytest.fixture
def last(app: Horsies) -> Index:
    return define_index(app, "last")


@pytest.fixture
def again(app: Horsies) -> Index:
    return define_index(app, "again")


@pytest.fixture(params=["last", "again"])
def either(request: pytest.FixtureRequest, app: Horsies) -> Index:
    return define_index(app, request.param)


@pytest.fixture
def other_hands(database_url: str) -> Iterator[Hands]:
    hands = Hands(database_url)
    yield hands
    hands.close()


def text_of(db: Db, task_id: str) -> str:
    row = db.execute("SELECT kwargs FROM horsies_tasks WHERE id = %s", [task_id]).fetchone()
    assert row is not None
    return msgspec.json.decode(row["kwargs"]).get("text", "")


def live(db: Db) -> list[dict[str, Any]]:
    return db.execute(
        "SELECT id::text, status, unique_key, follows, parked_at IS NOT NULL AS is_parked FROM horsies_tasks_live ORDER BY id"
    ).fetchall()


# While the task waits


def test_a_newer_send_replaces_the_arguments_of_a_waiting_task(last: Index, hands: Hands, db: Db) -> None:
    first = last.delay(7, "old")

    assert last.delay(7, "new").task_id == first.task_id

    (claimed,) = hands.run_next()
    assert claimed.id == first.task_id
    assert text_of(db, first.task_id) == "new"
    assert len(live(db)) == 1


def test_a_newer_send_replaces_the_due_time_and_the_options_of_a_waiting_task(
    last: Index, hands: Hands, db: Db
) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    first = last.with_options(priority=50, good_until=soon, tags=["a"], timeout_ms=500).delay(7)
    last.with_options(delay=3600, priority=20, key="acme").delay(7)

    row = db.execute(
        "SELECT enqueued_at - now() > interval '59 min' AS is_later, priority, good_until, tags, timeout_ms, rate_key"
        "  FROM horsies_tasks WHERE id = %s",
        [first.task_id],
    ).fetchone()
    assert row == {
        "is_later": True, "priority": 20, "good_until": None, "tags": None, "timeout_ms": None, "rate_key": "key=acme",
    }  # fmt: skip
    assert hands.claim() == []


def test_a_task_that_is_sent_again_for_an_earlier_time_starts_then(last: Index, hands: Hands) -> None:
    first = last.with_options(delay=3600).delay(7)
    last.delay(7)

    assert [task.id for task in hands.claim()] == [first.task_id]


def test_another_send_of_a_waiting_task_changes_nothing_with_again(
    again: Index, hands: Hands, db: Db
) -> None:
    first = again.with_options(delay=3600).delay(7, "old")

    assert again.delay(7, "new").task_id == first.task_id

    assert text_of(db, first.task_id) == "old"
    assert hands.claim() == []


def test_other_keys_are_other_tasks(either: Index, db: Db) -> None:
    assert either.delay(1).task_id != either.delay(2).task_id
    assert len(live(db)) == 2


def test_a_waiting_retry_takes_the_newer_arguments_and_begins_anew(
    app: Horsies, hands: Hands, db: Db
) -> None:
    index = define_index(app, "last", retry_on=(OSError,))
    first = index.delay(7, "old")
    hands.fail(hands.run_next(), delay_seconds=3600)

    assert index.delay(7, "new").task_id == first.task_id

    (claimed,) = hands.run_next()
    assert (claimed.retry_count, claimed.earlier_attempts) == (0, 1)
    assert text_of(db, first.task_id) == "new"


def test_a_waiting_retry_with_stored_steps_has_begun(either: Index, hands: Hands, db: Db) -> None:
    first = either.delay(7, "old")
    (claimed,) = hands.run_next()
    db.execute(
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, ended_at, result)"
        " VALUES (%s, 'read', 'step', %s, 1, now(), '1')",
        [claimed.id, claimed.claim_seq],
    )
    hands.fail([claimed], delay_seconds=0.001)

    assert either.delay(7, "new").task_id != first.task_id
    assert text_of(db, first.task_id) == "old"


# While it runs


@pytest.mark.parametrize("claim", ["claim", "run_next"])
def test_one_more_run_follows_the_one_that_has_begun(either: Index, hands: Hands, db: Db, claim: str) -> None:
    first = either.delay(7, "old")
    running = getattr(hands, claim)()

    second = either.delay(7, "new")
    third = either.delay(7, "newest")

    assert first.task_id != second.task_id == third.task_id
    assert hands.claim() == []  # it waits for the one before
    hands.start(running)
    hands.complete(running)
    (next_run,) = hands.run_next()
    assert next_run.id == second.task_id
    newest = either.definition.on_conflict == "last"
    assert text_of(db, second.task_id) == ("newest" if newest else "new")
    hands.complete([next_run])
    assert live(db) == []


def end_by_failure(hands: Hands, task: Any, _: Db) -> None:
    hands.fail([task])


def end_by_cancel(hands: Hands, task: Any, _: Db) -> None:
    hands.cancel(task.id)
    hands.end_unheld()


def end_by_deletion(hands: Hands, task: Any, db: Db) -> None:
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", [task.id])
    hands.follow()


def end_by_quarantine(hands: Hands, task: Any, db: Db) -> None:
    db.execute(
        "UPDATE horsies_tasks_live SET status = 'FAILED', error_code = 'POISONED_ROW', unique_key = NULL WHERE id = %s",
        [task.id],
    )
    hands.follow()


@pytest.mark.parametrize("end", [end_by_failure, end_by_cancel, end_by_deletion, end_by_quarantine])
def test_the_next_run_starts_however_the_one_before_ends(
    either: Index, hands: Hands, db: Db, end: Callable[[Hands, Any, Db], None]
) -> None:
    either.delay(7)
    (running,) = hands.run_next()
    second = either.delay(7)

    end(hands, running, db)

    assert [task.id for task in hands.run_next()] == [second.task_id]


def test_the_next_run_waits_for_the_retries_of_the_one_before(either: Index, hands: Hands, db: Db) -> None:
    first = either.delay(7)
    running = hands.run_next()
    second = either.delay(7)
    hands.fail(running, delay_seconds=0.0)

    retried = hands.run_next()
    assert [task.id for task in retried] == [first.task_id]
    hands.complete(retried)
    assert [task.id for task in hands.run_next()] == [second.task_id]


def test_the_next_run_keeps_its_own_delay(either: Index, hands: Hands) -> None:
    either.delay(7)
    running = hands.run_next()
    either.with_options(delay=3600).delay(7)
    hands.complete(running)

    assert hands.run_next() == []
    due = hands.next_due()
    assert due is not None
    assert 3_500 < due <= 3_600


def test_a_cancelled_follower_leaves_room_for_another(either: Index, hands: Hands, db: Db) -> None:
    either.delay(7)
    running = hands.run_next()
    second = either.delay(7)
    hands.cancel(second.task_id)
    third = either.delay(7)

    assert third.task_id != second.task_id
    hands.complete(running)
    assert [task.id for task in hands.run_next()] == [third.task_id]


def test_a_failed_task_that_is_retried_by_hand_does_not_run_beside_its_follower(
    either: Index, hands: Hands, db: Db
) -> None:
    first = either.delay(7)
    running = hands.run_next()
    second = either.delay(7)
    hands.fail(running)

    assert hands.requeue() == 0
    following = hands.run_next()
    assert [task.id for task in following] == [second.task_id]
    hands.complete(following)
    assert hands.requeue() == 1
    assert [task.id for task in hands.run_next()] == [first.task_id]


def test_the_sends_of_one_batch_count_in_their_order(last: Index, hands: Hands, db: Db) -> None:
    handles = last.send_many([(number % 3, f"{number}") for number in range(9)]).unwrap()

    assert [handle.task_id for handle in handles] == [handle.task_id for handle in handles[:3]] * 3
    assert [text_of(db, handle.task_id) for handle in handles[:3]] == ["6", "7", "8"]


def test_every_way_to_send_knows_what_to_do(last: Index, hands: Hands, db: Db) -> None:
    async def send() -> list[str]:
        first = await last.delay_async(7, "1")
        second = (await last.send_async(7, "2")).unwrap()
        third = (await last.schedule_async(0, 7, "3")).unwrap()
        (fourth,) = (await last.send_many_async([(7, "4")])).unwrap()
        return [each.task_id for each in (first, second, third, fourth)]

    ids = asyncio.run(send())
    ids.append(last.schedule(0, 7, "5").unwrap().task_id)
    assert len(set(ids)) == 1
    assert text_of(db, ids[0]) == "5"


def test_a_send_that_is_repeated_after_a_lost_reply_does_not_replace_a_newer_one(last: Index, db: Db) -> None:
    db.execute("ALTER FUNCTION horsies_debounce RENAME TO gone")
    failed = last.send(7, "old")
    db.execute("ALTER FUNCTION gone RENAME TO horsies_debounce")
    first = last.retry_send(failed.unwrap_err()).unwrap()
    last.delay(7, "new")

    assert last.retry_send(failed.unwrap_err()).unwrap().task_id == first.task_id
    assert text_of(db, first.task_id) == "new"


def test_a_task_that_was_sent_without_it_is_followed_and_not_changed(
    make_app: Callable[..., Horsies], hands: Hands, db: Db
) -> None:
    first = define_index(make_app(), "first").delay(7, "old")

    second = define_index(make_app(), "last").delay(7, "new")

    assert second.task_id != first.task_id
    assert text_of(db, first.task_id) == "old"
    hands.complete(hands.run_next())
    assert [task.id for task in hands.run_next()] == [second.task_id]


# From SQL


def test_sql_sends_with_a_unique_key_as_the_definition_says(hands: Hands, db: Db) -> None:
    send = "SELECT horsies_send('index', %s, unique_key => 'doc7')::text AS id"

    def define(on_conflict: str) -> None:
        hands.register(
            waiting=False,
            definitions=[
                Definition(
                    "index",
                    "default",
                    100,
                    False,
                    0,
                    None,
                    f'{{"on_conflict":"{on_conflict}"}}',
                    on_conflict=on_conflict,
                )
            ],
        )

    def sent(text: str) -> str:
        row = db.execute(send, [msgspec.json.encode({"doc": 7, "text": text}).decode()]).fetchone()
        assert row is not None
        return str(row["id"])

    define("last")
    first = sent("old")
    assert sent("new") == first
    assert text_of(db, first) == "new"
    running = hands.run_next()
    second = sent("newest")
    assert second != first
    hands.complete(running)
    assert [task.id for task in hands.run_next()] == [second]
    db.execute("UPDATE horsies_task_definitions SET on_conflict = 'first'")
    assert sent("more") == second
    with pytest.raises(psycopg.Error, match="unique_key has 1 to 500 characters"):
        db.execute("SELECT horsies_send('index', unique_key => '')")


def test_the_unique_key_of_sql_is_that_of_python(last: Index, db: Db) -> None:
    first = last.delay(7)
    row = db.execute(
        """SELECT horsies_send('index', '{"doc": 7}', unique_key => '7')::text AS id"""
    ).fetchone()
    assert row == {"id": first.task_id}


# Transactions


def test_an_open_transaction_holds_up_no_run_and_no_other_key(
    either: Index, hands: Hands, database_url: str, db: Db
) -> None:
    first = either.delay(7)
    running = hands.run_next()
    with psycopg.connect(database_url) as connection:
        second = either.with_options(conn=connection).delay(7)
        hands.execute("SET lock_timeout = '5s'")
        assert hands.complete(running) == 1  # the run that it follows can be settled
        other = either.delay(8)
        assert [task.id for task in hands.run_next()] == [other.task_id]
        connection.commit()
    assert [task.id for task in hands.run_next()] == [second.task_id]
    assert first.task_id != second.task_id


def test_a_task_that_an_open_transaction_replaces_starts_after_the_commit(
    either: Index, hands: Hands, database_url: str, db: Db
) -> None:
    first = either.delay(7, "old")
    with psycopg.connect(database_url) as connection:
        assert either.with_options(conn=connection).delay(7, "new").task_id == first.task_id
        assert hands.claim() == []
        connection.commit()
    assert [task.id for task in hands.claim()] == [first.task_id]
    assert text_of(db, first.task_id) == ("new" if either.definition.on_conflict == "last" else "old")


def test_a_transaction_that_rolls_back_changes_nothing(
    either: Index, hands: Hands, database_url: str, db: Db
) -> None:
    first = either.delay(7, "old")
    with psycopg.connect(database_url) as connection:
        either.with_options(conn=connection).delay(7, "new")
        connection.rollback()
    running = hands.run_next()
    assert [task.id for task in running] == [first.task_id]
    assert text_of(db, first.task_id) == "old"
    with psycopg.connect(database_url) as connection:
        either.with_options(conn=connection).delay(7, "new")
        connection.rollback()
    assert len(live(db)) == 1


def test_a_follower_that_a_transaction_held_while_the_run_ended_starts_after_its_end(
    either: Index, hands: Hands, database_url: str
) -> None:
    for ends in ("commit", "rollback"):
        either.delay(7)
        running = hands.run_next()
        second = either.delay(7)
        with psycopg.connect(database_url) as connection:
            assert either.with_options(conn=connection).delay(7).task_id == second.task_id
            assert hands.complete(running) == 1
            assert hands.claim() == []
            getattr(connection, ends)()
        hands.follow()
        following = hands.run_next()
        assert [task.id for task in following] == [second.task_id]
        hands.complete(following)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_loses_no_run(
    either: Index, hands: Hands, database_url: str, db: Db, level: str
) -> None:
    either.delay(7)
    with psycopg.connect(database_url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        connection.execute("SELECT count(*) FROM horsies_tasks")
        running = hands.run_next()  # behind the back of the transaction's snapshot
        try:
            sent = either.with_options(conn=connection).delay(7)
            connection.commit()
        except (SendError, psycopg.errors.SerializationFailure):
            return  # the transaction is to be repeated
    hands.complete(running)
    hands.follow()
    assert [task.id for task in hands.run_next()] == [sent.task_id]


# Races


def test_a_send_beside_a_claim_replaces_the_task_or_follows_it(last: Index, hands: Hands, db: Db) -> None:
    for number in range(60):
        first = last.delay(number, "old")
        barrier = threading.Barrier(2)

        def send(number: int = number, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return last.delay(number, "new").task_id

        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(send)
            barrier.wait()
            running = hands.run_next()
            second = sending.result()
        if not running:  # the sender had locked it
            running = hands.run_next()
        (task,) = running
        assert task.id == first.task_id
        assert (text_of(db, task.id), second == task.id) in (("new", True), ("old", False))
        hands.complete(running)
        following = hands.run_next()
        assert [task.id for task in following] == ([] if second == first.task_id else [second])
        hands.complete(following)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("on_conflict", ["last", "again"])
def test_after_each_send_a_run_begins_and_never_two_at_once(
    make_app: Callable[..., Horsies], hands: Hands, other_hands: Hands, database_url: str, db: Db,
    on_conflict: str, seed: int,
) -> None:  # fmt: skip
    """Three senders, one of them in transactions, beside two workers that complete, fail and retry."""
    stopped = threading.Event()
    began: dict[int, float] = {}

    def send(name: int) -> list[tuple[int, float]]:
        """Send at random; return the documents, each with a time before the commit of its send."""
        dice = random.Random(f"{seed} {name}")
        index = define_index(make_app(), on_conflict)
        sent: list[tuple[int, float]] = []
        with psycopg.connect(database_url) as connection:
            for number in range(100):
                doc = dice.randrange(3)
                sender = index.with_options(conn=connection) if name == 0 else index
                if name == 0:
                    sender.delay(doc, f"{number}")
                now = time.monotonic()
                if name == 0 and dice.random() < 0.2:
                    connection.rollback()
                    continue
                connection.commit()
                if name != 0:
                    sender.delay(doc, f"{number}")
                sent.append((doc, now))
        return sent

    def work(hand: Hands, name: str) -> int:
        """Run what is due; return how many runs there were at once of a document, at most."""
        dice = random.Random(f"{seed} {name}")
        most = 0
        with psycopg.connect(database_url, autocommit=True) as connection:
            while not stopped.is_set():
                try:
                    tasks = hand.run_next(limit=2)
                except psycopg.errors.SerializationFailure:
                    continue  # the other worker was faster
                for task in tasks:
                    doc = msgspec.json.decode(task.kwargs or "")["doc"]
                    began[doc] = max(began.get(doc, 0.0), time.monotonic())
                    row = connection.execute(
                        "SELECT count(*) FROM horsies_tasks_live WHERE status = 'RUNNING' AND kwargs::jsonb -> 'doc' = %s::jsonb",
                        [str(doc)],
                    ).fetchone()
                    most = max(most, row[0] if row else 0)
                    if dice.random() < 0.2:
                        hand.fail([task], delay_seconds=0.0 if dice.random() < 0.5 else None)
                    else:
                        hand.complete([task])
                if not tasks:
                    hand.follow()
        return most

    with ThreadPoolExecutor(5) as threads:
        workers = [threads.submit(work, hand, name) for hand, name in ((hands, "a"), (other_hands, "b"))]
        try:
            sent = [each for sends in threads.map(send, range(3)) for each in sends]
            eventually(lambda: not live(db))
        finally:
            stopped.set()
        assert [worker.result() for worker in workers] == [1, 1]
    assert [(doc, at) for doc, at in sent if began[doc] < at] == []


# What people see


def test_why_names_the_task_that_is_followed(either: Index, hands: Hands, database_url: str) -> None:
    first = either.delay(7)
    hands.run_next()
    second = either.delay(7)

    async def why() -> list[str] | None:
        async with await connect_worker(PostgresConfig(database_url=database_url), "why") as connection:
            return await inspect.why(connection, UUID(second.task_id))

    reasons = asyncio.run(why())
    assert reasons is not None
    assert reasons[0] == (
        f"It follows task {first.task_id}, which has the same unique key; it starts when that has ended."
    )


def test_doctor_finds_a_follower_that_nothing_starts(
    either: Index, hands: Hands, database_url: str, db: Db
) -> None:
    either.delay(7)
    hands.run_next()
    second = either.delay(7)
    assert ailments(database_url) == []
    db.execute(
        "UPDATE horsies_tasks_live SET parked_at = now() - interval '1 hour' WHERE follows IS NOT NULL"
    )
    db.execute("DELETE FROM horsies_tasks_live WHERE status = 'RUNNING'")

    assert [finding.examples for finding in ailments(database_url)] == [[second.task_id]]
    hands.follow()
    assert [task.id for task in hands.claim()] == [second.task_id]


# Definitions


@pytest.mark.parametrize("on_conflict", ["newest", "", 3, ["last"]])
def test_another_value_is_an_error_where_the_task_is_defined(app: Horsies, on_conflict: Any) -> None:
    with pytest.raises(Exception, match="on_conflict") as caught:
        define_index(app, on_conflict)
    assert "use one of: 'first', 'last', 'again'" in str(caught.value)


def test_it_makes_no_sense_without_a_unique_key(app: Horsies) -> None:
    with pytest.raises(Exception, match="is not unique"):

        @app.task("index", on_conflict="last")
        def index(doc: int) -> None: ...
