"""A configuration that exists is valid, and keeps its password to itself."""

import ast
import dataclasses
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import horsies.config
import horsies.core.models.queues
import horsies.core.models.recovery
from horsies.app import Horsies
from horsies.config import (
    AppConfig,
    CustomQueueConfig,
    PayloadPolicy,
    PostgresConfig,
    Queue,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    WorkerConfig,
    WorkerResilienceConfig,
    database_url_from,
)
from horsies.cpus import usable_cpus
from horsies.errors import ConfigurationError, ErrorCode, MultipleValidationErrors, TaskDefinitionError
from horsies.result import OperationalErrorCode, TaskError, TaskResult
from horsies.schedule.model import ScheduleConfig

URL = "postgresql://ann:s3cret@db:5432/app?password=hidd3n"
MAIL, BULK = CustomQueueConfig(name="mail"), CustomQueueConfig(name="bulk")
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


def refusal(kind: Any, **settings: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        kind(**settings)
    assert caught.value.help_text
    return caught.value


def codes_of(kind: Any, **settings: Any) -> list[ErrorCode | None]:
    with pytest.raises(MultipleValidationErrors) as caught:
        kind(**settings)
    return [error.code for error in caught.value.errors]


# --- ranges

# Thresholds need heartbeats of half their length, so the extremes bring their own.
SLOW = {
    "claimed_stale_threshold_ms": HOUR,
    "running_stale_threshold_ms": 2 * HOUR,
}
FAST = {"claimer_heartbeat_interval_ms": SECOND, "runner_heartbeat_interval_ms": SECOND}
POSTGRES = {"database_url": URL}
CODE = {
    CustomQueueConfig: "HRS-200",
    Queue: "HRS-200",
    PostgresConfig: "HRS-213",
    RecoveryConfig: "HRS-204",
    WorkerResilienceConfig: "HRS-208",
    RetentionConfig: "HRS-216",
    PayloadPolicy: "HRS-218",
    AppConfig: "HRS-218",
    WorkerConfig: "HRS-217",
}
# (class, field, low, high, other settings, code if not the class's own)
BOUNDS: list[tuple[Any, str, int, int | None, dict[str, Any], str | None]] = [
    (CustomQueueConfig, "priority", 1, 100, {"name": "q"}, None),
    (CustomQueueConfig, "max_concurrency", 0, None, {"name": "q"}, None),
    (Queue, "priority", 1, 100, {"name": "q"}, None),
    (Queue, "max_concurrency", 0, None, {"name": "q"}, None),
    (PostgresConfig, "pool_size", 1, None, POSTGRES, None),
    (PostgresConfig, "max_overflow", 0, None, POSTGRES, None),
    (PostgresConfig, "pool_timeout", 1, None, POSTGRES, None),
    (PostgresConfig, "pool_recycle", -1, None, POSTGRES, None),
    (PostgresConfig, "tcp_keepalives_idle", 1, None, POSTGRES, "HRS-215"),
    (PostgresConfig, "tcp_keepalives_interval", 1, None, POSTGRES, "HRS-215"),
    (PostgresConfig, "tcp_keepalives_count", 1, None, POSTGRES, "HRS-215"),
    (PostgresConfig, "tcp_user_timeout_ms", 0, None, POSTGRES, "HRS-215"),
    (RecoveryConfig, "check_interval_ms", SECOND, 10 * MINUTE, {}, None),
    (RecoveryConfig, "runner_heartbeat_interval_ms", SECOND, 2 * MINUTE, SLOW, None),
    (RecoveryConfig, "claimer_heartbeat_interval_ms", SECOND, 2 * MINUTE, SLOW, None),
    (RecoveryConfig, "crashed_worker_recovery_grace_ms", 0, HOUR, {}, None),
    (RecoveryConfig, "worker_state_snapshot_interval_ms", SECOND, 5 * MINUTE, {}, None),
    (WorkerResilienceConfig, "db_retry_initial_ms", 100, 60_000, {"db_retry_max_ms": 300_000}, None),
    (WorkerResilienceConfig, "db_retry_max_ms", 500, 300_000, {"db_retry_initial_ms": 100}, None),
    (WorkerResilienceConfig, "db_retry_max_attempts", 0, 10_000, {}, None),
    (WorkerResilienceConfig, "notify_poll_interval_ms", 1_000, 300_000, {}, None),
    (RetentionConfig, "terminal_record_retention_hours", 1, None, {}, None),
    (RetentionConfig, "worker_state_retention_hours", 1, None, {}, None),
    (RetentionConfig, "heartbeat_retention_hours", 1, None, {}, None),
    (RetentionConfig, "retention_sweep_interval_s", 1, None, {}, None),
    (RetentionConfig, "retention_delete_batch_size", 1, None, {}, None),
    (PayloadPolicy, "warn_bytes", 1, None, {}, None),
    (PayloadPolicy, "reject_bytes", 1, None, {}, None),
    (AppConfig, "cluster_wide_cap", 1, None, {}, "HRS-201"),
    (AppConfig, "prefetch_buffer", 0, None, {"claim_lease_ms": 5_000}, "HRS-202"),
    (AppConfig, "claim_lease_ms", 1, 180_000, {}, "HRS-202"),
    (AppConfig, "max_claim_renew_age_ms", 10_000, None, {}, "HRS-202"),
    (AppConfig, "default_task_timeout_ms", 100, None, {}, None),
    (AppConfig, "cancel_grace_ms", 0, None, {}, None),
    (AppConfig, "unknown_task_grace_seconds", 0, None, {}, None),
    (WorkerConfig, "processes", 1, None, {}, None),
    (WorkerConfig, "concurrency", 1, None, {}, None),
    (WorkerConfig, "threads", 1, None, {}, None),
    (WorkerConfig, "async_processes", 1, None, {}, None),
    (WorkerConfig, "async_concurrency", 1, None, {}, None),
    (WorkerConfig, "prefetch_buffer", 0, None, {}, None),
    (WorkerConfig, "max_claim_batch", 0, None, {}, None),
    (WorkerConfig, "max_claim_per_worker", 0, None, {}, None),
    (WorkerConfig, "coalesce_notifies", 1, None, {}, None),
    (WorkerConfig, "max_tasks_per_child", 0, None, {}, None),
    (WorkerConfig, "max_memory_per_child_mb", 1, None, {}, None),
    (WorkerConfig, "drain_seconds", 0, None, {}, None),
    (WorkerConfig, "health_port", 1, 65_535, {}, None),
]
NAMES = [f"{kind.__name__}.{field}" for kind, field, *_ in BOUNDS]


@pytest.mark.parametrize(("kind", "field", "low", "high", "others", "code"), BOUNDS, ids=NAMES)
def test_a_setting_is_accepted_at_its_bounds_and_refused_one_step_outside(
    kind: Any, field: str, low: int, high: int | None, others: dict[str, Any], code: str | None
):
    inside = [low] if high is None else [low, high]
    outside = [low - 1] if high is None else [low - 1, high + 1]

    for value in inside:
        kind(**others, **{field: value})
    for value in outside:
        error = refusal(kind, **others, **{field: value})
        assert error.code == (code or CODE[kind])
        assert str(value) in error.message


@pytest.mark.parametrize(
    ("field", "high"),
    [
        ("claimed_stale_threshold_ms", HOUR),
        ("running_stale_threshold_ms", 2 * HOUR),
    ],
)
def test_a_stale_threshold_ranges_from_two_heartbeats_to_its_ceiling(field: str, high: int):
    for value in (2 * SECOND, high):
        RecoveryConfig(**FAST, **{field: value})

    for value in (2 * SECOND - 1, SECOND, SECOND - 1, high + 1):
        assert refusal(RecoveryConfig, **FAST, **{field: value}).code == ErrorCode.CONFIG_INVALID_RECOVERY


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_a_number_of_another_type_is_refused(value: Any):
    assert repr(value) in refusal(WorkerConfig, threads=value).message


@pytest.mark.parametrize(("kind", "field", "low", "high", "others", "code"), BOUNDS, ids=NAMES)
def test_none_is_refused_where_it_means_nothing(
    kind: Any, field: str, low: int, high: int | None, others: dict[str, Any], code: str | None
):
    means_something = {
        "max_concurrency", "terminal_record_retention_hours", "worker_state_retention_hours",
        "heartbeat_retention_hours", "warn_bytes", "reject_bytes", "cluster_wide_cap", "claim_lease_ms",
        "default_task_timeout_ms", "processes", "concurrency", "health_port", "max_memory_per_child_mb",
        "prefetch_buffer", "max_tasks_per_child",
    }  # fmt: skip
    if field in means_something:
        kind(**others, **{field: None})
    else:
        assert refusal(kind, **others, **{field: None}).code == (code or CODE[kind])


# --- durations

_UNIT = {"ms": timedelta(milliseconds=1), "hours": timedelta(hours=1)}
# Numbers that are no durations, and durations whose names have no unit.
_COUNTS = {
    "priority", "max_concurrency", "pool_size", "max_overflow", "tcp_keepalives_count", "db_retry_max_attempts",
    "retention_delete_batch_size", "warn_bytes", "reject_bytes", "cluster_wide_cap", "prefetch_buffer", "processes",
    "concurrency", "threads", "async_processes", "async_concurrency", "max_claim_batch", "max_claim_per_worker",
    "coalesce_notifies", "max_tasks_per_child", "max_memory_per_child_mb", "health_port",
}  # fmt: skip
_DURATIONS: list[tuple[Any, str, int, dict[str, Any]]] = [
    *((kind, field, low, others) for kind, field, low, _, others, _ in BOUNDS if field not in _COUNTS),
    (RetentionConfig, "result_retention_hours", 1, {}),
    (RecoveryConfig, "claimed_stale_threshold_ms", 2 * SECOND, FAST),
    (RecoveryConfig, "running_stale_threshold_ms", 2 * SECOND, FAST),
    (ScheduleConfig, "check_interval_seconds", 1, {}),
]


@pytest.mark.parametrize(
    ("kind", "field", "low", "others"),
    _DURATIONS,
    ids=[f"{each[0].__name__}.{each[1]}" for each in _DURATIONS],
)
def test_every_duration_may_be_a_timedelta_and_is_read_as_a_number(
    kind: Any, field: str, low: int, others: dict[str, Any]
):
    unit = _UNIT.get(field.rpartition("_")[2], timedelta(seconds=1))

    assert getattr(kind(**others, **{field: low * unit}), field) == low
    assert field in refusal(kind, **others, **{field: (low - 1) * unit}).message
    error = refusal(kind, **others, **{field: low * unit + timedelta(microseconds=1)})
    assert field in error.message
    assert "timedelta" in (error.help_text or "")


def test_a_number_that_is_no_duration_refuses_a_timedelta():
    error = refusal(WorkerConfig, threads=timedelta(seconds=1))

    assert "timedelta" in error.message
    assert "timedelta" not in (error.help_text or "")


# --- defaults


def test_defaults_are_the_documented_ones():
    assert WorkerResilienceConfig() == WorkerResilienceConfig(
        db_retry_initial_ms=500,
        db_retry_max_ms=30_000,
        db_retry_max_attempts=0,
        notify_poll_interval_ms=5_000,
    )
    recovery = RecoveryConfig()
    assert (recovery.claimed_stale_threshold_ms, recovery.running_stale_threshold_ms) == (None, None)
    assert (recovery.claimer_heartbeat_interval_ms, recovery.runner_heartbeat_interval_ms) == (30_000, 30_000)
    assert PayloadPolicy() == PayloadPolicy(warn_bytes=1_048_576, reject_bytes=16_777_216)
    app = AppConfig()
    assert (app.prefetch_buffer, app.claim_lease_ms, app.max_claim_renew_age_ms) == (None, None, 180_000)
    assert (app.log_format, app.events, app.cancel_grace_ms) == ("text", "table", 10_000)
    assert app.default_unhandled_error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert app.broker is None
    assert app.unknown_task_grace_seconds == 60


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        AppConfig().prefetch_buffer = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_what_the_caller_keeps_in_hand_cannot_change_a_configuration():
    queues, mapper, priorities = [MAIL], {KeyError: "MISSING"}, {"mail": 1}
    retention: dict[str, timedelta | None] = {"mail": timedelta(days=1)}
    app = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues, exception_mapper=mapper)
    worker = WorkerConfig(queue_priorities=priorities)
    kept = RetentionConfig(queue_retention=retention)

    for collection in (queues, mapper, priorities, retention):
        collection.clear()

    assert app.all_queues == (MAIL,)
    assert app.exception_mapper == {KeyError: "MISSING"}
    assert worker.queue_priorities == {"mail": 1}
    assert kept.queue_retention == {"mail": timedelta(days=1)}


# --- the database


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_usual_schemes_mean_the_same_database(scheme: str):
    config = PostgresConfig(database_url=f"{scheme}://ann:pw@db:5432/app?sslmode=require")

    assert config.conninfo == "postgresql://ann:pw@db:5432/app?sslmode=require"
    assert config.session_conninfo == config.conninfo


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:s3cret@db/app",
        "postgresql+asyncpg://ann:s3cret@db/app",
        "postgres+psycopg://ann:s3cret@db/app",
        " postgresql://ann:s3cret@db/app",
        "host=db password=s3cret",
        "",
        None,
    ],
)
def test_any_other_url_is_refused_without_telling_the_password(url: Any):
    error = refusal(PostgresConfig, database_url=url)

    assert error.code == ErrorCode.BROKER_INVALID_URL
    assert "s3cret" not in error.message


def test_the_source_line_of_an_error_tells_no_password():
    with pytest.raises(ConfigurationError) as caught:
        PostgresConfig(database_url="mysql://ann:s3cret@db/app")

    assert "mysql://ann:***@db/app" in str(caught.value)
    assert "PostgresConfig(database_url=" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_the_session_url_is_checked_and_used():
    config = PostgresConfig(
        database_url="postgresql://pooler/app",
        session_database_url="postgresql+psycopg://db/app",
        pgbouncer_transaction_mode=True,
    )

    assert config.session_conninfo == "postgresql://db/app"
    assert (
        refusal(PostgresConfig, database_url=URL, session_database_url="db").code
        == ErrorCode.BROKER_INVALID_URL
    )


@pytest.mark.parametrize("session_url", [None, URL])
def test_a_transaction_pooler_needs_a_session_url_past_it(session_url: str | None):
    error = refusal(
        PostgresConfig, database_url=URL, session_database_url=session_url, pgbouncer_transaction_mode=True
    )

    assert error.code == ErrorCode.CONFIG_INVALID_BROKER_POOL


def test_socket_options_are_libpq_settings():
    assert PostgresConfig(database_url=URL).socket_options == {
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
    assert PostgresConfig(database_url=URL, tcp_keepalives=False).socket_options["keepalives"] == 0


def test_no_configuration_shows_a_password(caplog: pytest.LogCaptureFixture):
    broker = PostgresConfig(database_url=URL, session_database_url=URL)
    app = AppConfig(broker=broker)
    with caplog.at_level(logging.INFO, logger="horsies"):
        app.log_config()

    shown = [repr(broker), str(broker), repr(app), str(app), repr(WorkerConfig(dsn=URL)), caplog.text]
    for text in shown:
        assert "s3cret" not in text
        assert "hidd3n" not in text
        assert "postgresql://ann:***@db:5432/app?password=***" in text


def test_log_config_tells_every_setting_to_the_given_logger(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("somewhere.else")
    with caplog.at_level(logging.INFO, logger=logger.name):
        AppConfig(cluster_wide_cap=7).log_config(logger)

    (record,) = caplog.records
    assert record.name == "somewhere.else"
    assert "cluster_wide_cap: 7" in record.getMessage()
    assert all(field.name in record.getMessage() for field in dataclasses.fields(AppConfig))


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, None),
        ({"DATABASE_URL": "postgresql://b"}, "postgresql://b"),
        ({"HORSIES_DATABASE_URL": "postgresql://a", "DATABASE_URL": "postgresql://b"}, "postgresql://a"),
        ({"HORSIES_DATABASE_URL": "", "DATABASE_URL": "postgresql://b"}, "postgresql://b"),
        ({"HORSIES_DATABASE_URL": "", "DATABASE_URL": ""}, None),
    ],
)
def test_the_environment_names_the_database(env: dict[str, str], url: str | None):
    assert database_url_from(env) == url


def test_a_url_alone_is_a_configuration():
    config = AppConfig.for_database_url(URL, cluster_wide_cap=3)

    assert config == AppConfig(broker=PostgresConfig(database_url=URL), cluster_wide_cap=3)


# --- queues


@pytest.mark.parametrize("name", ["q", "q" * 100, "café / über;'\"%", "\n"])
def test_a_queue_name_is_any_text(name: str):
    assert CustomQueueConfig(name=name).name == name


@pytest.mark.parametrize("name", ["", "q" * 101, "a\0b", None, 7])
def test_a_queue_name_has_its_limits(name: Any):
    assert refusal(CustomQueueConfig, name=name).code == ErrorCode.CONFIG_INVALID_QUEUE_MODE


def test_default_mode_has_one_queue_without_a_cap():
    (queue,) = AppConfig().all_queues

    assert (queue.name, queue.priority, queue.max_concurrency) == ("default", 100, None)


def test_custom_mode_has_the_queues_as_listed():
    assert AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[MAIL, BULK]).all_queues == (MAIL, BULK)


@pytest.mark.parametrize(
    "settings",
    [
        {"custom_queues": [MAIL]},
        {"custom_queues": []},
        {"queue_mode": QueueMode.CUSTOM},
        {"queue_mode": QueueMode.CUSTOM, "custom_queues": []},
        {"queue_mode": QueueMode.CUSTOM, "custom_queues": [MAIL, BULK, MAIL]},
        {"queue_mode": "other"},
    ],
)
def test_mode_and_queues_must_agree(settings: dict[str, Any]):
    assert refusal(AppConfig, **settings).code == ErrorCode.CONFIG_INVALID_QUEUE_MODE


@pytest.mark.parametrize(
    ("queues", "named"),
    [
        (["b"], "custom_queues has 'b'"),
        ([MAIL, None], "custom_queues has None"),
        ("b", "custom_queues is 'b'"),
    ],
)
def test_custom_queues_of_another_type_are_refused(queues: Any, named: str):
    error = refusal(AppConfig, queue_mode=QueueMode.CUSTOM, custom_queues=queues)

    assert error.code == ErrorCode.CONFIG_INVALID_QUEUE_MODE
    assert named in error.message
    assert "CustomQueueConfig(name=" in (error.help_text or "")


@pytest.mark.parametrize(
    ("keyword", "remedy"),
    [
        ("database", "Horsies(AppConfig.for_database_url("),
        ("queues", "Horsies(AppConfig(queues=…))"),
        ("colour", "Horsies(AppConfig(…)); they are: queues,"),
    ],
)
def test_an_app_refuses_an_unknown_argument_and_says_where_settings_go(keyword: str, remedy: str):
    error = refusal(Horsies, **{keyword: "s3cret"})

    assert f"Horsies takes no argument {keyword!r}" in error.message
    assert remedy in (error.help_text or "")
    assert "s3cret" not in str(error)


def test_queues_are_added_to_the_default_one():
    config = AppConfig(queues=["mail", Queue("bulk", priority=80, max_concurrency=20)])

    assert [(queue.name, queue.priority, queue.max_concurrency) for queue in config.all_queues] == [
        ("default", 50, None),
        ("mail", 50, None),
        ("bulk", 80, 20),
    ]


def test_the_default_queue_may_be_configured_like_any_other():
    config = AppConfig(queues=["mail", Queue("default", priority=9)])

    assert [(queue.name, queue.priority) for queue in config.all_queues] == [("default", 9), ("mail", 50)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"queues": ["mail", "mail"]}, "'mail' 2 times"),
        ({"queues": ["mail", Queue("mail")]}, "'mail' 2 times"),
        ({"queues": ["default", "default"]}, "'default' 2 times"),
        ({"queues": [""]}, "has ''"),
        ({"queues": ["a\0b"]}, "has 'a"),
        ({"queues": "mail"}, "queues is 'mail'"),
        ({"queues": [7]}, "queues has 7"),
        ({"queues": [MAIL]}, "CustomQueueConfig(name='mail'"),
        ({"queues": ["a"], "queue_mode": QueueMode.CUSTOM}, "together"),
        ({"queues": ["a"], "custom_queues": [MAIL]}, "together"),
        ({"queues": ["a"], "queue_mode": QueueMode.CUSTOM, "custom_queues": [MAIL]}, "together"),
    ],
)
def test_a_wrong_list_of_queues_gets_one_error_with_its_value(settings: dict[str, Any], problem: str):
    error = refusal(AppConfig, **settings)

    assert error.code == ErrorCode.CONFIG_INVALID_QUEUE_MODE
    assert problem in error.message
    assert error.help_text


def test_a_task_without_a_queue_goes_to_the_default_one_and_others_name_theirs():
    app = Horsies(AppConfig(queues=["mail"]))

    @app.task("plain")
    def plain() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("mailed", queue_name="mail")
    def mailed() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    assert (plain.definition.queue.name, mailed.definition.queue.name) == ("default", "mail")
    with pytest.raises(TaskDefinitionError, match="queues=") as caught:
        app.task("lost", queue_name="nowhere")(plain.definition.fn)
    assert "default, mail" in (caught.value.help_text or "")


def test_the_documented_paths_lead_to_the_same_names():
    assert horsies.core.models.queues.QueueMode is QueueMode
    assert horsies.core.models.queues.CustomQueueConfig is CustomQueueConfig
    assert horsies.core.models.recovery.RecoveryConfig is RecoveryConfig


# --- claims


def test_a_short_lease_is_renewed_in_time():
    config = AppConfig(prefetch_buffer=4, claim_lease_ms=5_000)

    assert config.effective_claim_lease_ms == 5_000
    assert config.claim_renew_interval_ms == 1_666


def test_a_long_lease_is_renewed_with_the_heartbeat():
    assert AppConfig().effective_claim_lease_ms == 10_000
    assert AppConfig(claim_lease_ms=60_000).claim_renew_interval_ms == 20_000
    assert AppConfig(claim_lease_ms=180_000).claim_renew_interval_ms == 30_000
    assert AppConfig(claim_lease_ms=1).claim_renew_interval_ms == 1


def test_a_lease_without_prefetch_is_fine():
    assert AppConfig(cluster_wide_cap=50, prefetch_buffer=0, claim_lease_ms=5_000).cluster_wide_cap == 50


@pytest.mark.parametrize("others", [{}, {"cluster_wide_cap": 5}])
def test_a_prefetch_out_of_range_is_one_error(others: dict[str, int]):
    error = refusal(
        AppConfig, prefetch_buffer=-1, **others
    )  # more than one would be MultipleValidationErrors

    assert "prefetch_buffer" in str(error)


def test_a_cluster_cap_excludes_prefetch():
    error = refusal(AppConfig, cluster_wide_cap=5, prefetch_buffer=1, claim_lease_ms=5_000)

    assert error.code == ErrorCode.CONFIG_INVALID_CLUSTER_CAP


def test_prefetch_needs_a_lease():
    assert refusal(AppConfig, prefetch_buffer=1).code == ErrorCode.CONFIG_INVALID_PREFETCH


@pytest.mark.parametrize("settings", [{}, {"cluster_wide_cap": 5}])
def test_a_negative_prefetch_buffer_is_one_mistake_with_one_error(settings: dict[str, Any]):
    assert "prefetch_buffer is -1" in refusal(AppConfig, prefetch_buffer=-1, **settings).message


def test_a_claim_may_be_renewed_for_at_least_its_lease():
    assert AppConfig(claim_lease_ms=5_000, max_claim_renew_age_ms=5_000)
    error = refusal(AppConfig, claim_lease_ms=5_000, max_claim_renew_age_ms=4_999)

    assert error.code == ErrorCode.CONFIG_INVALID_PREFETCH


# --- other rules


def test_everything_wrong_is_said_at_once():
    assert codes_of(AppConfig, cluster_wide_cap=2, prefetch_buffer=1, custom_queues=[MAIL], events="yes") == [
        ErrorCode.CONFIG_INVALID_QUEUE_MODE,
        ErrorCode.CONFIG_INVALID_CLUSTER_CAP,
        ErrorCode.CONFIG_INVALID_PREFETCH,
        ErrorCode.CONFIG_INVALID_VALUE,
    ]
    assert len(codes_of(RecoveryConfig, check_interval_ms=0, runner_heartbeat_interval_ms="x")) == 2
    assert codes_of(PostgresConfig, database_url="db", pool_size=0) == ["HRS-213", "HRS-203"]


def test_the_backoff_cap_is_not_below_the_first_delay():
    assert WorkerResilienceConfig(db_retry_initial_ms=500, db_retry_max_ms=500)
    error = refusal(WorkerResilienceConfig, db_retry_initial_ms=501, db_retry_max_ms=500)

    assert error.code == ErrorCode.CONFIG_INVALID_RESILIENCE


@pytest.mark.parametrize("setting", [{"log_format": "xml"}, {"events": "kafka"}])
def test_a_choice_that_does_not_exist_is_refused(setting: dict[str, Any]):
    assert refusal(AppConfig, **setting).code == ErrorCode.CONFIG_INVALID_VALUE


@pytest.mark.parametrize(
    "setting",
    [
        {"exception_mapper": {KeyError: "KeyError"}},
        {"exception_mapper": [1]},
        {"default_unhandled_error_code": "Oops"},
    ],
)
def test_exceptions_map_to_codes(setting: dict[str, Any]):
    assert refusal(AppConfig, **setting).code == ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER


@pytest.mark.parametrize(
    "setting",
    [
        {"queue_retention": {"mail": timedelta(0)}},
        {"queue_retention": {"": timedelta(1)}},
    ],
)
def test_retention_is_a_span_above_zero(setting: dict[str, Any]):
    assert refusal(RetentionConfig, **setting).code == ErrorCode.CONFIG_INVALID_RETENTION


def test_retention_may_be_for_ever():
    kept = RetentionConfig(queue_retention={"mail": None, "bulk": timedelta(microseconds=1)})

    assert kept.queue_retention["mail"] is None


# --- the worker


def test_a_worker_has_a_process_for_each_usable_cpu_unless_told():
    assert WorkerConfig().processes == usable_cpus()
    assert WorkerConfig(processes=3).processes == 3


def test_concurrency_is_another_name_for_processes():
    assert (
        WorkerConfig(concurrency=8) == WorkerConfig(processes=8) == WorkerConfig(processes=8, concurrency=8)
    )
    assert dataclasses.replace(WorkerConfig(concurrency=8), processes=2).processes == 2
    assert refusal(WorkerConfig, processes=4, concurrency=8).code == ErrorCode.CONFIG_INVALID_WORKER


@pytest.mark.parametrize(
    "setting",
    [
        {"queues": []},
        {"queues": ["mail", "mail"]},
        {"queues": [""]},
        {"queue_priorities": {"mail": 0}},
        {"queue_priorities": {"mail": 101}},
        {"queue_max_concurrency": {"mail": -1}},
        {"loglevel": "LOUD"},
        {"start_method": "thread"},
    ],
)
def test_a_worker_setting_that_makes_no_sense_is_refused(setting: dict[str, Any]):
    assert refusal(WorkerConfig, **setting).code == ErrorCode.CONFIG_INVALID_WORKER


@pytest.mark.parametrize(
    "setting",
    [
        {"queues": ["mail", "bulk"]},
        {"queue_priorities": {"mail": 1, "bulk": 100}},
        {"queue_max_concurrency": {"mail": 0, "bulk": None}},
        {"max_tasks_per_child": 1},
        {"start_method": "spawn"},
        {"loglevel": "DEBUG", "dsn": URL, "app_locator": "shop:app", "imports": ["shop.tasks"]},
    ],
)
def test_a_worker_can_be_told(setting: dict[str, Any]):
    worker = WorkerConfig(**setting)

    for name, value in setting.items():
        assert getattr(worker, name) == (tuple(value) if isinstance(value, list) else value)


def test_the_database_of_a_worker_is_checked_like_any_other():
    error = refusal(WorkerConfig, dsn="mysql://ann:s3cret@db")

    assert error.code == ErrorCode.BROKER_INVALID_URL
    assert "s3cret" not in str(error)


# --- every setting has an effect

# Fields that config.py turns into something else, by the properties that the package reads in their place.
READ_AS = {
    "AppConfig.custom_queues": "queues",
    "AppConfig.claim_lease_ms": "effective_claim_lease_ms",
    "PostgresConfig.database_url": "conninfo",
    "PostgresConfig.session_database_url": "session_conninfo",
    "PostgresConfig.tcp_keepalives": "socket_options",
    "PostgresConfig.tcp_keepalives_idle": "socket_options",
    "PostgresConfig.tcp_keepalives_interval": "socket_options",
    "PostgresConfig.tcp_keepalives_count": "socket_options",
    "PostgresConfig.tcp_user_timeout_ms": "socket_options",
    "RecoveryConfig.claimer_heartbeat_interval_ms": "claim_renew_interval_ms",
}
# Fields without an effect, each with the reason why it exists all the same.
WITHOUT_EFFECT = {
    "WorkerConfig.coalesce_notifies": "horsies 0.x documents it; a worker takes all notifications as one wake-up",
}


def attributes_read_outside_of_config() -> set[str]:
    """Return the names of all attributes that the package reads, but for those of imported modules."""
    config = Path(horsies.config.__file__)
    names: set[str] = set()
    for path in Path(horsies.__file__).parent.rglob("*.py"):
        if path == config:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        modules = {alias.asname or alias.name for alias in imports}
        names |= {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and not (isinstance(node.value, ast.Name) and node.value.id in modules)
        }
    return names


def test_every_setting_is_read_by_the_package():
    read = attributes_read_outside_of_config()
    settings = [(kind, field.name) for kind in CODE for field in dataclasses.fields(kind)]
    unread = {
        f"{kind.__name__}.{name}"
        for kind, name in settings
        if READ_AS.get(f"{kind.__name__}.{name}", name) not in read
    }

    assert unread == set(WITHOUT_EFFECT)
    assert set(READ_AS) <= {f"{kind.__name__}.{name}" for kind, name in settings}
