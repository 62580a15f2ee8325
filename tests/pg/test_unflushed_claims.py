"""A transaction that only claims idempotent tasks does not wait for the disk. Every other one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest

from horsies.config import PostgresConfig
from horsies.db.migrations import migrate
from horsies.db.queries.tasks import ConcurrencyCap, Lane, PoolRoom
from tests.pg.hands import START, Hands
from tests.support.servers import extra_server

LANES = [Lane(0, "default", False, "", 10, *START)]
ROOM = PoolRoom(0, 10, 10, [1] * 10)
INSERT = "INSERT INTO horsies_tasks (task_name, task_options) VALUES ('add', %s) RETURNING id"
IDEMPOTENT = '{"idempotent":true}'
HOSTILE = '{"description":"\\"idempotent\\":true"}'
IS_FLUSHED = "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose log writer sleeps, so that nothing but a commit flushes the log."""
    with extra_server(
        {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off"}
    ) as url:
        asyncio.run(migrate(PostgresConfig(database_url=url)))
        yield url


@pytest.fixture
def flushes(url: str) -> Iterator[Callable[[Callable[[], object]], bool]]:
    """Return a function that does something and says if the log was flushed up to its end."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("TRUNCATE horsies_tasks")

        def check(act: Callable[[], object]) -> bool:
            act()
            row = db.execute(IS_FLUSHED).fetchone()
            assert row is not None
            return bool(row[0])

        yield check


@pytest.fixture
def hands(url: str) -> Iterator[Hands]:
    held = Hands(url)
    yield held
    held.close()


def _claim(hands: Hands, idle: int) -> None:
    """Claim for so many idle children and one call ahead, by the statement that this takes."""
    room = PoolRoom(0, 10, idle, [1] * 10, 1.0)
    (_, claimed, *_) = hands.settle_and_claim([], LANES, [room])
    assert claimed


@pytest.mark.parametrize("idle", [10, 1], ids=["for idle children", "ahead"])
@pytest.mark.parametrize(
    ("options", "is_flushed"),
    [
        ([IDEMPOTENT], False),
        ([IDEMPOTENT, IDEMPOTENT], False),
        ([IDEMPOTENT, None], True),
        ([None], True),
        ([HOSTILE], True),
        (["not json"], True),
    ],
)
def test_only_claims_of_idempotent_tasks_alone_are_not_flushed(
    url: str,
    hands: Hands,
    flushes: Callable[[Callable[[], object]], bool],
    options: list[str | None],
    is_flushed: bool,
    idle: int,
) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for each in options:
            db.execute(INSERT, [each])

    assert flushes(lambda: _claim(hands, idle)) is is_flushed


def _claim_within_a_cap(hands: Hands) -> None:
    hands.register(waiting=False)
    assert hands.settle_and_claim([], LANES, [ROOM], caps=[ConcurrencyCap("default", 10, 0, 0)]).claimed


def _claim_within_a_rate(hands: Hands) -> None:
    lane = Lane(0, "default", False, "add", 10, *START)
    assert hands.settle_and_claim([], [lane], [ROOM], rates=["add"]).claimed


def _claim_by_key(hands: Hands) -> None:
    assert hands.claim_keys()


@pytest.mark.parametrize(
    ("rate_key", "claim"),
    [("", _claim_within_a_cap), ("add", _claim_within_a_rate), ("key=a", _claim_by_key)],
    ids=["cap", "rate", "key"],
)
def test_a_claim_within_a_limit_is_flushed(
    url: str,
    hands: Hands,
    flushes: Callable[[Callable[[], object]], bool],
    rate_key: str,
    claim: Callable[[Hands], None],
) -> None:
    """A crash of the server must not undo what a limit counts while the task goes on."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "INSERT INTO horsies_rates (rate_key, seconds, burst) VALUES ('add', 1, 9) ON CONFLICT DO NOTHING"
        )
        db.execute(
            "INSERT INTO horsies_tasks (task_name, task_options, rate_key) VALUES ('add', %s, %s)",
            [IDEMPOTENT, rate_key],
        )

    assert flushes(lambda: claim(hands))


def test_the_end_of_an_idempotent_task_is_flushed_although_others_are_claimed_with_it(
    url: str, hands: Hands, flushes: Callable[[Callable[[], object]], bool]
) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for _ in range(2):
            db.execute(INSERT, [IDEMPOTENT])
    first = hands.run_next(limit=1)

    assert flushes(lambda: hands.complete(first))
