"""Settings, validated when they are created.

A configuration object that exists is valid: its constructor reports all errors at once, each with the setting's name, its
value and a remedy. No repr shows a password.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Self, cast

from horsies.cpus import usable_cpus
from horsies.errors import (
    ErrorCode,
    SettingsReport,
    Span,
    SpanOrNone,
    bounded,
    is_whole_number,
    mask_passwords,
    masked_repr,
    read_timedeltas,
)
from horsies.frozen import dataclass
from horsies.project import is_database_name, own_database
from horsies.result import OperationalErrorCode
from horsies.retry import ExceptionMapper, check_exception_mapper, is_error_code
from horsies.schedule.model import ScheduleConfig

DEFAULT_CLAIM_LEASE_MS: Final = 10_000
MAX_QUEUE_NAME_LENGTH: Final = 100

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_URL = re.compile(r"(postgresql|postgres|postgresql\+psycopg)://")
_CAP, _PREFETCH = ErrorCode.CONFIG_INVALID_CLUSTER_CAP, ErrorCode.CONFIG_INVALID_PREFETCH
_KEEPALIVE = ErrorCode.CONFIG_INVALID_KEEPALIVE


def database_url_from(env: Mapping[str, str]) -> str | None:
    """Return the database URL from the environment: `HORSIES_DATABASE_URL`, or else `DATABASE_URL`."""
    return env.get("HORSIES_DATABASE_URL") or env.get("DATABASE_URL") or None


def database_at(url: str) -> "PostgresConfig":
    """Return the settings for a URL from the environment or the command line; `HORSIES_SCHEMA` names its schema."""
    return PostgresConfig(database_url=url, schema=os.environ.get("HORSIES_SCHEMA") or None)


def configured_database(config: "AppConfig") -> "PostgresConfig | None":
    """Return the database that the app or the environment names; None for the embedded server."""
    url = database_url_from(os.environ)
    return config.broker or (None if url is None else database_at(url))


def schema_of(config: "AppConfig") -> str | None:
    """Return the schema of the app's tables; None is the first one of the role's search path."""
    return os.environ.get("HORSIES_SCHEMA") or None if config.broker is None else config.broker.schema


def _check_url(report: SettingsReport, name: str, url: object) -> None:
    if not isinstance(url, str) or _URL.match(url) is None:
        problem = f"{name} is {_without_secrets(url)}"
        remedy = "use a URL such as postgresql://user@host:5432/database"
        report.fault(problem, remedy, ErrorCode.BROKER_INVALID_URL)
    elif _is_misread(url.partition("://")[2]):
        problem = (
            f"{name} is {mask_passwords(url)!r}, and PostgreSQL would not find the password where you put it"
        )
        remedy = "write @ as %40, : as %3A, / as %2F, ? as %3F and % as %25, unless it separates the parts of the URL"
        report.fault(problem, remedy, ErrorCode.BROKER_INVALID_URL)


def _without_secrets(url: object) -> str:
    """Return the repr of a value that is no PostgreSQL URL, cut before anything that may be a password."""
    if not isinstance(url, str) or "://" in url:
        return mask_passwords(repr(url))
    start = re.match(r"[^:=@]*[:=@]", url)
    return repr(url) if start is None else repr(f"{start[0]}***")


def _is_misread(rest: str) -> bool:
    """Return True if libpq would take part of a password for a host, port or database, and name it in an error.

    libpq ends the password at the first `@` before a slash, although an unescaped password may contain `@` itself.
    """
    login = re.match(r"[^@/]*@", rest)
    after = rest[login.end() :] if login else rest
    place, _, settings = after.partition("?")
    hosts = place.partition("/")[0]
    ports = [
        host.rpartition("]")[2].rpartition(":")[2]
        for host in hosts.split(",")
        if ":" in host.rpartition("]")[2]
    ]
    has_password = login is not None and ":" in login[0]
    return (
        "@" in place
        or (has_password and "@" in settings)
        or any(port and not (port.isascii() and port.isdecimal()) for port in ports)
    )


def _check_schema(report: SettingsReport, schema: object) -> None:
    if schema is None:
        return
    if (
        not isinstance(schema, str)
        or "\0" in schema
        or schema.startswith("pg_")
        or not 1 <= len(schema.encode(errors="replace")) <= 63
    ):
        remedy = "use 1 to 63 bytes without NUL; names that start with pg_ belong to PostgreSQL"
        report.fault(f"schema is {schema!r}", remedy, ErrorCode.CONFIG_INVALID_VALUE)


def _check_queue_names(
    report: SettingsReport, where: str, names: Iterable[object], code: ErrorCode | None = None
) -> None:
    for name, count in Counter(iter(names)).items():  # iterates over the keys of a mapping
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_QUEUE_NAME_LENGTH or "\0" in name:
            remedy = f"name queues with 1 to {MAX_QUEUE_NAME_LENGTH} characters of any text but NUL"
            report.fault(f"{where} has {name!r}", remedy, code)
        if count > 1:
            report.fault(f"{where} has {name!r} {count} times", "name each queue once", code)


def _normalize(config: Any) -> None:
    """Replace lists and dicts by copies, which cannot change after validation, and timedeltas by numbers."""
    copies: dict[type, Any] = {list: tuple, dict: dict}
    for setting in fields(config):
        value: object = getattr(config, setting.name)
        if copy := copies.get(type(value)):
            object.__setattr__(config, setting.name, copy(value))
    read_timedeltas(config)


class QueueMode(StrEnum):
    """One queue for all tasks, or several queues of your own."""

    DEFAULT = "default"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomQueueConfig:
    """A queue: its priority (1 is first) and its concurrency limit in the cluster.

    `max_concurrency=None` sets no limit; 0 pauses the queue.
    """

    name: str
    priority: int = bounded(1, 1, 100)
    max_concurrency: int | None = bounded(5, 0, or_none=True)

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_QUEUE_MODE)
        _check_queue_names(report, "name", [self.name])
        report.raise_if_any()


_DEFAULT: Final = "default"
# The only queue of an app that configures none.
_ONLY_QUEUE: Final = CustomQueueConfig(name=_DEFAULT, priority=100, max_concurrency=None)


@dataclass(frozen=True, slots=True)
class Queue(CustomQueueConfig):
    """A queue of `AppConfig(queues=…)`: its name, its priority (1 is first, 100 is last) and its concurrency limit.

    `max_concurrency` is the number of tasks of this queue that run at once in the whole cluster. None sets no limit; 0 pauses
    the queue.

    >>> config = AppConfig(queues=["mail", Queue("bulk", priority=80, max_concurrency=20)])
    >>> [(queue.name, queue.priority) for queue in config.all_queues]
    [('default', 50), ('mail', 50), ('bulk', 80)]
    """

    name: str
    _: KW_ONLY
    priority: int = bounded(50, 1, 100)
    max_concurrency: int | None = bounded(None, 0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresConfig:
    """The database and the settings of its connections.

    `postgresql://`, `postgres://` and `postgresql+psycopg://` URLs mean the same. Behind a pooler in transaction mode,
    `session_database_url` must bypass the pooler, because notifications need a session. `schema` is the PostgreSQL schema
    of the tables; None means the first one of the role's search path.

    >>> PostgresConfig(database_url="postgresql+psycopg://ann@db/app").conninfo
    'postgresql://ann@db/app'
    """

    database_url: str
    session_database_url: str | None = None
    pgbouncer_transaction_mode: bool = False
    pool_size: int = bounded(5, 1)
    max_overflow: int = bounded(10, 0)
    pool_timeout: Span = bounded(30, 1, unit="seconds")
    pool_recycle: Span = bounded(1_800, -1, unit="seconds")
    tcp_keepalives: bool = True
    tcp_keepalives_idle: Span = bounded(30, 1, code=_KEEPALIVE, unit="seconds")
    tcp_keepalives_interval: Span = bounded(10, 1, code=_KEEPALIVE, unit="seconds")
    tcp_keepalives_count: int = bounded(3, 1, code=_KEEPALIVE)
    tcp_user_timeout_ms: Span = bounded(30_000, 0, code=_KEEPALIVE, unit="milliseconds")
    schema: str | None = None

    def __post_init__(self) -> None:
        _normalize(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_BROKER_POOL)
        _check_url(report, "database_url", self.database_url)
        if self.session_database_url is not None:
            _check_url(report, "session_database_url", self.session_database_url)
        if self.pgbouncer_transaction_mode and self.session_database_url in (None, self.database_url):
            problem = "pgbouncer_transaction_mode needs a session_database_url other than database_url"
            report.fault(problem, "point session_database_url at PostgreSQL itself, past the pooler")
        _check_schema(report, self.schema)
        report.raise_if_any()

    def __repr__(self) -> str:
        return masked_repr(self)

    @property
    def conninfo(self) -> str:
        """Return the database URL in the form that libpq accepts."""
        return _URL.sub("postgresql://", self.database_url, count=1)

    @property
    def session_conninfo(self) -> str:
        """Return the URL for connections that need a session of their own, such as a listener's."""
        return _URL.sub("postgresql://", self.session_database_url or self.database_url, count=1)

    @property
    def socket_options(self) -> dict[str, int]:
        """Return the libpq settings that detect a dead connection."""
        names = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count")
        keepalives = {name: int(getattr(self, f"tcp_{name}")) for name in names}
        return {**keepalives, "tcp_user_timeout": self.tcp_user_timeout_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """The recovery of tasks whose worker has died.

    A threshold is the time without a heartbeat; None means until the worker's lease expires.
    """

    auto_requeue_stale_claimed: bool = True
    auto_fail_stale_running: bool = True
    claimed_stale_threshold_ms: SpanOrNone = bounded(None, _SECOND, _HOUR, unit="milliseconds")
    running_stale_threshold_ms: SpanOrNone = bounded(None, _SECOND, 2 * _HOUR, unit="milliseconds")
    check_interval_ms: Span = bounded(30_000, _SECOND, 10 * _MINUTE, unit="milliseconds")
    runner_heartbeat_interval_ms: Span = bounded(30_000, _SECOND, 2 * _MINUTE, unit="milliseconds")
    claimer_heartbeat_interval_ms: Span = bounded(30_000, _SECOND, 2 * _MINUTE, unit="milliseconds")
    crashed_worker_recovery_grace_ms: Span = bounded(10_000, 0, _HOUR, unit="milliseconds")
    worker_state_snapshot_interval_ms: Span = bounded(30_000, _SECOND, 5 * _MINUTE, unit="milliseconds")

    def __post_init__(self) -> None:
        _normalize(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RECOVERY)
        for threshold, heartbeat in (
            ("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
            ("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
        ):
            limit, beat = getattr(self, threshold), getattr(self, heartbeat)
            if limit is not None and report.in_range(threshold, heartbeat) and limit < 2 * beat:
                problem = f"{threshold} is {limit}, less than twice {heartbeat} ({beat})"
                report.fault(problem, f"use at least {2 * beat}: one late heartbeat is not a crash")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResilienceConfig:
    """The retries of a worker while the database is unreachable. `db_retry_max_attempts=0` means for ever."""

    db_retry_initial_ms: Span = bounded(500, 100, 60_000, unit="milliseconds")
    db_retry_max_ms: Span = bounded(30_000, 500, 300_000, unit="milliseconds")
    db_retry_max_attempts: int = bounded(0, 0, 10_000)
    notify_poll_interval_ms: Span = bounded(5_000, 1_000, 300_000, unit="milliseconds")

    def __post_init__(self) -> None:
        _normalize(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RESILIENCE)
        first, cap = self.db_retry_initial_ms, self.db_retry_max_ms
        if report.in_range("db_retry_initial_ms", "db_retry_max_ms") and cap < first:
            problem = f"db_retry_max_ms is {cap}, below db_retry_initial_ms ({first})"
            report.fault(problem, "raise the cap or lower the first delay")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """The retention of finished tasks and other records; None keeps them for ever."""

    terminal_record_retention_hours: SpanOrNone = bounded(720, 1, or_none=True, unit="hours")
    worker_state_retention_hours: SpanOrNone = bounded(168, 1, or_none=True, unit="hours")
    heartbeat_retention_hours: SpanOrNone = bounded(24, 1, or_none=True, unit="hours")
    result_retention_hours: SpanOrNone = bounded(None, 1, unit="hours")
    queue_retention: Mapping[str, timedelta | None] = field(default_factory=dict[str, timedelta | None])
    retention_sweep_interval_s: Span = bounded(300, 1, unit="seconds")
    retention_delete_batch_size: int = bounded(500, 1)

    def __post_init__(self) -> None:
        _normalize(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RETENTION)
        _check_queue_names(report, "queue_retention", self.queue_retention)
        for queue, span in self.queue_retention.items():
            if span is not None and span <= timedelta(0):
                problem = f"queue_retention[{queue!r}] is {span!r}"
                report.fault(problem, "use a span of time above zero, or None")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPolicy:
    """The size limits of encoded arguments and results; None means no limit."""

    warn_bytes: int | None = bounded(1_048_576, 1, or_none=True)
    reject_bytes: int | None = bounded(16 * 1_048_576, 1, or_none=True)

    def __post_init__(self) -> None:
        SettingsReport(self, ErrorCode.CONFIG_INVALID_VALUE).raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """The settings of an app. Without a `broker`, the database URL comes from the environment.

    `queues` adds queues to the one named `default`. A number of seconds, milliseconds or hours may be a `timedelta`.

    If the environment has none either, the app uses the database `embedded_database` on the embedded PostgreSQL server. Its
    default is named after the folder of the project.

    >>> config = AppConfig(
    ...     broker=PostgresConfig(database_url="postgresql://localhost/app"),
    ...     queues=["mail", Queue("bulk", priority=80)],
    ...     recovery=RecoveryConfig(check_interval_ms=timedelta(seconds=10)),
    ... )
    >>> [queue.name for queue in config.all_queues]
    ['default', 'mail', 'bulk']
    """

    queues: Sequence[str | Queue] | None = None
    queue_mode: QueueMode = QueueMode.DEFAULT
    custom_queues: Sequence[CustomQueueConfig] | None = None
    broker: PostgresConfig | None = None
    cluster_wide_cap: int | None = bounded(None, 1, code=_CAP)
    prefetch_buffer: int | None = bounded(None, 0, code=_PREFETCH)
    claim_lease_ms: SpanOrNone = bounded(None, 1, code=_PREFETCH, unit="milliseconds")
    max_claim_renew_age_ms: Span = bounded(180_000, 1, code=_PREFETCH, unit="milliseconds")
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    resilience: WorkerResilienceConfig = field(default_factory=WorkerResilienceConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    payload: PayloadPolicy = field(default_factory=PayloadPolicy)
    schedule: ScheduleConfig | None = None
    exception_mapper: ExceptionMapper = field(default_factory=dict[type[BaseException], str])
    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_EXCEPTION
    resend_on_transient_err: bool = False
    default_task_timeout_ms: SpanOrNone = bounded(None, 100, unit="milliseconds")
    cancel_grace_ms: Span = bounded(10_000, 0, unit="milliseconds")
    unknown_task_grace_seconds: Span = bounded(60, 0, unit="seconds")
    log_format: Literal["text", "json"] = "text"
    events: Literal["table", "log", "off"] = "table"
    redact: Sequence[str] = ()
    embedded_database: str | None = None

    @classmethod
    def for_database_url(cls, url: str, **settings: Any) -> Self:
        """Return a configuration for the database at this URL."""
        return cls(broker=PostgresConfig(database_url=url), **settings)

    def __post_init__(self) -> None:
        _normalize(self)
        if self.broker is None and self.embedded_database is None:
            # Now, because the file that creates the app tells the project.
            object.__setattr__(self, "embedded_database", own_database())
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_VALUE)
        if self.embedded_database is not None and not is_database_name(self.embedded_database):
            problem = f"embedded_database (or HORSIES_EMBEDDED_DATABASE) is {self.embedded_database!r}"
            remedy = "use up to 63 lower-case letters, digits and underscores, not starting with a digit"
            report.fault(problem, remedy)
        self._check_queues(report)
        self._check_claims(report)
        for error in check_exception_mapper(self.exception_mapper, "AppConfig"):
            report.add(error)
        if not is_error_code(self.default_unhandled_error_code):
            problem = f"default_unhandled_error_code is {self.default_unhandled_error_code!r}"
            remedy = "write it like MY_ERROR: capitals, digits and underscores"
            report.fault(problem, remedy, ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER)
        report.choice("log_format", self.log_format, "text", "json")
        report.choice("events", self.events, "table", "log", "off")
        self._check_redact(report)
        report.raise_if_any()

    def _check_redact(self, report: SettingsReport) -> None:
        names: object = self.redact
        if not isinstance(names, tuple) or not all(
            isinstance(name, str) and name for name in cast(tuple[object, ...], names)
        ):
            report.fault(f"redact is {names!r}", 'list the names of arguments, such as redact=["password"]')

    def _check_queues(self, report: SettingsReport) -> None:
        code = ErrorCode.CONFIG_INVALID_QUEUE_MODE
        if self.queues is not None and (
            self.queue_mode == QueueMode.CUSTOM or self.custom_queues is not None
        ):
            problem = "queues is set together with QueueMode.CUSTOM or custom_queues"
            report.fault(problem, "keep one of the two styles: queues=[…] alone is enough", code)
        elif self.queue_mode not in list(QueueMode):
            report.fault(f"queue_mode is {self.queue_mode!r}", "use a member of QueueMode", code)
        elif self.queue_mode == QueueMode.DEFAULT and self.custom_queues is not None:
            report.fault("custom_queues is set in QueueMode.DEFAULT", "use QueueMode.CUSTOM", code)
        elif self.queue_mode == QueueMode.CUSTOM and not self.custom_queues:
            report.fault("QueueMode.CUSTOM has no custom_queues", "list at least one CustomQueueConfig", code)
        self._check_custom_queues(report, self.custom_queues, code)
        self._check_plain_queues(report, self.queues, code)

    def _check_custom_queues(self, report: SettingsReport, queues: object, code: ErrorCode) -> None:
        if queues is None:
            return
        remedy = 'list the queues: custom_queues=[CustomQueueConfig(name="mail")]'
        if not isinstance(queues, tuple):
            report.fault(f"custom_queues is {queues!r}", remedy, code)
            return
        given = cast("tuple[object, ...]", queues)
        for queue in given:
            if not isinstance(queue, CustomQueueConfig):
                report.fault(f"custom_queues has {queue!r}", remedy, code)
        names = [queue.name for queue in given if isinstance(queue, CustomQueueConfig)]
        _check_queue_names(report, "custom_queues", names, code)

    def _check_plain_queues(self, report: SettingsReport, queues: object, code: ErrorCode) -> None:
        if queues is None:
            return
        if not isinstance(queues, tuple):
            report.fault(f"queues is {queues!r}", 'list the queues: queues=["mail", Queue("bulk")]', code)
            return
        names: list[object] = []
        for queue in cast("tuple[object, ...]", queues):
            if isinstance(queue, str | Queue):
                names.append(queue if isinstance(queue, str) else queue.name)
            else:
                report.fault(f"queues has {queue!r}", 'use names and Queue("name", …)', code)
        _check_queue_names(report, "queues", names, code)

    def _check_claims(self, report: SettingsReport) -> None:
        prefetches = bool(self.prefetch_buffer) and report.in_range("prefetch_buffer")
        if prefetches and self.cluster_wide_cap is not None:
            problem = f"cluster_wide_cap is set and prefetch_buffer is {self.prefetch_buffer}"
            report.fault(problem, "set prefetch_buffer=0: prefetched tasks would count against the cap", _CAP)
        if prefetches and self.claim_lease_ms is None:
            problem = f"prefetch_buffer is {self.prefetch_buffer} and claim_lease_ms is not set"
            report.fault(problem, "set claim_lease_ms, after which others may take the task", _PREFETCH)
        lease = self.effective_claim_lease_ms
        comparable = report.in_range("claim_lease_ms", "max_claim_renew_age_ms")
        if comparable and self.max_claim_renew_age_ms < lease:
            problem = f"max_claim_renew_age_ms is {self.max_claim_renew_age_ms}, below the lease ({lease})"
            report.fault(problem, f"use at least {lease}, or a shorter claim_lease_ms", _PREFETCH)

    @property
    def all_queues(self) -> tuple[CustomQueueConfig, ...]:
        """Return all queues, however they are configured; with `queues`, the one named `default` comes first."""
        if self.queues is None:
            return tuple(self.custom_queues or (_ONLY_QUEUE,))
        named = [Queue(queue) if isinstance(queue, str) else queue for queue in self.queues]
        default = next((queue for queue in named if queue.name == _DEFAULT), Queue(_DEFAULT))
        return default, *(queue for queue in named if queue is not default)

    @property
    def effective_claim_lease_ms(self) -> int:
        """Return how long a claim is valid without renewal."""
        return DEFAULT_CLAIM_LEASE_MS if self.claim_lease_ms is None else self.claim_lease_ms

    @property
    def claim_renew_interval_ms(self) -> int:
        """Return the interval between renewals: at most a third of the lease."""
        return max(1, min(self.recovery.claimer_heartbeat_interval_ms, self.effective_claim_lease_ms // 3))

    def log_config(self, logger: logging.Logger | None = None) -> None:
        """Log every setting at level INFO, passwords masked."""
        settings = [f"  {setting.name}: {getattr(self, setting.name)!r}" for setting in fields(self)]
        (logger or logging.getLogger("horsies")).info("Configuration:\n%s", "\n".join(settings))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkerConfig:
    """The settings of one worker; None means the app's setting.

    `concurrency` is another name for `processes`, whose default is the number of CPUs that the process may use: its CPU
    affinity and the CPU limit of its container count. With `max_claim_batch=0` or `max_claim_per_worker=0` a worker claims
    as many tasks as its processes can take. `max_tasks_per_child=1` runs each task in a new process; 0 never replaces a
    process. By default a process is replaced after 100 tasks, but not before it is a second old.

    >>> WorkerConfig(concurrency=8, queues=["mail"]).processes
    8
    """

    processes: int = bounded(None, 1)
    concurrency: InitVar[int | None] = None
    threads: int = bounded(1, 1)
    async_processes: int = bounded(1, 1)
    async_concurrency: int = bounded(100, 1)
    queues: Sequence[str] | None = None
    queue_priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    queue_max_concurrency: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    prefetch_buffer: int | None = bounded(None, 0)
    max_claim_batch: int = bounded(0, 0)
    max_claim_per_worker: int = bounded(0, 0)
    coalesce_notifies: int = bounded(100, 1)
    max_tasks_per_child: int | None = bounded(None, 0)
    max_memory_per_child_mb: int | None = bounded(None, 1)
    drain_seconds: Span = bounded(300, 0, unit="seconds")
    health_port: int | None = bounded(None, 1, 65_535)
    health_host: str = "0.0.0.0"  # noqa: S104  probes come from other machines, and the answers hold no secrets
    start_method: Literal["forkserver", "fork", "spawn"] | None = None
    with_scheduler: bool = False
    loglevel: str = "INFO"
    dsn: str | None = None
    app_locator: str | None = None
    imports: Sequence[str] = ()

    def __post_init__(self, concurrency: int | None) -> None:
        _normalize(self)
        asked = [size for size in (self.processes, concurrency) if size is not None]
        object.__setattr__(self, "processes", asked[0] if asked else usable_cpus())
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_WORKER)
        if len(set(asked)) > 1:
            report.fault(f"processes and concurrency, its other name, are {asked!r}", "give one of the two")
        self._check_queues(report)
        if self.dsn is not None:
            _check_url(report, "dsn", self.dsn)
        if self.threads != 1 and self.max_tasks_per_child == 1:
            problem = f"threads is {self.threads} and max_tasks_per_child is 1"
            report.fault(
                problem, "a process of its own for each task leaves nothing for threads: use threads=1"
            )
        report.choice("loglevel", self.loglevel, "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        report.choice("start_method", self.start_method, None, "forkserver", "fork", "spawn")
        report.raise_if_any()

    def _check_queues(self, report: SettingsReport) -> None:
        if self.queues is not None and not self.queues:
            report.fault("queues is empty", "name the queues to serve, or leave it out to serve all")
        _check_queue_names(report, "queues", self.queues or ())
        for queue, priority in self.queue_priorities.items():
            if not is_whole_number(priority, 1, 100):
                report.fault(f"queue_priorities[{queue!r}] is {priority!r}", "use 1 to 100")
        for queue, cap in self.queue_max_concurrency.items():
            if cap is not None and not is_whole_number(cap, 0):
                report.fault(f"queue_max_concurrency[{queue!r}] is {cap!r}", "use 0 or more, or None")

    def __repr__(self) -> str:
        return masked_repr(self)
