"""Agents of Pydantic AI in durable functions: what was answered once is not asked again, whatever happens to the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from horsies import Horsies, RetryPolicy, current_async_task, current_task
from horsies.integrations.pydantic_ai import HorsiesDurability
from horsies.testing import crash_test, drain

app: Any = Horsies()
calls: list[str] = []


@pytest.fixture(scope="session")
def horsies_server_url(server_url: str) -> str:
    return server_url


@pytest.fixture(autouse=True)
def _bound(horsies_bind: Callable[[Any], Any]) -> None:
    horsies_bind(app)
    calls.clear()


def reply(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Answer as a model does that calls two tools, and then tells what they have returned."""
    calls.append("model")
    *_, last = messages
    returned = [str(part.content) for part in last.parts if part.part_kind == "tool-return"]
    if returned:
        return ModelResponse(parts=[TextPart(", ".join(returned))])
    return ModelResponse(
        parts=[
            ToolCallPart("temperature", {"city": "Oslo"}, "a"),
            ToolCallPart("wind", {"city": "Oslo"}, "b"),
        ]
    )


model = FunctionModel(reply)
advisor = Agent(model, name="advisor", deps_type=str, capabilities=[HorsiesDurability[str]()])


@advisor.tool
async def temperature(context: RunContext[str], city: str) -> str:
    calls.append(f"temperature in {city} for {context.deps}")
    return "4 °C"


@advisor.tool_plain
def wind(city: str) -> str:
    calls.append(f"wind in {city}")
    return "4 m/s"


@app.task("advise", idempotent=True)
async def advise(question: str) -> str:
    return (await advisor.run(question, deps="ann")).output


@app.task("advise_plainly", idempotent=True)
def advise_plainly(question: str) -> str:
    return advisor.run_sync(question, deps="ann").output


def names(handle: Any) -> list[str]:
    return [step.name for step in handle.steps()]


@pytest.mark.parametrize("task", [advise, advise_plainly])
def test_requests_and_tool_calls_are_steps(task: Any) -> None:
    handle = task.delay("What shall I wear?")
    drain(app)
    assert handle.result(timeout=5) == "4 °C, 4 m/s"
    first, *tools, last = names(handle)
    assert [first, *sorted(tools), last] == [
        "advisor__model.request 1.1",
        "advisor__function_toolset__<agent>.call_tool:temperature 1 a.1",
        "advisor__function_toolset__<agent>.call_tool:wind 1 b.1",
        "advisor__model.request 1.2",
    ]
    assert sorted(calls) == ["model", "model", "temperature in Oslo for ann", "wind in Oslo"]


@pytest.mark.parametrize("task", [advise, advise_plainly])
def test_an_agent_survives_a_crash_at_every_step(task: Any) -> None:
    def asked() -> int:
        """Count the questions and tool calls, up to one that was lost in the crash."""
        seen = len(calls)
        calls.clear()
        return min(seen, 4)

    crash_test(task, "What shall I wear?", check=asked)


def test_what_was_answered_is_not_asked_again_in_the_next_attempt() -> None:
    again = RetryPolicy.fixed([1], auto_retry_for=[ConnectionError])

    @app.task("advise_again", retry_policy=again)
    async def advise_again() -> str:
        answer = (await advisor.run("What shall I wear?", deps="ann")).output
        if current_task().attempt == 1:
            raise ConnectionError("the mail cannot be sent")
        return answer

    handle = advise_again.delay()
    ran = drain(app, retry_now=True)
    assert [each.attempt for each in ran] == [1, 2]
    assert handle.result(timeout=5) == "4 °C, 4 m/s"
    assert calls.count("model") == 2


def test_a_failed_request_is_repeated_within_its_step() -> None:
    attempts: list[int] = []

    def unsteady(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("the model cannot be reached")
        return ModelResponse(parts=[TextPart("done")])

    policy = RetryPolicy.fixed([1, 1], jitter=False, max_delay_seconds=1)
    agent = Agent(
        FunctionModel(unsteady), name="unsteady", capabilities=[HorsiesDurability(model_retry=policy)]
    )

    @app.task("ask_unsteady")
    async def ask_unsteady() -> str:
        return (await agent.run("go on")).output

    handle = ask_unsteady.delay()
    [ran] = drain(app)
    assert (ran.attempt, handle.result(timeout=5)) == (1, "done")
    assert names(handle) == ["unsteady__model.request 1.1"]


def test_a_tool_may_wait_for_a_person() -> None:
    agent = Agent(TestModel(), name="clerk", capabilities=[HorsiesDurability()])

    @agent.tool_plain
    async def approve(amount: int) -> str:
        calls.append("asked")
        return await current_async_task().wait_for("approved", str)

    @app.task("clerk")
    async def clerk() -> str:
        return (await agent.run("Pay it")).output

    handle = clerk.delay()
    drain(app)
    assert "approved" in names(handle)
    handle.signal("approved", "by ann")
    drain(app)
    assert handle.result(timeout=5) == '{"approve":"by ann"}'
    assert len([name for name in names(handle) if "model.request" in name]) == 2


def test_agents_that_run_beside_each_other_keep_their_own_answers() -> None:
    def greet(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        [prompt] = [
            part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"
        ]
        calls.append("model")
        return ModelResponse(parts=[TextPart(f"hello {prompt}")])

    agent = Agent(FunctionModel(greet), name="greeter", capabilities=[HorsiesDurability()])

    @app.task("greet_two", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[ConnectionError]))
    async def greet_two() -> list[str]:
        async def one(name: str) -> str:
            result = await agent.run(name)
            return result.output

        both = list(await asyncio.gather(one("ann"), one("bob")))
        if current_task().attempt == 1:
            raise ConnectionError("once more")
        return both

    handle = greet_two.delay()
    drain(app, retry_now=True)
    assert handle.result(timeout=5) == ["hello ann", "hello bob"]
    assert calls == ["model", "model"]


def test_an_agent_outside_of_a_task_runs_as_without_the_capability() -> None:
    with advisor.override(model=TestModel()):
        result = asyncio.run(advisor.run("What shall I wear?", deps="ann"))
    assert result.output == '{"temperature":"4 °C","wind":"4 m/s"}'


def test_a_run_with_a_timeout_counts_from_its_first_start() -> None:
    @app.task("in_time")
    async def in_time() -> str:
        return (await advisor.run("What shall I wear?", deps="ann", timeout=60)).output

    handle = in_time.delay()
    drain(app)
    assert handle.result(timeout=5) == "4 °C, 4 m/s"
    assert "advisor run start" in names(handle)[0]
