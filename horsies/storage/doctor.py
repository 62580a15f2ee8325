"""Find out whether a database is in order: what must hold of tasks and workers, and what keeps a queue quick and safe.

It only reads, and gives up on a check that takes too long. What it could not find out, it says.

To add a check, write a statement in `sql/doctor.sql` and a `Check` of the same name here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from psycopg import Error, errors, sql

from horsies.storage.database import Connection
from horsies.storage.migrate import LATEST, installed_version
from horsies.storage.statements import statements

SQL = statements("doctor")

Level = Literal["violation", "warning"]
Row = tuple[Any, ...]
# How many things a check has found, and a few of them.
Sample = tuple[int, list[str]]


class Terms(NamedTuple):
    """From when on something is worth a word, and how long to look for it."""

    timeout_seconds: float = 10  # for each check
    grace_seconds: float = 60  # two of the intervals in which workers look for tasks to rescue
    overdue_seconds: float = 300
    idle_seconds: float = 60
    snapshot_seconds: float = 600
    clock_seconds: float = 5
    answer_seconds: float = 5
    transactions: int = 1_000_000
    dead_rows: int = 50_000
    connection_share: float = 0.9
    notification_share: float = 0.5


class Check(NamedTuple):
    """Something to look at. Each row of its statement is one `noun` as the sentence has it; a plural without an s follows
    after a slash."""

    name: str
    level: Level
    noun: str
    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found, and what to do about it.

    >>> print(f"{finding.message}, such as {finding.examples[0]}: {finding.remedy}")
    """

    check: str
    level: Level
    message: str
    remedy: str
    count: int
    examples: list[str]


SCHEMA = Check(
    "schema",
    "violation",
    "database",
    "without the schema that this horsies needs",
    "run `horsies migrate`, or upgrade horsies here if the schema is newer; then ask again for the rest",
)

INVARIANTS = (
    Check(
        "limbo",
        "violation",
        "task",
        "held by a worker that has been gone for more than {grace_seconds:g} s",
        "workers rescue such tasks every recovery.check_interval_ms: look for errors in their logs, and restart one",
    ),
    Check(
        "misplaced",
        "violation",
        "task",
        "with a final status and live, or in history without one",
        "somebody has changed rows or constraints by hand: set status and live right in one UPDATE",
    ),
    Check(
        "ownership",
        "violation",
        "task",
        "claimed by nobody, or owned and not claimed",
        "set status to PENDING and claimed_by_worker_id and claimed_at to NULL, and add 1 to claim_seq",
    ),
    Check(
        "undated",
        "violation",
        "finished task",
        "without a time of the end",
        "set terminal_at: whoever asks for the task by its id passes it over",
    ),
    Check(
        "twins",
        "violation",
        "task",
        "both live and in history",
        "what has ended is final: delete the live row, by its id, before it runs again",
    ),
    Check(
        "dead_shares",
        "violation",
        "share",
        "of a limit still taken up by a worker that is gone",
        "DELETE FROM horsies_in_flight WHERE worker_id = '…': its limit has been too low since",
    ),
    Check(
        "negative_shares",
        "violation",
        "share",
        "of a limit counted below zero",
        "restart the worker: it counts anew, and until then its limit is too high",
    ),
    Check(
        "uncounted",
        "violation",
        "share",
        "of a limit counted lower than what the worker holds",
        "restart the worker: it counts anew, and until then its limit may be exceeded",
    ),
    Check(
        "rates",
        "violation",
        "rate limit",
        "spent far into the future",
        "UPDATE horsies_rates SET spent_until = now() WHERE spent_until > now(): its tasks wait until then",
    ),
    Check(
        "workflow_lag",
        "violation",
        "node",
        "of a workflow that waits for a task which is over",
        "somebody has ended or removed the task by hand: `horsies workflows cancel` the workflow, and start it anew",
    ),
    Check(
        "workflow_stalls",
        "violation",
        "node",
        "of a workflow that could begin and has not",
        "somebody has changed rows by hand: `horsies workflows pause` and `resume` the workflow",
    ),
    Check(
        "workflow_counts",
        "violation",
        "workflow",
        "that miscounts what it waits for, or has ended and does not know it",
        "somebody has changed rows by hand: `horsies workflows cancel` it, and start it anew",
    ),
)

HEALTH = (
    Check(
        "lost_keys",
        "warning",
        "idempotency key",
        "of the last day without a task",
        "if the task was not deleted on purpose, delete the key by its task_id, so that it can be sent",
    ),
    Check(
        "missing_partitions",
        "warning",
        "history partition",
        "missing for today or tomorrow",
        "SELECT horsies_prepare_history(7); workers do so too, unless somebody keeps reading history",
    ),
    Check(
        "default_partition",
        "warning",
        "finished task",
        "in the default partition",
        "harmless, but a day can be dropped only as a partition of its own: move them, see docs/operations.md",
    ),
    Check(
        "unserved_queues",
        "warning",
        "queue",
        "with tasks due for more than {overdue_seconds:g} s and no worker to serve them",
        "start a worker with this queue, or look at the --queues of those that run",
    ),
    Check(
        "overdue_queues",
        "warning",
        "queue",
        "with tasks due for more than {overdue_seconds:g} s while a worker waits for work",
        "see that its max_concurrency is not 0, that no session locks the tasks, and restart the worker",
    ),
    Check(
        "overdue_schedules",
        "warning",
        "schedule",
        "whose slot came more than {overdue_seconds:g} s ago",
        "start a scheduler whose app has it; one that is in no code any more can be deleted: `horsies schedules delete`",
    ),
    Check(
        "broken_schedules",
        "warning",
        "schedule",
        "that could not be run the last time",
        "see what `horsies schedules list` says of it, and correct or delete it",
    ),
    Check(
        "late_workers",
        "warning",
        "worker",
        "late with a renewal of the lease",
        "look whether it is stopped, swapping or cut off; if it is gone, others rescue its tasks",
    ),
    Check(
        "dead_rows",
        "warning",
        "table",
        "with far more dead rows than live ones",
        "see who holds back vacuum (old_snapshots, prepared_transactions, replication_slots), then VACUUM it",
    ),
    Check(
        "old_snapshots",
        "warning",
        "session",
        "in a transaction for more than {snapshot_seconds:g} s, which keeps vacuum from removing rows",
        "end it: SELECT pg_terminate_backend(pid), and set idle_in_transaction_session_timeout or statement_timeout",
    ),
    Check(
        "prepared_transactions",
        "warning",
        "prepared transaction",
        "open for more than {snapshot_seconds:g} s, which keeps vacuum from removing rows",
        "COMMIT PREPARED or ROLLBACK PREPARED it",
    ),
    Check(
        "replication_slots",
        "warning",
        "replication slot",
        "more than {transactions:,} transactions behind, which keeps vacuum from removing rows",
        "bring its consumer back, or SELECT pg_drop_replication_slot('…')",
    ),
    Check(
        "idle_transactions",
        "warning",
        "session",
        "idle in an open transaction for more than {idle_seconds:g} s",
        "have its program commit, or set idle_in_transaction_session_timeout",
    ),
    Check(
        "notification_queue",
        "warning",
        "notification queue",
        "filling up; once it is full, sends fail",
        "end the session that listens and does not read; the server's log names it",
    ),
    Check(
        "invalid_indexes",
        "warning",
        "index/indexes",
        "kept up and not used",
        "REINDEX INDEX CONCURRENTLY it, or drop it",
    ),
    Check(
        "autovacuum",
        "warning",
        "table",
        "not vacuumed automatically",
        "ALTER TABLE … RESET (autovacuum_enabled), or set autovacuum and track_counts to on in the server",
    ),
    Check(
        "connections",
        "warning",
        "server",
        "nearly out of connections",
        "raise max_connections, lower pool_size and max_overflow of producers, or put a pooler between",
    ),
    Check(
        "durability",
        "warning",
        "setting",
        "by which a crash of the server can lose what was committed",
        "set it to on in the server's configuration",
    ),
    Check(
        "clock",
        "warning",
        "clock",
        "of this machine more than {clock_seconds:g} s off the database's",
        "synchronise both: the database's decides when a task given an eta or good_until here is due",
    ),
    Check(
        "hidden_sessions",
        "warning",
        "session",
        "of others that this role may not look into, so that what was said of sessions may be incomplete",
        "GRANT pg_read_all_stats to the role",
    ),
)

LISTEN = Check(
    "listen",
    "warning",
    "connection",
    "over which no notification comes back, so that workers and results wait for a poll",
    "behind a pooler, point PostgresConfig(session_database_url=…) at PostgreSQL itself",
)

CHECKS = (SCHEMA, *INVARIANTS, *HEALTH, LISTEN)

EXAMPLES = 5
# Why a check may remain without an answer, and what helps.
_UNANSWERED: dict[type[Error], str] = {
    errors.QueryCanceled: "ask again when the database is less busy, or nobody locks its tables",
    errors.InsufficientPrivilege: "GRANT SELECT ON ALL TABLES in the schema of horsies to this role",
    errors.UndefinedTable: "somebody has dropped a table of horsies: restore it",
    errors.ReadOnlySqlTransaction: "ask the primary server, not a replica",
}


def utc_now() -> datetime:
    return datetime.now(UTC)


async def examine(
    connection: Connection, terms: Terms | None = None, here: Callable[[], datetime] = utc_now
) -> dict[str, Finding | None]:
    """Make every check, over a connection in autocommit mode: what each has found, None where all is well.

    When the schema is of another version, that is all: the rest would be guesswork.

    >>> [finding.message for finding in (await examine(connection)).values() if finding]
    ['2 tasks held by a worker that has been gone for more than 60 s']
    """
    terms = terms or Terms()
    found: dict[str, Finding | None] = {SCHEMA.name: await _schema(connection, terms)}
    if found[SCHEMA.name] is None:
        for check in (*INVARIANTS, *HEALTH):
            found[check.name] = await _conclude(check, terms, _ask(connection, check, terms, here))
        found[LISTEN.name] = await _conclude(LISTEN, terms, _listen(connection, terms.answer_seconds))
    return found


def question(checks: Iterable[Check]) -> bytes:
    """One statement for several checks, to be run with the values of `Terms`; `findings` understands the answer."""
    return b" UNION ALL ".join(
        b"(WITH found (example) AS MATERIALIZED (%s) SELECT '%s', (SELECT count(*) FROM found),"
        b" ARRAY(SELECT example FROM found ORDER BY example LIMIT %d))"
        % (SQL[check.name], check.name.encode(), EXAMPLES)
        for check in checks
    )


def findings(checks: Iterable[Check], rows: Iterable[Row], terms: Terms | None = None) -> list[Finding]:
    """What the answer to a `question` amounts to."""
    known = {check.name: check for check in checks}
    return [_finding(known[name], terms or Terms(), count, shown) for name, count, shown in rows if count]


async def _conclude(check: Check, terms: Terms, looking: Coroutine[Any, Any, Sample]) -> Finding | None:
    try:
        count, examples = await looking
    except tuple(_UNANSWERED) as error:
        message = f"could not be checked: {error.diag.message_primary or type(error).__name__}"
        return Finding(
            check=check.name,
            level="warning",
            message=message,
            remedy=_UNANSWERED[type(error)],
            count=0,
            examples=[],
        )
    return _finding(check, terms, count, examples) if count else None


def _finding(check: Check, terms: Terms, count: int, examples: list[str]) -> Finding:
    one, _, many = check.noun.partition("/")
    noun = one if count == 1 else many or f"{one}s"
    message = f"{count:,} {noun} {check.sentence.format(**terms._asdict())}"
    return Finding(
        check=check.name,
        level=check.level,
        message=message,
        remedy=check.remedy,
        count=count,
        examples=examples,
    )


@asynccontextmanager
async def _guarded(connection: Connection, terms: Terms) -> AsyncGenerator[None]:
    """A transaction that can neither write nor last. Set for it alone: behind a pooler the next one is another's."""
    async with connection.transaction():
        await connection.execute(SQL["guard"], terms._asdict(), prepare=False)
        yield


async def _schema(connection: Connection, terms: Terms) -> Finding | None:
    """Without an answer to this there is none at all, so that whatever goes wrong is the caller's error."""
    async with _guarded(connection, terms):
        version = await installed_version(connection)
    return None if version == LATEST else _finding(SCHEMA, terms, 1, [f"version {version}, not {LATEST}"])


async def _ask(connection: Connection, check: Check, terms: Terms, here: Callable[[], datetime]) -> Sample:
    async with _guarded(connection, terms):
        values = {**terms._asdict(), "here": here()}
        row = await (await connection.execute(question([check]), values)).fetchone()
    assert row is not None, "a count is always one row"
    return row[1], row[2]


async def _listen(connection: Connection, seconds: float) -> Sample:
    """A pooler in transaction mode swallows notifications without a word."""
    channel = f"horsies_doctor_{uuid4().hex}"
    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    await connection.execute("SELECT pg_notify(%s, '')", (channel,))
    heard = [notify async for notify in connection.notifies(timeout=seconds, stop_after=1)]
    await connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
    return (0, []) if heard else (1, [f"none within {seconds:g} s"])
