"""Validate an app before it runs.

`check` goes through phases and returns every error of the first phase that finds one: task modules that cannot be
imported, invalid workflows, reserved error codes, invalid `on_failure` tasks, invalid schedules, and a database that cannot
be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from psycopg import errors

from horsies.client import resolve
from horsies.codec import ArgumentError
from horsies.config import PostgresConfig, configured_database
from horsies.db.connection import TRANSIENT, connect, connection_string, explain_connection_error
from horsies.db.migrations import LATEST, installed_version, too_new
from horsies.db.queries.doctor import receives_notifications
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
from horsies.event_loop import run_sync
from horsies.registry import TaskRegistry
from horsies.retry import ExceptionMapper
from horsies.schedule.scheduler import Starters
from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
)
from horsies.workflow.definition import builder_problems, definition_problems, undecorated

NOTIFICATION_SECONDS = 5.0

# Reserved codes that an exception may be mapped to: an exception without a mapping gets them anyway.
_EXCEPTION_CODES = {OperationalErrorCode.UNHANDLED_EXCEPTION, OperationalErrorCode.TASK_EXCEPTION}
# Codes that no attempt ends with: those of result retrieval, and of tasks that were cancelled or expired before they ran.
_NOT_FROM_ATTEMPTS = {*RetrievalCode, OutcomeCode.TASK_CANCELLED, OutcomeCode.TASK_EXPIRED}


def check(app: TaskRegistry, *, live: bool = False, schedules: bool = True) -> list[HorsiesError]:
    """Return the errors of the first phase that finds any; with `live`, connect to the database too.

    A worker without a scheduler leaves out `schedules`.

    >>> check(app, live=True)
    []
    """
    with suppressed_sends(app):
        found = _code_problems(app)
    if not found and schedules:
        found = _schedule_problems(app)
    if not found:
        postgres = configured_database(app.config)
        found = [] if postgres is None else unreadable_urls([postgres.conninfo, postgres.session_conninfo])
    if not found and live:
        report = ValidationReport("database")
        report.collect(lambda: run_sync(_check_database(resolve(app.config))))
        found = report.errors
    return found


def _code_problems(app: TaskRegistry) -> list[HorsiesError]:
    """Return the errors of the first phase that finds any in the app's own modules."""
    report = ValidationReport("imports")
    modules = [report.collect(lambda module=module: import_module(module)) for module in app.task_modules]
    return (
        report.errors
        or definition_problems(app)
        or builder_problems(app.workflow_builders)
        or undecorated([module for module in modules if module is not None], app.workflow_builders)
        or _reserved_codes(app)
        or handler_problems(app)
    )


def _reserved_codes(app: TaskRegistry) -> list[HorsiesError]:
    """Return an error for each setting that uses a reserved code as a plain string; an enum member is deliberate."""
    config = app.config
    found = [*_mapping_problems("AppConfig", config.exception_mapper, config.default_unhandled_error_code)]
    for task in (task.definition for task in app.tasks.values()):
        owner = f"task {task.name!r}"
        found += _mapping_problems(owner, task.exception_mapper or {}, task.default_unhandled_error_code)
        for code in () if task.retry_policy is None else task.retry_policy.auto_retry_for or ():
            if _builtin(code) in _NOT_FROM_ATTEMPTS:
                problem = f"{owner} lists {code!r} in auto_retry_for, and no attempt ends with this code"
                remedy = "an attempt that times out ends with 'TASK_TIMEOUT', one that raises with 'UNHANDLED_EXCEPTION'"
                found.append(_collision(problem, remedy))
    return found


def _mapping_problems(owner: str, mapper: ExceptionMapper, default: str | None) -> Iterator[HorsiesError]:
    remedy = "use a code of your own, such as UPSTREAM_DOWN"
    for exception, code in mapper.items():
        if _builtin(code) not in (None, *_EXCEPTION_CODES):
            yield _collision(
                f"{owner} maps {exception.__name__} to {code!r}, a code that horsies reserves", remedy
            )
    if _builtin(default) not in (None, *_EXCEPTION_CODES):
        yield _collision(
            f"{owner} has default_unhandled_error_code={default!r}, a code that horsies reserves", remedy
        )


def _builtin(code: object) -> BuiltInTaskCode | None:
    """Return the reserved code that a plain string equals."""
    return BUILTIN_CODE_REGISTRY.get(code) if type(code) is str else None


def _collision(problem: str, remedy: str) -> HorsiesError:
    return ConfigurationError(problem, code=ErrorCode.CHECK_RESERVED_CODE_COLLISION, help_text=remedy)


# The arguments of a task that is sent by `on_failure`.
_HANDLER_ARGUMENTS = {"task_id": "", "task_name": "", "error_code": "", "message": ""}


def handler_problems(app: TaskRegistry) -> list[HorsiesError]:
    """Return an error for each `on_failure` that names no task, or a task with other parameters."""
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
        if callable(handler.definition.key):
            found.append(
                TaskDefinitionError(
                    f"task {task.name!r} has on_failure={task.on_failure!r}, whose key is a Python function; "
                    "the database sends it and cannot call that",
                    code=ErrorCode.TASK_INVALID_OPTIONS,
                    help_text=f"make its key one of its parameters: {', '.join(_HANDLER_ARGUMENTS)}",
                )
            )
        try:
            handler.definition.signature.encode((), _HANDLER_ARGUMENTS)
        except ArgumentError as error:
            found.append(
                TaskDefinitionError(
                    f"task {task.name!r} has on_failure={task.on_failure!r}, which does not accept its arguments: {error}",
                    code=ErrorCode.TASK_INVALID_OPTIONS,
                    help_text=f"give it the parameters {', '.join(_HANDLER_ARGUMENTS)}, each a str",
                )
            )
    return found


def _schedule_problems(app: TaskRegistry) -> list[HorsiesError]:
    """Return what is wrong with the schedules in the code: task, queue, time zone or arguments."""
    starters = Starters(app)
    given = () if app.schedule_config is None else app.schedule_config.schedules
    return [problem for schedule in given if schedule.enabled for problem in starters.problems(schedule)]


def unreadable_urls(urls: Iterable[str]) -> list[HorsiesError]:
    """Return an error for each database URL that cannot be parsed."""
    found: list[HorsiesError] = []
    for url in dict.fromkeys(urls):
        try:
            connection_string(url)
        except ConfigurationError as problem:
            found.append(problem)
    return found


async def _check_database(postgres: PostgresConfig) -> None:
    try:
        async with await connect(postgres, name="horsies-check") as connection:
            await connection.execute("SELECT 1")
        async with await connect(postgres, session=True, name="horsies-check") as connection:
            if not await receives_notifications(connection, NOTIFICATION_SECONDS):
                raise DatabaseError(
                    f"a notification did not come back within {NOTIFICATION_SECONDS:.0f} s",
                    code=ErrorCode.BROKER_INIT_FAILED,
                    help_text="behind a pooler, point PostgresConfig(session_database_url=…) at PostgreSQL itself",
                )
            problem = schema_problem(await installed_version(connection))
    except TRANSIENT as error:
        raise explain_connection_error(error, postgres) from error
    except errors.InsufficientPrivilege as error:
        raise no_permission(error) from error
    if problem is not None:
        raise problem


def schema_problem(version: int) -> DatabaseError | None:
    """Return what is wrong with a schema of this version, if anything; version 0 means that there is no schema."""
    if version < LATEST:
        state = f"has schema version {version}" if version else "has no schema yet"
        return DatabaseError(
            f"the database {state}, this horsies needs {LATEST}",
            code=ErrorCode.SCHEMA_BEHIND,
            help_text="run `horsies migrate`; a worker does the same when it starts",
        )
    return too_new(version) if version > LATEST else None


def no_permission(error: errors.InsufficientPrivilege) -> DatabaseError:
    """Return the error for a role that may not use the tables."""
    return DatabaseError(
        f"PostgreSQL says: {error.diag.message_primary or error}",
        code=ErrorCode.SCHEMA_PERMISSION,
        help_text="connect as the role that ran `horsies migrate`, or let that role grant yours the schema and its tables",
    )
