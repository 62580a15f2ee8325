"""Look for mistakes before anything runs.

A check goes through phases and stops after the first that finds something, with everything that phase found: task
modules that cannot be imported, workflows that cannot run as drawn, error codes that cannot mean what they say, tasks for
failures that could not be sent, schedules that could not be run, a database that cannot be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from uuid import uuid4

from psycopg import errors, sql

from horsies.broker import resolve
from horsies.codec import ArgumentError
from horsies.config import AppConfig, PostgresConfig, database_url_from
from horsies.discovery import import_module, suppressed_sends
from horsies.errors import (
    ConfigurationError,
    DatabaseError,
    ErrorCode,
    HorsiesError,
    RegistryError,
    TaskDefinitionError,
    ValidationReport,
)
from horsies.portal import run_sync
from horsies.registry import TaskRegistry
from horsies.retry import ExceptionMapper
from horsies.scheduler.targets import Starters
from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
)
from horsies.storage.database import TRANSIENT, Connection, connect, connection_string, explain
from horsies.storage.migrate import LATEST, installed_version
from horsies.workflow.inspection import builder_problems, definition_problems, undecorated

ANSWER_SECONDS = 5.0

# An exception may well be called what it is called anyway.
_RAISED = {OperationalErrorCode.UNHANDLED_EXCEPTION, OperationalErrorCode.TASK_EXCEPTION}
# What whoever waits for a task is told, or becomes of one that does not run: no run ends so, none can be retried for it.
_NEVER_RUN = {*RetrievalCode, OutcomeCode.TASK_CANCELLED, OutcomeCode.TASK_EXPIRED}


def check(app: TaskRegistry, *, live: bool = False, schedules: bool = True) -> list[HorsiesError]:
    """The mistakes of the first phase that finds any; with `live`, the database is tried out too.

    Schedules are of no concern to a worker without a scheduler.

    >>> check(app, live=True)
    []
    """
    wanted = [
        _imports,
        _definitions,
        _builders,
        _undecorated,
        _codes,
        handler_problems,
        *([_schedules] if schedules else []),
        _database_url,
        *([_database] if live else []),
    ]
    for phase in wanted:
        if found := phase(app):
            return found
    return []


def _imports(app: TaskRegistry) -> list[HorsiesError]:
    report = ValidationReport("imports")
    with suppressed_sends(app):
        for module in app.task_modules:
            report.collect(lambda module=module: import_module(module))
    return report.errors


def _definitions(app: TaskRegistry) -> list[HorsiesError]:
    with suppressed_sends(app):
        return definition_problems(app)


def _builders(app: TaskRegistry) -> list[HorsiesError]:
    with suppressed_sends(app):
        return builder_problems(app.workflow_builders)


def _undecorated(app: TaskRegistry) -> list[HorsiesError]:
    with suppressed_sends(app):
        return undecorated([import_module(module) for module in app.task_modules], app.workflow_builders)


def _codes(app: TaskRegistry) -> list[HorsiesError]:
    """Codes of ours that a user's settings hand out as their own. Written as an enum member, it is meant."""
    config = app.config
    found = [*_lent("AppConfig", config.exception_mapper, config.default_unhandled_error_code)]
    for task in (task.definition for task in app.tasks.values()):
        owner = f"task {task.name!r}"
        found += _lent(owner, task.exception_mapper or {}, task.default_unhandled_error_code)
        for code in () if task.retry_policy is None else task.retry_policy.auto_retry_for:
            if _builtin(code) in _NEVER_RUN:
                problem = f"{owner} lists {code!r} in auto_retry_for, and no run of a task ends with it"
                remedy = "a run that takes too long ends with 'TASK_TIMEOUT', one that raises with 'UNHANDLED_EXCEPTION'"
                found.append(_collision(problem, remedy))
    return found


def _lent(owner: str, mapper: ExceptionMapper, default: str | None) -> Iterator[HorsiesError]:
    remedy = "use a code of your own, such as UPSTREAM_DOWN"
    for exception, code in mapper.items():
        if _builtin(code) not in (None, *_RAISED):
            yield _collision(
                f"{owner} maps {exception.__name__} to {code!r}, which is a code of horsies' own", remedy
            )
    if _builtin(default) not in (None, *_RAISED):
        yield _collision(
            f"{owner} has default_unhandled_error_code={default!r}, which is a code of horsies' own", remedy
        )


def _builtin(code: str | None) -> BuiltInTaskCode | None:
    """Our own code that a plain string spells."""
    return BUILTIN_CODE_REGISTRY.get(code) if type(code) is str else None


def _collision(problem: str, remedy: str) -> HorsiesError:
    return ConfigurationError(problem, code=ErrorCode.CHECK_RESERVED_CODE_COLLISION, help_text=remedy)


# What a task that is sent for the failure of another is given.
_TOLD = {"task_id": "", "task_name": "", "error_code": "", "message": ""}


def handler_problems(app: TaskRegistry) -> list[HorsiesError]:
    """Tasks whose `on_failure` names no task, or one that cannot take what it is told."""
    found: list[HorsiesError] = []
    for task in (task.definition for task in app.tasks.values() if task.definition.on_failure is not None):
        handler = app.tasks.get(task.on_failure or "")
        if handler is None:
            found.append(
                RegistryError(
                    f"task {task.name!r} has on_failure={task.on_failure!r}, and there is no such task",
                    code=ErrorCode.TASK_NOT_REGISTERED,
                    help_text=f"define it in this app, or use one of: {', '.join(app.list_tasks())}",
                )
            )
            continue
        try:
            handler.definition.signature.encode((), _TOLD)
        except ArgumentError as error:
            found.append(
                TaskDefinitionError(
                    f"task {task.name!r} has on_failure={task.on_failure!r}, which cannot take what it is told: {error}",
                    code=ErrorCode.TASK_INVALID_OPTIONS,
                    help_text=f"give it the parameters {', '.join(_TOLD)}, each a str",
                )
            )
    return found


def _schedules(app: TaskRegistry) -> list[HorsiesError]:
    """Schedules of the code that could not be run: their task, queue, time zone or arguments."""
    starters = Starters(app)
    given = () if app.config.schedule is None else app.config.schedule.schedules
    return [problem for schedule in given if schedule.enabled for problem in starters.problems(schedule)]


def configured_database(config: AppConfig) -> PostgresConfig | None:
    """The database that the app or the environment names; None when it will be a server of our own."""
    url = database_url_from(os.environ)
    return config.broker or (None if url is None else PostgresConfig(database_url=url))


def _database_url(app: TaskRegistry) -> list[HorsiesError]:
    postgres = configured_database(app.config)
    return [] if postgres is None else unreadable_urls([postgres.conninfo, postgres.session_conninfo])


def unreadable_urls(urls: Iterable[str]) -> list[HorsiesError]:
    """What is wrong with the spelling of database URLs."""
    found: list[HorsiesError] = []
    for url in dict.fromkeys(urls):
        try:
            connection_string(url)
        except ConfigurationError as problem:
            found.append(problem)
    return found


def _database(app: TaskRegistry) -> list[HorsiesError]:
    report = ValidationReport("database")
    report.collect(lambda: run_sync(_try_out(resolve(app.config))))
    return report.errors


async def _try_out(postgres: PostgresConfig) -> None:
    try:
        async with await connect(postgres, name="horsies-check") as connection:
            await connection.execute("SELECT 1")
        async with await connect(postgres, session=True, name="horsies-check") as connection:
            await _hear_ourselves(connection)
            problem = schema_problem(await installed_version(connection))
    except TRANSIENT as error:
        raise explain(error, postgres) from error
    except errors.InsufficientPrivilege as error:
        raise no_permission(error) from error
    if problem is not None:
        raise problem


async def _hear_ourselves(connection: Connection) -> None:
    """A pooler in transaction mode swallows notifications without a word."""
    channel = f"horsies_check_{uuid4().hex}"
    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    await connection.execute("SELECT pg_notify(%s, '')", (channel,))
    async for _ in connection.notifies(timeout=ANSWER_SECONDS, stop_after=1):
        return
    raise DatabaseError(
        f"a notification did not come back within {ANSWER_SECONDS:.0f} s",
        code=ErrorCode.BROKER_INIT_FAILED,
        help_text="behind a pooler, point PostgresConfig(session_database_url=…) at PostgreSQL itself",
    )


def schema_problem(version: int) -> DatabaseError | None:
    """What is wrong with a schema of this version, if anything; 0 stands for none at all."""
    if version < LATEST:
        state = f"has schema version {version}" if version else "has no schema yet"
        return DatabaseError(
            f"the database {state}, this horsies needs {LATEST}",
            code=ErrorCode.SCHEMA_BEHIND,
            help_text="run `horsies migrate`; a worker does the same when it starts",
        )
    if version > LATEST:
        return DatabaseError(
            f"the database has schema version {version}, this horsies knows {LATEST} at most",
            code=ErrorCode.SCHEMA_TOO_NEW,
            help_text="upgrade horsies here: a newer version has migrated this database",
        )
    return None


def no_permission(error: errors.InsufficientPrivilege) -> DatabaseError:
    """The error that a user sees whose role may not use the tables."""
    return DatabaseError(
        f"PostgreSQL says: {error.diag.message_primary or error}",
        code=ErrorCode.SCHEMA_PERMISSION,
        help_text="connect as the role that ran `horsies migrate`, or have it grant you the schema and its tables",
    )
