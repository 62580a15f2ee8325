"""Workflows and their nodes as recorded, for those who ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from horsies.results import TaskError, TaskResult
from horsies.status import WorkflowStatus, WorkflowTaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowSummary:
    """What came of a workflow that ran as a node of another."""

    status: WorkflowStatus
    output: Any
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    skipped_tasks: int
    error_summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskInfo:
    """A node of a workflow as recorded."""

    index: int
    node_id: str
    kind: str
    name: str
    status: WorkflowTaskStatus
    task_id: str | None
    sub_workflow_id: str | None
    queue_name: str | None
    priority: int | None
    dependencies: tuple[int, ...]
    started_at: datetime | None
    completed_at: datetime | None
    due_at: datetime | None
    result: TaskResult[Any, TaskError] | None
    summary: SubWorkflowSummary | None


def summary_of(document: Mapping[str, Any]) -> SubWorkflowSummary:
    facts = {**document, "status": WorkflowStatus(document["status"])}
    return SubWorkflowSummary(**cast("dict[str, Any]", facts))
