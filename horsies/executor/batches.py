"""Run a call inside a child, whether it is one task or a batch of them.

A batch is one call of the task's function for many tasks, its members. Each member has arguments, a result and an outcome of its
own. A member whose arguments cannot be read is left out of the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from horsies.event_loop import finish
from horsies.executor.protocol import BatchOutcome, Call, Outcome
from horsies.executor.runner import (
    Run,
    conclude,
    execute,
    execute_async,
    observe,
    on_own_loop,
    prepare,
    raised,
    result_limit,
)
from horsies.outcomes import failed, result_of
from horsies.registry import AnyTask, TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.status import OperationalErrorCode


def run_call(registry: TaskRegistry, run: Run) -> Outcome | BatchOutcome:
    """Run a call to its end in this thread."""
    task = batch_task(registry, run.call)
    return execute(registry, run) if task is None else finish(_run_batch(registry, task, run, is_async=False))


async def run_call_async(registry: TaskRegistry, run: Run) -> Outcome | BatchOutcome:
    """Run a call to its end on the running loop."""
    task = batch_task(registry, run.call)
    if task is None:
        return await execute_async(registry, run)
    return await _run_batch(registry, task, run, is_async=True)


def batch_task(registry: TaskRegistry, call: Call) -> AnyTask | None:
    """Return the task of a call if it runs in batches, also if this call has one member only."""
    task = registry.tasks.get(call.task_name)
    return None if task is None or task.definition.batch is None else task


class _Member(NamedTuple):
    """A member that takes part in the call, with its argument."""

    run: Run
    value: Any


async def _run_batch(
    registry: TaskRegistry, task: AnyTask, run: Run, *, is_async: bool
) -> Outcome | BatchOutcome:
    """Call the function of a task once for all members of a batch; return the outcome of each."""
    started, limit = time.perf_counter(), result_limit(registry)
    outcomes: list[Outcome | None] = []
    members: list[_Member] = []
    with ExitStack() as hooks:
        for call in run.call.members or [run.call]:
            member = Run(call, lambda _said: True, ())
            member.started, member.limit = started, limit
            hooks.enter_context(observe(registry, member))
            _, arguments, error = prepare(registry, call)
            outcomes.append(None if error is None else conclude(registry, member, None, error))
            members += [_Member(member, value) for value in arguments.values()]
        run.batch = [run.task_of(member.run.call) for member in members]
        if members:
            returned = iter(await _outcomes_of_call(registry, task, run, members, is_async=is_async))
            outcomes = [each if each is not None else next(returned) for each in outcomes]
    finished = cast("list[Outcome]", outcomes)
    return BatchOutcome(run.call.ticket, finished) if run.call.members else finished[0]


async def _outcomes_of_call(
    registry: TaskRegistry, task: AnyTask, run: Run, members: Sequence[_Member], *, is_async: bool
) -> list[Outcome]:
    definition = task.definition
    with run:
        try:
            values = [member.value for member in members]
            if definition.is_async:
                work = definition.fn(values)
                returned = await work if is_async else asyncio.run(on_own_loop(work))
            elif is_async:
                returned = await asyncio.to_thread(definition.fn, values)
            else:
                returned = definition.fn(values)
        except BaseException as error:  # noqa: BLE001  any exception, also SystemExit, is the outcome of every member
            return [raised(registry, member.run, task, error) for member in members]
    results = _results_of(task, returned, len(members))
    return [
        conclude(registry, member.run, task, result) for member, result in zip(members, results, strict=True)
    ]


def _results_of(task: AnyTask, returned: Any, count: int) -> list[TaskResult[Any, TaskError]]:
    """Return the result of each member; if the function did not return one for each, the same error for all."""
    if isinstance(returned, list) and len(cast("list[Any]", returned)) == count:
        return [result_of(task.definition, value) for value in cast("list[Any]", returned)]
    what = (
        f"{len(cast('list[Any]', returned))} results"
        if isinstance(returned, list)
        else type(returned).__name__
    )
    message = f"task {task.name!r} returned {what} for a batch of {count}; it must return a list with one result for each"
    return [failed(OperationalErrorCode.TASK_EXCEPTION, message)] * count
