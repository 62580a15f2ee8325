"""A worker says what it runs and within which limits when it starts."""

from __future__ import annotations

from typing import Any

from horsies import AppConfig, Horsies, Queue, RetryPolicy, TaskError, TaskResult, WorkerConfig
from horsies.worker.greeting import describe_limits, describe_tasks
from horsies.worker.worker import limits_of, queues_to_serve


def _app(**settings: Any) -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://localhost/x", **settings))


def _add(app: Horsies, name: str, **options: Any) -> None:
    @app.task(name, **options)
    def run() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)


def _limits(app: Horsies, **settings: Any) -> dict[str, str]:
    config = WorkerConfig(**settings)
    lines = describe_limits(app, config, limits_of(app.config, config), queues_to_serve(app.config, config))
    assert len({line.rstrip().find("  ", 4) >= 0 for line in lines}) == 1
    return {name.strip(): text for name, _, text in (line.strip().partition("  ") for line in lines)}


def test_few_tasks_have_a_line_each_with_their_queue_and_limits():
    app = _app(queues=["mail"])
    _add(app, "send_mail", queue_name="mail", timeout_ms=5_000, rate_limit="10/s")
    _add(app, "add", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))

    assert describe_tasks(app).splitlines() == [
        "2 tasks:",
        "  add        queue default, retries 1",
        "  send_mail  queue mail, time limit 5 s, rate limit 10/s",
    ]


def test_many_tasks_are_listed_in_columns_that_fit():
    app = _app()
    for number in range(60):
        _add(app, f"task_{number:02}")

    lines = describe_tasks(app, columns=60).splitlines()

    assert lines[:2] == ["60 tasks:", "  task_00  task_01  task_02  task_03  task_04  task_05"]
    assert max(map(len, lines)) <= 60
    assert len(" ".join(lines[1:]).split()) == 60


def test_very_many_tasks_are_not_all_listed():
    app = _app()
    for number in range(501):
        _add(app, f"task_{number:03}")

    assert describe_tasks(app, columns=80).splitlines()[-1] == "  … and 1 more: `horsies check` lists all"


def test_every_limit_that_applies_is_listed():
    app = _app(
        queues=[Queue("bulk", priority=80, max_concurrency=20), Queue("later", max_concurrency=0)],
        cluster_wide_cap=50,
        default_task_timeout_ms=60_000,
    )
    _add(app, "slow", queue_name="bulk", rate_limit="10/s", timeout_ms=1_000)

    found = _limits(app, processes=4, threads=2, max_memory_per_child_mb=300)

    assert {name: text.strip() for name, text in found.items()} == {
        "processes": "4 of 2 threads",
        "queue default": "priority 50, no concurrency limit",
        "queue later": "priority 50, paused by max_concurrency 0",
        "queue bulk": "priority 80, max_concurrency 20 in the cluster",
        "cluster-wide cap": "50",
        "rate limits": "slow 10/s",
        "claimed ahead": "none: a task is claimed when a process is free for it",
        "time limit": "1 min by default, 1 task with one of its own",
        "new process": "after 100 tasks and 1 s or above 300 MB",
        "unknown tasks": "fail after 1 min without a worker that knows them",
        "stopping": "running tasks have 5 min to end",
    }


def test_prefetch_and_async_processes_are_listed_where_they_apply():
    app = _app(prefetch_buffer=8, claim_lease_ms=5_000)

    @app.task("fetch")
    async def fetch() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    found = _limits(app, processes=1, async_concurrency=7, max_tasks_per_child=0)

    assert found["claimed ahead"].strip() == "8 tasks"
    assert found["async processes"].strip() == "1, each with up to 7 tasks at once"
    assert found["new process"].strip() == "never"


def test_a_worker_with_default_settings_says_that_it_claims_short_tasks_ahead():
    found = _limits(_app())

    assert found["claimed ahead"].strip() == "short tasks that a process will start within 16 ms"


def test_an_explicit_number_of_tasks_per_process_is_listed_without_a_time():
    assert _limits(_app(), max_tasks_per_child=7)["new process"].strip() == "after 7 tasks"
