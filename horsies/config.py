"""Settings, checked when they are made.

A configuration object that exists is a valid one: everything wrong with it was reported at once, by
name, with the value and the remedy. None of them shows a password.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Self

from horsies.errors import ErrorCode, SettingsReport, bounded, is_whole_number, mask_passwords, masked_repr
from horsies.results import OperationalErrorCode
from horsies.retry import ExceptionMapper, check_exception_mapper, is_error_code
from horsies.schedule.model import ScheduleConfig

DEFAULT_QUEUE: Final = "default"
DEFAULT_PRIORITY: Final = 100
DEFAULT_CLAIM_LEASE_MS: Final = 10_000
MAX_QUEUE_NAME_LENGTH: Final = 100

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_URL = re.compile(r"(postgresql|postgres|postgresql\+psycopg)://")
_CAP, _PREFETCH = ErrorCode.CONFIG_INVALID_CLUSTER_CAP, ErrorCode.CONFIG_INVALID_PREFETCH
_KEEPALIVE = ErrorCode.CONFIG_INVALID_KEEPALIVE


def database_url_from(env: Mapping[str, str]) -> str | None:
    """The database that the environment names: `HORSIES_DATABASE_URL`, then `DATABASE_URL`."""
    return env.get("HORSIES_DATABASE_URL") or env.get("DATABASE_URL") or None


def _check_url(report: SettingsReport, name: str, url: object) -> None:
    if not isinstance(url, str) or _URL.match(url) is None:
        problem = f"{name} is {mask_passwords(repr(url))}"
        remedy = "use a URL such as postgresql://user@host:5432/database"
        report.fault(problem, remedy, ErrorCode.BROKER_INVALID_URL)


def _check_queue_names(
    report: SettingsReport, where: str, names: Iterable[object], code: ErrorCode | None = None
) -> None:
    for name, count in Counter(iter(names)).items():  # of a mapping, the keys
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_QUEUE_NAME_LENGTH or "\0" in name:
            remedy = f"name queues with 1 to {MAX_QUEUE_NAME_LENGTH} characters of any text but NUL"
            report.fault(f"{where} has {name!r}", remedy, code)
        if count > 1:
            report.fault(f"{where} has {name!r} {count} times", "name each queue once", code)


def _own(config: Any) -> None:
    """Keep copies of lists and dicts, so that what is checked cannot change behind us."""
    copies: dict[type, Any] = {list: tuple, dict: dict}
    for setting in fields(config):
        value: object = getattr(config, setting.name)
        if copy := copies.get(type(value)):
            object.__setattr__(config, setting.name, copy(value))


class QueueMode(StrEnum):
    """One queue for everything, or queues of your own."""

    DEFAULT = "default"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomQueueConfig:
    """A queue: its priority (1 first) and how many of its tasks may be in flight in the cluster.

    `max_concurrency=None` sets no limit; 0 pauses the queue.
    """

    name: str
    priority: int = bounded(1, 1, 100)
    max_concurrency: int | None = bounded(5, 0, or_none=True)

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_QUEUE_MODE)
        _check_queue_names(report, "name", [self.name])
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresConfig:
    """Where the database is and how to hold connections to it.

    `postgresql://`, `postgres://` and `postgresql+psycopg://` URLs are the same thing. Behind a pooler
    in transaction mode, `session_database_url` goes past it: notifications need a session. Children
    hold no connections; their settings are accepted so that existing configurations keep working.

    >>> PostgresConfig(database_url="postgresql+psycopg://ann@db/app").conninfo
    'postgresql://ann@db/app'
    """

    database_url: str
    session_database_url: str | None = None
    pgbouncer_transaction_mode: bool = False
    pool_size: int = bounded(5, 1)
    max_overflow: int = bounded(10, 0)
    pool_timeout: int = bounded(30, 1)
    pool_recycle: int = bounded(1_800, -1)
    pool_pre_ping: bool = True
    echo: bool = False
    worker_pool_size: int = bounded(3, 1)
    worker_max_overflow: int = bounded(2, 0)
    worker_child_pool_min_size: int = bounded(0, 0)
    worker_child_pool_max_size: int = bounded(2, 1)
    worker_child_pool_check: bool = True
    tcp_keepalives: bool = True
    tcp_keepalives_idle: int = bounded(30, 1, code=_KEEPALIVE)
    tcp_keepalives_interval: int = bounded(10, 1, code=_KEEPALIVE)
    tcp_keepalives_count: int = bounded(3, 1, code=_KEEPALIVE)
    tcp_user_timeout_ms: int = bounded(30_000, 0, code=_KEEPALIVE)
    retain_rerun_input_default: bool = False

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_BROKER_POOL)
        _check_url(report, "database_url", self.database_url)
        if self.session_database_url is not None:
            _check_url(report, "session_database_url", self.session_database_url)
        if self.pgbouncer_transaction_mode and self.session_database_url in (None, self.database_url):
            problem = "pgbouncer_transaction_mode needs a session_database_url other than database_url"
            report.fault(problem, "point session_database_url at PostgreSQL itself, past the pooler")
        report.raise_if_any()

    def __repr__(self) -> str:
        return masked_repr(self)

    @property
    def conninfo(self) -> str:
        """The database URL as libpq wants it."""
        return _URL.sub("postgresql://", self.database_url, count=1)

    @property
    def session_conninfo(self) -> str:
        """The same for connections that must keep their session, such as a listener's."""
        return _URL.sub("postgresql://", self.session_database_url or self.database_url, count=1)

    @property
    def socket_options(self) -> dict[str, int]:
        """The libpq settings by which a dead connection is noticed."""
        names = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count")
        beats = {name: int(getattr(self, f"tcp_{name}")) for name in names}
        return {**beats, "tcp_user_timeout": self.tcp_user_timeout_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """When work counts as lost, and what becomes of it.

    A threshold is how long a worker must have been silent; None is as long as its lease holds.
    """

    auto_requeue_stale_claimed: bool = True
    auto_fail_stale_running: bool = True
    claimed_stale_threshold_ms: int | None = bounded(None, _SECOND, _HOUR)
    running_stale_threshold_ms: int | None = bounded(None, _SECOND, 2 * _HOUR)
    finalizing_stale_threshold_ms: int = bounded(300_000, _SECOND, 2 * _HOUR)
    check_interval_ms: int = bounded(30_000, _SECOND, 10 * _MINUTE)
    runner_heartbeat_interval_ms: int = bounded(30_000, _SECOND, 2 * _MINUTE)
    claimer_heartbeat_interval_ms: int = bounded(30_000, _SECOND, 2 * _MINUTE)
    crashed_worker_recovery_grace_ms: int = bounded(10_000, 0, _HOUR)
    worker_state_snapshot_interval_ms: int = bounded(30_000, _SECOND, 5 * _MINUTE)
    orphan_task_audit_interval_ms: int = bounded(60_000, _SECOND, _HOUR)
    auto_terminate_orphaned_workflow_tasks: bool = True
    phase2_quarantine_after_attempts: int = bounded(25, 1)

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RECOVERY)
        for threshold, heartbeat in (
            ("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
            ("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
            ("finalizing_stale_threshold_ms", "runner_heartbeat_interval_ms"),
        ):
            limit, beat = getattr(self, threshold), getattr(self, heartbeat)
            if limit is not None and report.in_range(threshold, heartbeat) and limit < 2 * beat:
                problem = f"{threshold} is {limit}, less than twice {heartbeat} ({beat})"
                report.fault(problem, f"use at least {2 * beat}: one late heartbeat is not a crash")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResilienceConfig:
    """How a worker bears with a database that is away. `db_retry_max_attempts=0` means for ever."""

    db_retry_initial_ms: int = bounded(500, 100, 60_000)
    db_retry_max_ms: int = bounded(30_000, 500, 300_000)
    db_retry_max_attempts: int = bounded(0, 0, 10_000)
    notify_poll_interval_ms: int = bounded(5_000, 1_000, 300_000)

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RESILIENCE)
        first, cap = self.db_retry_initial_ms, self.db_retry_max_ms
        if report.in_range("db_retry_initial_ms", "db_retry_max_ms") and cap < first:
            problem = f"db_retry_max_ms is {cap}, below db_retry_initial_ms ({first})"
            report.fault(problem, "raise the cap or lower the first delay")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """How long finished records are kept; None keeps them for ever."""

    terminal_record_retention_hours: int | None = bounded(720, 1, or_none=True)
    worker_state_retention_hours: int | None = bounded(168, 1, or_none=True)
    heartbeat_retention_hours: int | None = bounded(24, 1, or_none=True)
    result_retention_hours: int | None = bounded(None, 1)
    queue_retention: Mapping[str, timedelta | None] = field(default_factory=dict[str, timedelta | None])
    paused_workflow_auto_cancel_after: timedelta | None = None
    retention_sweep_interval_s: int = bounded(300, 1)
    retention_delete_batch_size: int = bounded(500, 1)

    def __post_init__(self) -> None:
        _own(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_RETENTION)
        _check_queue_names(report, "queue_retention", self.queue_retention)
        spans = {f"queue_retention[{queue!r}]": span for queue, span in self.queue_retention.items()}
        spans["paused_workflow_auto_cancel_after"] = self.paused_workflow_auto_cancel_after
        for name, span in spans.items():
            if span is not None and span <= timedelta(0):
                report.fault(f"{name} is {span!r}", "use a span of time above zero, or None")
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPolicy:
    """How large encoded arguments and results may be; None sets no limit."""

    warn_bytes: int | None = bounded(1_048_576, 1, or_none=True)
    reject_bytes: int | None = bounded(16 * 1_048_576, 1, or_none=True)

    def __post_init__(self) -> None:
        SettingsReport(self, ErrorCode.CONFIG_INVALID_VALUE).raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """Everything an app needs to know. Without a `broker`, the environment says where the database is.

    >>> config = AppConfig(
    ...     broker=PostgresConfig(database_url="postgresql://localhost/app"),
    ...     queue_mode=QueueMode.CUSTOM,
    ...     custom_queues=[CustomQueueConfig(name="mail"), CustomQueueConfig(name="bulk", priority=100)],
    ...     recovery=RecoveryConfig(check_interval_ms=10_000),
    ... )
    >>> [queue.name for queue in config.queues]
    ['mail', 'bulk']
    """

    queue_mode: QueueMode = QueueMode.DEFAULT
    custom_queues: Sequence[CustomQueueConfig] | None = None
    broker: PostgresConfig | None = None
    cluster_wide_cap: int | None = bounded(None, 1, code=_CAP)
    prefetch_buffer: int = bounded(0, 0, code=_PREFETCH)
    claim_lease_ms: int | None = bounded(None, 1, code=_PREFETCH)
    max_claim_renew_age_ms: int = bounded(180_000, 1, code=_PREFETCH)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    resilience: WorkerResilienceConfig = field(default_factory=WorkerResilienceConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    payload: PayloadPolicy = field(default_factory=PayloadPolicy)
    schedule: ScheduleConfig | None = None
    exception_mapper: ExceptionMapper = field(default_factory=dict[type[BaseException], str])
    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_EXCEPTION
    resend_on_transient_err: bool = False
    default_task_timeout_ms: int | None = bounded(None, 100)
    cancel_grace_ms: int = bounded(10_000, 0)
    unknown_task_grace_seconds: int = bounded(0, 0)
    log_format: Literal["text", "json"] = "text"
    events: Literal["table", "log", "off"] = "table"

    @classmethod
    def for_database_url(cls, url: str, **settings: Any) -> Self:
        """The configuration for the database at this URL."""
        return cls(broker=PostgresConfig(database_url=url), **settings)

    def __post_init__(self) -> None:
        _own(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_VALUE)
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
        report.raise_if_any()

    def _check_queues(self, report: SettingsReport) -> None:
        code = ErrorCode.CONFIG_INVALID_QUEUE_MODE
        if self.queue_mode not in list(QueueMode):
            report.fault(f"queue_mode is {self.queue_mode!r}", "use a member of QueueMode", code)
        elif self.queue_mode == QueueMode.DEFAULT and self.custom_queues is not None:
            report.fault("custom_queues is set in QueueMode.DEFAULT", "use QueueMode.CUSTOM", code)
        elif self.queue_mode == QueueMode.CUSTOM and not self.custom_queues:
            report.fault("QueueMode.CUSTOM has no custom_queues", "list at least one CustomQueueConfig", code)
        _check_queue_names(report, "custom_queues", [queue.name for queue in self.custom_queues or ()], code)

    def _check_claims(self, report: SettingsReport) -> None:
        if self.prefetch_buffer and self.cluster_wide_cap is not None:
            problem = f"cluster_wide_cap is set and prefetch_buffer is {self.prefetch_buffer}"
            report.fault(problem, "set prefetch_buffer=0: prefetched tasks would count against the cap", _CAP)
        if self.prefetch_buffer and self.claim_lease_ms is None:
            problem = f"prefetch_buffer is {self.prefetch_buffer} and claim_lease_ms is not set"
            report.fault(problem, "set claim_lease_ms, after which others may take the task", _PREFETCH)
        lease = self.effective_claim_lease_ms
        comparable = report.in_range("claim_lease_ms", "max_claim_renew_age_ms")
        if comparable and self.max_claim_renew_age_ms < lease:
            problem = f"max_claim_renew_age_ms is {self.max_claim_renew_age_ms}, below the lease ({lease})"
            report.fault(problem, f"use at least {lease}, or a shorter claim_lease_ms", _PREFETCH)

    @property
    def queues(self) -> tuple[CustomQueueConfig, ...]:
        """The queues there are, in either mode."""
        default = CustomQueueConfig(name=DEFAULT_QUEUE, priority=DEFAULT_PRIORITY, max_concurrency=None)
        return tuple(self.custom_queues or (default,))

    @property
    def effective_claim_lease_ms(self) -> int:
        """How long a claim holds unless renewed."""
        return DEFAULT_CLAIM_LEASE_MS if self.claim_lease_ms is None else self.claim_lease_ms

    @property
    def claim_renew_interval_ms(self) -> int:
        """How often a claim is renewed: in time for a short lease, too."""
        return max(1, min(self.recovery.claimer_heartbeat_interval_ms, self.effective_claim_lease_ms // 3))

    def log_config(self, logger: logging.Logger | None = None) -> None:
        """Log every setting at level INFO, passwords masked."""
        settings = [f"  {setting.name}: {getattr(self, setting.name)!r}" for setting in fields(self)]
        (logger or logging.getLogger("horsies")).info("Configuration:\n%s", "\n".join(settings))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkerConfig:
    """How one worker works; None leaves a setting to the app.

    `concurrency` is another name for `processes`, whose default is the number of CPUs. With
    `max_claim_batch=0` or `max_claim_per_worker=0` a worker claims what it has room for.
    `max_tasks_per_child=1` gives each task a fresh process, 0 keeps the processes.

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
    max_tasks_per_child: int = bounded(100, 0)
    max_memory_per_child_mb: int | None = bounded(None, 1)
    drain_seconds: int = bounded(300, 0)
    health_port: int | None = bounded(None, 1, 65_535)
    health_host: str = "0.0.0.0"  # noqa: S104  probes come from outside, and are told nothing secret
    start_method: Literal["forkserver", "fork", "spawn"] | None = None
    with_scheduler: bool = False
    loglevel: str = "INFO"
    dsn: str | None = None
    app_locator: str | None = None
    imports: Sequence[str] = ()

    def __post_init__(self, concurrency: int | None) -> None:
        _own(self)
        asked = [size for size in (self.processes, concurrency) if size is not None]
        object.__setattr__(self, "processes", asked[0] if asked else os.cpu_count() or 1)
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
