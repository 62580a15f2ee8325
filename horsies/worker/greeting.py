"""Describe a worker when it starts: its tasks, and every limit that applies to them. Pure functions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from horsies.config import CustomQueueConfig, WorkerConfig
from horsies.registry import TaskRegistry
from horsies.units import counted, span
from horsies.worker.claim import Limits

# Names are listed in columns when there are more than this.
ONE_PER_LINE = 20
MAX_LISTED = 500
# The width of the lines when the output is no terminal.
COLUMNS = 120
NO_TASKS = (
    "This worker has no tasks, so every task that it claims fails or waits for another worker. Import the modules that define"
    ' tasks in the module of the app, or name them: app.discover_tasks(["package.module"]), or'
    ' WorkerConfig(imports=["package.module"])'
)


def describe_tasks(app: TaskRegistry, columns: int | None = None) -> str:
    """Return the names of an app's tasks: a line for each with its queue, or several on a line if there are many."""
    names = sorted(app.tasks)
    head = f"{counted(len(names), 'task')}{':' if names else ''}"
    if len(names) <= ONE_PER_LINE:
        return "\n".join([head, *_aligned([(name, *_traits(app, name)) for name in names])])
    wide = columns or shutil.get_terminal_size((COLUMNS, 24)).columns
    listed = names[:MAX_LISTED]
    width = max(map(len, listed)) + 2
    per_line = max(1, (wide - 4) // width)
    lines = [
        "  " + "".join(name.ljust(width) for name in listed[first : first + per_line]).rstrip()
        for first in range(0, len(listed), per_line)
    ]
    if len(names) > len(listed):
        lines.append(f"  … and {len(names) - len(listed)} more: `horsies check` lists all")
    return "\n".join([head, *lines])


def _traits(app: TaskRegistry, name: str) -> tuple[str, ...]:
    """Return the queue of a task and the limits of its own."""
    task = app.tasks[name].definition
    traits = [f"queue {task.queue.name}"]
    if task.is_async:
        traits.append("async")
    if task.timeout_ms is not None:
        traits.append(f"time limit {span(task.timeout_ms / 1000)}")
    if task.rate_limit is not None:
        traits.append(f"rate limit {task.rate_limit}")
    if task.key_concurrency is not None:
        traits.append(f"{task.key_concurrency} at once per key")
    if task.key_rate is not None:
        traits.append(f"{task.key_rate} per key")
    if task.max_retries:
        traits.append(f"retries {task.max_retries}")
    return (", ".join(traits),)


def describe_limits(
    app: TaskRegistry, config: WorkerConfig, limits: Limits, queues: Sequence[CustomQueueConfig]
) -> list[str]:
    """Return a line for each limit of a worker."""
    return _aligned(
        [*_process_limits(app, config), *_claim_limits(app, limits, queues), *_child_limits(app, config)]
    )


def _process_limits(app: TaskRegistry, config: WorkerConfig) -> Iterator[tuple[str, str]]:
    threads = "" if config.threads == 1 else f" of {counted(config.threads, 'thread')}"
    yield "processes", f"{config.processes}{threads}"
    if any(task.definition.is_async for task in app.tasks.values()):
        width = 1 if config.max_tasks_per_child == 1 else config.async_concurrency
        yield "async processes", f"{config.async_processes}, each with up to {counted(width, 'task')} at once"


def _claim_limits(
    app: TaskRegistry, limits: Limits, queues: Sequence[CustomQueueConfig]
) -> Iterator[tuple[str, str]]:
    for queue in sorted(queues, key=lambda queue: (queue.priority, queue.name)):
        at_once = "no concurrency limit"
        if queue.max_concurrency is not None:
            at_once = f"max_concurrency {queue.max_concurrency} in the cluster"
        if queue.max_concurrency == 0:
            at_once = "paused by max_concurrency 0"
        yield f"queue {queue.name}", f"priority {queue.priority}, {at_once}"
    yield "cluster-wide cap", "none" if limits.cluster_wide_cap is None else str(limits.cluster_wide_cap)
    rates = {
        name: task.definition.rate_limit
        for name, task in sorted(app.tasks.items())
        if task.definition.rate_limit is not None
    }
    yield "rate limits", ", ".join(f"{name} {rate}" for name, rate in rates.items()) or "none"
    yield "claimed ahead", _claimed_ahead(limits)


def _claimed_ahead(limits: Limits) -> str:
    if limits.prefetch:
        return counted(limits.prefetch, "task")
    if limits.prefetch is None and limits.cluster_wide_cap is None:
        return "short tasks that a process will start within 16 ms"
    return "none: a task is claimed when a process is free for it"


def _child_limits(app: TaskRegistry, config: WorkerConfig) -> Iterator[tuple[str, str]]:
    default_ms = app.config.default_task_timeout_ms
    own = sum(task.definition.timeout_ms is not None for task in app.tasks.values())
    default = "none by default" if default_ms is None else f"{span(default_ms / 1000)} by default"
    yield "time limit", f"{default}, {counted(own, 'task')} with one of {'its' if own == 1 else 'their'} own"
    after = [f"after {counted(config.max_tasks_per_child, 'task')}"] if config.max_tasks_per_child else []
    if config.max_tasks_per_child is None:
        after = ["after 100 tasks and 1 s"]
    if config.max_memory_per_child_mb is not None:
        after.append(f"above {config.max_memory_per_child_mb} MB")
    yield "new process", " or ".join(after) or "never"
    yield (
        "unknown tasks",
        f"fail after {span(app.config.unknown_task_grace_seconds)} without a worker that knows them",
    )
    yield "stopping", f"running tasks have {span(config.drain_seconds)} to end"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of two columns as lines, the second column aligned."""
    width = max((len(first) for first, *_ in rows), default=0)
    return [f"  {first.ljust(width)}  {'  '.join(rest)}" for first, *rest in rows]
