"""`horsies workflows`: list and show workflows, and pause, resume, cancel or retry them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import click

from horsies.cli import CommandGroup
from horsies.cli.options import (
    Database,
    Redaction,
    as_json_option,
    database_options,
    limit_option,
    redact_option,
    subject_argument,
)
from horsies.cli.output import cut, print_json, print_table, printable
from horsies.codec.results import error_of
from horsies.db.connection import Connection
from horsies.db.queries import workflows as stored
from horsies.db.queries.workflows import NodeDetails, WorkflowDetails, WorkflowSummary
from horsies.errors import ErrorCode, HorsiesError
from horsies.status import WorkflowStatus
from horsies.units import time_text, took
from horsies.workflow import control
from horsies.workflow.layout import layout, progress

# The fields of the JSON documents that have other names than those of the rows.
JSON_NAMES = {"id": "workflow_id", "task_index": "index", "task_name": "name"}
SIGNS = {
    "PENDING": "·", "READY": "○", "ENQUEUED": "○", "RUNNING": "▶", "COMPLETED": "✔", "FAILED": "✘", "SKIPPED": "↷",
}  # fmt: skip


@click.group(cls=CommandGroup)
def workflows() -> None:
    """List and show workflows, and pause, resume, cancel or retry them."""


@workflows.command("list")
@click.option(
    "--status", type=click.Choice([*WorkflowStatus], case_sensitive=False), help="Only this status."
)
@click.option("--name", help="Only workflows of this name.")
@click.option("--all", "all_", is_flag=True, help="Include sub-workflows.")
@limit_option
@as_json_option
@database_options
def list_(
    status: str | None, name: str | None, all_: bool, limit: int, as_json: bool, database: Database
) -> None:
    """List the latest workflows, newest first."""
    values = {"status": status, "name": name, "all": all_, "limit": limit}
    rows = database.ask(lambda connection: stored.listing(connection, values))
    found = [row._replace(error=None if row.error is None else _message(row.error)) for row in rows]
    if as_json:
        print_json({"workflows": [_document(flow) for flow in found]})
        return
    print_table(
        [_workflow_row(flow) for flow in found], right=["done", "took"], drop=["error", "sent", "took"]
    )
    if not found:
        click.echo("no workflows")


@workflows.command()
@as_json_option
@redact_option
@subject_argument("workflow_id", "WORKFLOW_ID", ids=True)
def show(workflow_id: UUID, as_json: bool, redact: tuple[str, ...], database: Database) -> None:
    """Show the nodes of a workflow in order, with their dependencies, states and times."""

    async def read(connection: Connection) -> tuple[WorkflowDetails | None, list[NodeDetails]]:
        return await stored.shown(connection, workflow_id), await stored.nodes(connection, workflow_id)

    flow, nodes = database.ask(read)
    if flow is None:
        raise _unknown(workflow_id)
    redactor = Redaction(database.registry, redact).redactor
    flow = flow._replace(error=redactor.json(flow.error))
    nodes = [
        node._replace(result=redactor.json(node.result), summary=redactor.json(node.summary))
        for node in nodes
    ]
    if as_json:
        print_json({**_document(flow), "nodes": [_document(node) for node in nodes]})
        return
    click.echo(f"{printable(cut(flow.name))}  {printable(cut(flow.status))}  {workflow_id}")
    if flow.error:
        click.echo(f"error: {printable(cut(_message(flow.error)))}")
    click.echo(str(progress(node.status for node in nodes)))
    print_table(_node_rows(nodes), right=["took"], drop=["started", "runs", "waits for"])


@workflows.command()
@subject_argument("workflow_id", "WORKFLOW_ID", ids=True)
def pause(workflow_id: UUID, database: Database) -> None:
    """Pause a workflow: start no more nodes; running tasks continue."""
    _act(database, workflow_id, control.pause, "paused", "not running, so it was not paused")


@workflows.command()
@subject_argument("workflow_id", "WORKFLOW_ID", ids=True)
def resume(workflow_id: UUID, database: Database) -> None:
    """Resume a paused workflow."""
    _act(database, workflow_id, control.resume, "resumed", "not paused, so there is nothing to resume")


@workflows.command()
@subject_argument("workflow_id", "WORKFLOW_ID", ids=True)
def cancel(workflow_id: UUID, database: Database) -> None:
    """Cancel a workflow with its sub-workflows; running tasks continue."""
    _act(database, workflow_id, control.cancel, "cancelled", "finished already")


@workflows.command()
@subject_argument("workflow_id", "WORKFLOW_ID", ids=True)
def retry(workflow_id: UUID, database: Database) -> None:
    """Retry the failed and skipped nodes of a failed workflow."""
    refused = "neither failed nor paused, or a part of another workflow, so there is nothing to retry"
    _act(database, workflow_id, control.retry_failed, "retries its failed nodes", refused)


def _act(
    database: Database,
    workflow_id: UUID,
    action: Callable[[Connection, UUID], Awaitable[bool | None]],
    done: str,
    refused: str,
) -> None:
    """Carry out an action on a workflow, and print its outcome; exit 1 if the action was refused."""
    outcome = database.ask(lambda connection: action(connection, workflow_id))
    if outcome is None:
        raise _unknown(workflow_id)
    click.echo(f"workflow {workflow_id} {done if outcome else 'is ' + refused}")
    if not outcome:
        raise click.exceptions.Exit(1)


def _unknown(workflow_id: UUID) -> HorsiesError:
    return HorsiesError(
        f"there is no workflow {workflow_id}",
        code=ErrorCode.WORKFLOW_INVALID_ID,
        help_text="see `horsies workflows list --all`",
    )


def _message(error: str) -> str:
    """Return the message of a stored error; the beginning of the text if it has none."""
    return error_of(f'{{"err":{error}}}')[0] or cut(error)


def _document(record: WorkflowSummary | WorkflowDetails | NodeDetails) -> dict[str, Any]:
    return {JSON_NAMES.get(field, field): value for field, value in record._asdict().items()}


def _workflow_row(flow: WorkflowSummary) -> dict[str, str]:
    return {
        "workflow": flow.id,
        "name": flow.name,
        "status": flow.status,
        "done": f"{flow.total_tasks - flow.open_tasks}/{flow.total_tasks}",
        "sent": time_text(flow.sent_at),
        "took": took(flow.started_at, flow.completed_at),
        "error": flow.error or "",
    }


def _node_rows(nodes: Sequence[NodeDetails]) -> list[dict[str, str]]:
    """Return a row for each node in the order of the dashboard's graph, indented by its column."""
    by_index = {node.task_index: node for node in nodes}
    names = {index: node.node_id for index, node in by_index.items()}
    found = layout(tuple((node.task_index, tuple(node.dependencies)) for node in nodes))
    return [_node_row(by_index[index], level, names) for index, level in found.nodes]


def _node_row(node: NodeDetails, depth: int, names: dict[int, str]) -> dict[str, str]:
    waits_for = [names.get(dep, str(dep)) for dep in node.dependencies]
    more = f" and {len(waits_for) - 3} more" if len(waits_for) > 3 else ""
    return {
        "": SIGNS.get(node.status, "?"),
        "node": "  " * depth + ("└─ " if depth else "") + node.node_id,
        "status": node.status,
        "waits for": ", ".join(waits_for[:3]) + more,
        "runs": node.task_name if node.kind == "task" else f"{node.kind} {node.task_name}",
        "started": time_text(node.started_at),
        "took": took(node.started_at, node.completed_at),
    }
