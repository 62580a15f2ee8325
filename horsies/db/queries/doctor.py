"""The checks of `horsies doctor`: invariants of tasks, workers and workflows, and the health of the database.

They only read, and a check that takes too long is cancelled. A check that could not be made is reported as a warning.

To add a check, write a statement in `doctor.sql` and a `Check` of the same name here.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from psycopg import Error, errors, sql

from horsies.db.connection import Connection
from horsies.db.migrations import LATEST, installed_version
from horsies.db.sql import statements

SQL = statements("doctor")

Level = Literal["violation", "warning"]


class Thresholds(NamedTuple):
    """The values from which on a check reports something, and the time limits of the checks."""

    timeout_seconds: float = 10  # for each check
    grace_seconds: float = 60  # workers look for tasks to rescue every 30 s
    overdue_seconds: float = 300
    idle_seconds: float = 60
    snapshot_seconds: float = 600
    clock_seconds: float = 5
    notification_seconds: float = 5
    transactions: int = 1_000_000
    dead_rows: int = 50_000
    connection_share: float = 0.9
    notification_share: float = 0.5


class Check(NamedTuple):
    """A check. Each row of its statement is one `noun` of which the sentence is true.

    Programs know a check by its name, and people by its title. An irregular plural follows the noun after a slash:
    "index/indexes".
    """

    name: str
    title: str
    noun: str
    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check that found something.

    >>> print(f"{finding.message}, such as {finding.examples[0]}: {finding.remedy}")
    """

    check: str
    level: Level
    message: str
    remedy: str
    count: int
    examples: list[str]
    command: str | None = None


SCHEMA = Check(
    "schema",
    "schema version",
    "database",
    "without the schema that this horsies needs",
    "run `horsies migrate`, or upgrade horsies here if the schema is newer; then run the other checks",
)

INVARIANTS = (
    Check(
        "limbo",
        "tasks held by no live worker",
        "task",
        "held by a worker that has been gone for more than {grace_seconds:g} s",
        "workers rescue such tasks every recovery.check_interval_ms: look for errors in their logs, and restart one",
    ),
    Check(
        "misplaced",
        "tasks in the wrong table",
        "task",
        "with a final status in the live table, or without one in history",
        "rows or constraints were changed by hand: correct status and live in one UPDATE",
    ),
    Check(
        "ownership",
        "claims without a worker",
        "task",
        "claimed without a worker, or with a worker and not claimed",
        "set status to PENDING and claimed_by_worker_id and claimed_at to NULL, and add 1 to claim_seq",
    ),
    Check(
        "stalled_steps",
        "parked tasks that nothing wakes",
        "parked task",
        "waiting for something that cannot come",
        "rows were changed by hand: SELECT horsies_wake(ARRAY['…'::uuid]) lets a task go on, which finds what is missing;"
        " SELECT horsies_follow(NULL) starts those that follow a task which has ended",
    ),
    Check(
        "undated",
        "finished tasks without an end time",
        "finished task",
        "without terminal_at",
        "set terminal_at: without it, the task cannot be found by its id",
    ),
    Check(
        "twins",
        "tasks both live and finished",
        "task",
        "both live and in history",
        "a finished task must not run again: delete the live row by its id",
    ),
    Check(
        "dead_shares",
        "concurrency limits held by dead workers",
        "count of running tasks/counts of running tasks",
        "of a dead worker, which still use up a concurrency limit",
        "DELETE FROM horsies_in_flight WHERE worker_id = '…': until then, fewer tasks run than the limit allows",
    ),
    Check(
        "negative_shares",
        "negative counts of running tasks",
        "count of running tasks/counts of running tasks",
        "below zero in a concurrency limit",
        "restart the worker, which then counts again: until then, more tasks may run than the limit allows",
    ),
    Check(
        "uncounted",
        "running tasks not counted by their limit",
        "count of running tasks/counts of running tasks",
        "lower than the number of tasks of the limit that the worker runs",
        "restart the worker, which then counts again: until then, more tasks may run than the limit allows",
    ),
    Check(
        "rates",
        "rate limits spent too far ahead",
        "rate limit",
        "spent far into the future",
        "UPDATE horsies_rates SET spent_until = now() WHERE spent_until > now(): its tasks wait until that time",
    ),
    Check(
        "key_slots",
        "keys held by finished tasks",
        "slot",
        "of a key held by a task that ended more than {grace_seconds:g} s ago",
        "the leader deletes them every recovery.check_interval_ms: look for errors in the workers' logs; they block nothing",
    ),
    Check(
        "uncounted_keys",
        "running tasks not counted by their key",
        "running task",
        "not counted by its key",
        "the row was changed by hand: until it ends, more tasks of its key may run than key_concurrency allows",
    ),
    Check(
        "workflow_lag",
        "workflow nodes waiting for finished tasks",
        "node",
        "of a workflow that waits for a finished task",
        "the task was ended or deleted by hand: `horsies workflows cancel` the workflow, and start it again",
    ),
    Check(
        "workflow_stalls",
        "workflow nodes ready but not started",
        "node",
        "of a workflow that is ready to run and was not started",
        "rows were changed by hand: `horsies workflows pause` and `resume` the workflow",
    ),
    Check(
        "workflow_counts",
        "workflows with wrong counts",
        "workflow",
        "that miscounts its open tasks, or is RUNNING without any",
        "rows were changed by hand: `horsies workflows cancel` it, and start it again",
    ),
)

HEALTH = (
    Check(
        "poisoned",
        "rows that could not be processed",
        "task or workflow/tasks or workflows",
        "that could not be processed and was parked as FAILED (POISONED_ROW)",
        "see the reasons with `horsies failed --code POISONED_ROW`, send the tasks again corrected, and delete those in "
        "horsies_tasks_live",
    ),
    Check(
        "lost_keys",
        "idempotency keys without a task",
        "idempotency key",
        "of the last day without a task",
        "delete the key by its task_id, so that the task can be sent again, unless the task was deleted on purpose",
    ),
    Check(
        "missing_partitions",
        "missing history partitions",
        "history partition",
        "missing for today or tomorrow",
        "SELECT horsies_prepare_history(7); workers do so too, unless a session reads history all the time",
    ),
    Check(
        "default_partition",
        "tasks in the default partition",
        "finished task",
        "in the default partition",
        "harmless, but retention can drop a day only as a partition of its own: move them, see docs/operations.md",
    ),
    Check(
        "unserved_queues",
        "queues without a worker",
        "queue",
        "with tasks due for more than {overdue_seconds:g} s and no worker to serve them",
        "start a worker with this queue, or check the --queues of the running workers",
    ),
    Check(
        "overdue_queues",
        "overdue tasks although a worker is idle",
        "queue",
        "with tasks due for more than {overdue_seconds:g} s while a worker waits for work",
        "check that its max_concurrency is not 0 and that no session locks the tasks, and restart the worker",
    ),
    Check(
        "overdue_schedules",
        "overdue schedules",
        "schedule",
        "whose next run was due more than {overdue_seconds:g} s ago",
        "start a scheduler whose app has it, or delete it if the code no longer has it: `horsies schedules delete`",
    ),
    Check(
        "broken_schedules",
        "schedules whose last run failed to start",
        "schedule",
        "whose last run failed to start",
        "see the error in `horsies schedules list`, and correct or delete the schedule",
    ),
    Check(
        "late_workers",
        "workers late to renew their lease",
        "worker",
        "late to renew its lease",
        "check whether it is stopped, swapping or disconnected; if it is dead, others rescue its tasks",
    ),
    Check(
        "dead_rows",
        "dead rows",
        "table",
        "with far more dead rows than live ones",
        "find what holds back vacuum (old_snapshots, prepared_transactions, replication_slots), then VACUUM it",
    ),
    Check(
        "old_snapshots",
        "long transactions",
        "session",
        "in a transaction for more than {snapshot_seconds:g} s, which keeps vacuum from removing rows",
        "end it: SELECT pg_terminate_backend(pid), and set idle_in_transaction_session_timeout or statement_timeout",
    ),
    Check(
        "prepared_transactions",
        "open prepared transactions",
        "prepared transaction",
        "open for more than {snapshot_seconds:g} s, which keeps vacuum from removing rows",
        "COMMIT PREPARED or ROLLBACK PREPARED it",
    ),
    Check(
        "replication_slots",
        "lagging replication slots",
        "replication slot",
        "more than {transactions:,} transactions behind, which keeps vacuum from removing rows",
        "bring its consumer back, or SELECT pg_drop_replication_slot('…')",
    ),
    Check(
        "idle_transactions",
        "sessions idle in a transaction",
        "session",
        "idle in an open transaction for more than {idle_seconds:g} s",
        "let its program commit, or set idle_in_transaction_session_timeout",
    ),
    Check(
        "notification_queue",
        "notification queue",
        "notification queue",
        "filling up; once it is full, sends fail",
        "end the session that listens and does not read its notifications; the server's log names it",
    ),
    Check(
        "invalid_indexes",
        "invalid indexes",
        "index/indexes",
        "marked invalid: maintained by every write, used by no query",
        "REINDEX INDEX CONCURRENTLY it, or drop it",
    ),
    Check(
        "autovacuum",
        "autovacuum",
        "table",
        "not vacuumed automatically",
        "ALTER TABLE … RESET (autovacuum_enabled), or set autovacuum and track_counts to on in the server",
    ),
    Check(
        "connections",
        "free connections",
        "server",
        "nearly out of connections",
        "raise max_connections, lower pool_size and max_overflow of producers, or use a pooler",
    ),
    Check(
        "durability",
        "durability settings",
        "setting",
        "by which a crash of the server can lose committed transactions",
        "set it to on in the server's configuration",
    ),
    Check(
        "creators",
        "roles that may create objects",
        "role",
        "that may create objects in the schema of horsies, and so can make its users call foreign functions",
        "REVOKE CREATE ON SCHEMA … FROM …, as the owner of the schema; the example is the statement",
    ),
    Check(
        "clock",
        "clock of this machine",
        "clock",
        "of this machine more than {clock_seconds:g} s off the database's",
        "synchronise both clocks: the database's decides when a task with an eta or good_until is due",
    ),
    Check(
        "hidden_sessions",
        "sessions that this role may not see",
        "session",
        "of other roles that this role may not see, so that the checks of sessions may be incomplete",
        "GRANT pg_read_all_stats to the role",
    ),
)

LISTEN = Check(
    "listen",
    "notifications",
    "connection",
    "without notifications, so that workers and results wait for the next poll",
    "behind a pooler, point PostgresConfig(session_database_url=…) at PostgreSQL itself",
)

CHECKS = (SCHEMA, *INVARIANTS, *HEALTH, LISTEN)
TITLES = {check.name: check.title for check in CHECKS}

# The command or the SQL statement that mends what a check found, or shows more of it. `{}` stands for what a finding names first.
COMMANDS: Mapping[str, str] = {
    "schema": "horsies migrate",
    "limbo": "horsies info --workers",
    "misplaced": "horsies show {}",
    "ownership": "UPDATE horsies_tasks_live SET status = 'PENDING', claimed_by_worker_id = NULL, claimed_at = NULL,"
    " claim_seq = claim_seq + 1 WHERE id = '{}';",
    "stalled_steps": "SELECT horsies_wake(ARRAY['{}'::uuid]);",
    "key_slots": "horsies info --workers",
    "uncounted_keys": "horsies show {}",
    "undated": "UPDATE horsies_tasks SET terminal_at = coalesce(completed_at, failed_at, now()) WHERE id = '{}';",
    "twins": "DELETE FROM horsies_tasks_live WHERE id = '{}';",
    "dead_shares": "DELETE FROM horsies_in_flight WHERE worker_id = '{}';",
    "negative_shares": "horsies info --workers",
    "uncounted": "horsies info --workers",
    "rates": "UPDATE horsies_rates SET spent_until = now() WHERE spent_until > now();",
    "workflow_lag": "horsies workflows list",
    "workflow_stalls": "horsies workflows list",
    "workflow_counts": "horsies workflows list",
    "poisoned": "horsies failed --code POISONED_ROW",
    "lost_keys": "DELETE FROM horsies_idempotency_keys WHERE task_id = '{}';",
    "missing_partitions": "SELECT horsies_prepare_history(7);",
    "default_partition": "SELECT count(*) FROM horsies_tasks_history_default;",
    "unserved_queues": "horsies worker --queues {}",
    "overdue_queues": "horsies info --workers",
    "overdue_schedules": "horsies scheduler",
    "broken_schedules": "horsies schedules list",
    "late_workers": "horsies info --workers",
    "dead_rows": "VACUUM (VERBOSE) {};",
    "old_snapshots": "SELECT pid, usename, application_name, state, xact_start, query FROM pg_stat_activity ORDER BY xact_start LIMIT 5;",
    "prepared_transactions": "SELECT gid, prepared, owner FROM pg_prepared_xacts ORDER BY prepared;",
    "replication_slots": "SELECT slot_name, active, restart_lsn FROM pg_replication_slots;",
    "idle_transactions": "SELECT pid, usename, application_name, state_change FROM pg_stat_activity WHERE state LIKE 'idle in%';",
    "notification_queue": "SELECT pg_notification_queue_usage();",
    "invalid_indexes": "REINDEX INDEX CONCURRENTLY {};",
    "autovacuum": "SELECT name, setting FROM pg_settings WHERE name IN ('autovacuum', 'track_counts');",
    "connections": "SELECT usename, application_name, count(*) FROM pg_stat_activity GROUP BY 1, 2 ORDER BY 3 DESC;",
    "durability": "SHOW fsync; SHOW synchronous_commit; SHOW full_page_writes;",
    "creators": "{}",
    "clock": "timedatectl status",
    "hidden_sessions": "GRANT pg_read_all_stats TO CURRENT_USER;",
    "listen": "SELECT pg_listening_channels();",
}
# What these checks find is an error; what the others find may be one.
VIOLATIONS = (SCHEMA, *INVARIANTS)

EXAMPLES = 5
# The errors for which a check is reported as not made, and their remedies.
_NOT_CHECKED: dict[type[Error], str] = {
    errors.QueryCanceled: "try again when the database is less busy and no session locks its tables",
    errors.InsufficientPrivilege: "GRANT SELECT ON ALL TABLES in the schema of horsies to this role",
    errors.UndefinedTable: "a table of horsies was dropped: restore it",
    errors.ReadOnlySqlTransaction: "check the primary server, not a replica",
}


def utc_now() -> datetime:
    return datetime.now(UTC)


async def examine(
    connection: Connection, thresholds: Thresholds | None = None, local_time: Callable[[], datetime] = utc_now
) -> dict[str, Finding | None]:
    """Make every check over a connection in autocommit mode, and return its finding, or None if all is well.

    With a schema of another version, only that is reported: the other statements may not fit its tables.

    >>> [finding.message for finding in (await examine(connection)).values() if finding]
    ['2 tasks held by a worker that has been gone for more than 60 s']
    """
    thresholds = thresholds or Thresholds()
    found: dict[str, Finding | None] = {SCHEMA.name: await _schema(connection, thresholds)}
    if found[SCHEMA.name] is None:
        for check in (*INVARIANTS, *HEALTH):
            running = _run(connection, check, thresholds, local_time)
            found[check.name] = await _reporting_errors(check, running)
        found[LISTEN.name] = await _reporting_errors(LISTEN, _listen(connection, thresholds))
    return found


def query(checks: Iterable[Check]) -> bytes:
    """Return one statement for several checks; its parameters are `Thresholds`, its rows are for `findings`."""
    return b" UNION ALL ".join(
        b"(WITH found (example) AS MATERIALIZED (%s) SELECT '%s', (SELECT count(*) FROM found),"
        b" ARRAY(SELECT example FROM found ORDER BY example LIMIT %d))"
        % (SQL[check.name], check.name.encode(), EXAMPLES)
        for check in checks
    )


def findings(
    checks: Iterable[Check], rows: Iterable[tuple[Any, ...]], thresholds: Thresholds | None = None
) -> list[Finding]:
    """Return the findings in the rows of a `query`."""
    known = {check.name: check for check in checks}
    return [
        _finding(known[name], thresholds or Thresholds(), count, examples)
        for name, count, examples in rows
        if count
    ]


async def _run(
    connection: Connection, check: Check, thresholds: Thresholds, local_time: Callable[[], datetime]
) -> Finding | None:
    async with _guarded(connection, thresholds):
        values = {**thresholds._asdict(), "local_time": local_time()}
        rows = await (await connection.execute(query([check]), values)).fetchall()
    return next(iter(findings([check], rows, thresholds)), None)


async def _reporting_errors(check: Check, running: Awaitable[Finding | None]) -> Finding | None:
    try:
        return await running
    except tuple(_NOT_CHECKED) as error:
        return Finding(
            check=check.name,
            level="warning",
            message=f"could not be checked: {error.diag.message_primary or type(error).__name__}",
            remedy=_NOT_CHECKED[type(error)],
            count=0,
            examples=[],
        )


def _finding(check: Check, thresholds: Thresholds, count: int, examples: list[str]) -> Finding:
    singular, _, plural = check.noun.partition("/")
    noun = singular if count == 1 else plural or f"{singular}s"
    return Finding(
        check=check.name,
        level="violation" if check in VIOLATIONS else "warning",
        message=f"{count:,} {noun} {check.sentence.format(**thresholds._asdict())}",
        remedy=check.remedy,
        count=count,
        examples=examples,
        command=_command(check, examples),
    )


def _command(check: Check, examples: list[str]) -> str | None:
    """Return the command for a finding, with what its first example names; None if it names nothing."""
    template = COMMANDS[check.name]
    if "{}" not in template:
        return template
    if not examples:
        return None
    named = examples[0].rpartition(": ")[0] or examples[0]  # what comes after a colon is said of it
    if check.name not in ("unserved_queues", "creators"):
        named = named.split()[0]
    return template.replace("{}", shlex.quote(named) if template.startswith("horsies") else named)


@asynccontextmanager
async def _guarded(connection: Connection, thresholds: Thresholds) -> AsyncGenerator[None]:
    """Open a read-only transaction with a statement timeout, set locally: a pooler gives the session to others."""
    async with connection.transaction():
        await connection.execute(SQL["guard"], thresholds._asdict(), prepare=False)
        yield


async def _schema(connection: Connection, thresholds: Thresholds) -> Finding | None:
    """Compare the version of the schema. An error here is raised: no other check could be made either."""
    async with _guarded(connection, thresholds):
        version = await installed_version(connection)
    if version == LATEST:
        return None
    return _finding(SCHEMA, thresholds, 1, [f"version {version}, not {LATEST}"])


async def _listen(connection: Connection, thresholds: Thresholds) -> Finding | None:
    seconds = thresholds.notification_seconds
    if await receives_notifications(connection, seconds):
        return None
    return _finding(LISTEN, thresholds, 1, [f"none within {seconds:g} s"])


async def receives_notifications(connection: Connection, seconds: float) -> bool:
    """Return True if a notification arrives in time; behind a pooler in transaction mode it is lost without an error."""
    channel = sql.Identifier(f"horsies_check_{uuid4().hex}")
    await connection.execute(sql.SQL("LISTEN {}").format(channel))
    await connection.execute(sql.SQL("NOTIFY {}").format(channel))
    received = [notify async for notify in connection.notifies(timeout=seconds, stop_after=1)]
    await connection.execute(sql.SQL("UNLISTEN {}").format(channel))
    return bool(received)
