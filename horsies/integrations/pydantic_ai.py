"""Durable agents of Pydantic AI: each request to a model and each call of a tool is a step of the task.

>>> agent = Agent("openai:gpt-5", name="advisor", capabilities=[HorsiesDurability()])
>>> @app.task("advise", idempotent=True)
... async def advise(question: str) -> str:
...     return (await agent.run(question)).output

When the task is run again, after a crash, an error or a restart of the worker, the agent goes on with the answers that are stored.
Outside of a task, the agent runs as without the capability.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.models import Model

from horsies.executor.durable import MAX_NAME
from horsies.retry import RetryPolicy
from horsies.task_context import Parked, TaskChannel, current_async_task, current_channel, current_task

DepsT = TypeVar("DepsT")
Retry = RetryPolicy | None

# The names that each run of a task has used, and how often.
_used: WeakKeyDictionary[TaskChannel, Counter[str]] = WeakKeyDictionary()


def _ordinal(name: str) -> int:
    """Count the uses of a name in this run of the task, from 1. A later run counts alike, because it takes the same way."""
    channel = current_channel()
    assert channel is not None
    used = _used.setdefault(channel, Counter())
    used[name] += 1
    return used[name]


class HorsiesDurability(BaseDurabilityCapability[DepsT]):
    """Make the requests to models and the calls of tools of an agent steps of the task in which it runs.

    The agent needs a name, or `name`: the names of its steps begin with it. `models` are those that a run may switch to, by key.
    The handler of `event_stream_handler` is called while a request runs, and not again for one whose response is stored.
    `model_retry` and `tool_retry` are policies by which failed requests and calls are repeated within their step.

    >>> HorsiesDurability(model_retry=RetryPolicy.exponential(1, max_retries=5))
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Horsies",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        cancellation_error_types=(Parked,),
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[DepsT] | None = None,
        model_retry: Retry = None,
        tool_retry: Retry = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_retry = model_retry
        self._tool_retry = tool_retry

    @property
    def in_durable_context(self) -> bool:
        """Return True in the code of a task that a worker runs."""
        return current_channel() is not None

    def get_default_run_id(self) -> str | None:
        """Return the id of the next run of an agent in this task, the same one whenever the task is run."""
        if not self.in_durable_context:
            return None
        return f"{current_task().id}:{_ordinal('agent runs')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the conversation that belongs to a run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when a run with a timeout began for the first time."""
        if not self.in_durable_context:
            return None

        async def started_at() -> datetime:
            return datetime.now(UTC)

        return await current_async_task().step(_step_name(f"{self.name} run start", run_id), started_at)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Retry]:
        """Return what runs each request and call in a step."""
        config = RoleBasedOperationConfig[Retry](
            model=self._model_retry, event=None, capability=self._tool_retry, tool=self._tool_retry
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)


class _Backend(JournalCallableOperationBackend[Retry]):
    """Runs each operation of an agent in a step."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Retry,
    ) -> object:
        async def call() -> Any:
            return await body()

        return await current_async_task().step(
            _step_name(name, _origin(operation_id, cache_key)), call, retry=config
        )


def _origin(operation_id: DurableOperationId, cache_key: tuple[object, ...]) -> str:
    """Return the run of the agent, by its number within the task, and the call of the tool.

    Runs and calls beside each other may come to their steps in another order the next time, so a name needs both.
    """
    contexts = [cast("RunContext[Any]", each) for each in cache_key if isinstance(each, RunContext)]
    if not contexts:
        return ""
    context = contexts[-1]
    run: str = (context.run_id or "").rpartition(":")[2]
    is_call = isinstance(operation_id, ToolsetCallToolId) and context.tool_call_id
    return f"{run} {context.tool_call_id}" if is_call else run


def _step_name(name: str, origin: str) -> str:
    """Return a name that no other step of this run of the task has, and that the next run gives the same step.

    >>> _step_name("advisor__model.request", "1")
    'advisor__model.request 1.1'
    """
    whole = f"{name} {origin}".strip()
    whole = f"{whole}.{_ordinal(whole)}"
    if len(whole) <= MAX_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return f"{whole[: MAX_NAME - 17]} {digest}"
