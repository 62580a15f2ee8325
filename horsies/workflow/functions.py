"""The verbs of workflows as functions, for those who hold an id and an app, not a handle."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from horsies.broker import Broker
from horsies.results import HandleResult, WorkflowStartResult
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.spec import WorkflowSpec

T = TypeVar("T")


def start_workflow(
    spec: WorkflowSpec[T], workflow_id: str | UUID | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """As `spec.start(workflow_id)`."""
    return spec.start(workflow_id)


async def start_workflow_async(
    spec: WorkflowSpec[T], workflow_id: str | UUID | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """As `spec.start_async(workflow_id)`."""
    return await spec.start_async(workflow_id)


async def pause_workflow(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Pause a workflow by its id; `app.get_broker()` gives the broker."""
    return await WorkflowHandle(str(workflow_id), broker).pause_async()


def pause_workflow_sync(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """As `pause_workflow`, waiting for it."""
    return WorkflowHandle(str(workflow_id), broker).pause()


async def resume_workflow(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Go on with a paused workflow by its id."""
    return await WorkflowHandle(str(workflow_id), broker).resume_async()


def resume_workflow_sync(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """As `resume_workflow`, waiting for it."""
    return WorkflowHandle(str(workflow_id), broker).resume()
