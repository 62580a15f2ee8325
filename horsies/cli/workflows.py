"""`horsies workflows`: which there are, how far they are, and what may be done about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from horsies.cli.database import ask
from horsies.cli.options import database_options, named_database
from horsies.cli.tables import print_json, print_table, printable
from horsies.config import PostgresConfig
from horsies.errors import ErrorCode, HorsiesError
from horsies.status import WorkflowStatus
from horsies.storage import steering
from horsies.storage import workflows as stored
from horsies.storage.database import Connection

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
LIST_FIELDS = (
    "workflow_id", "name", "status", "sent_at", "started_at", "completed_at", "open_tasks", "total_tasks", "error",
    "parent_workflow_id", "definition_key",
)  # fmt: skip
SHOW_FIELDS = (
    "workflow_id", "name", "status", "sent_at", "started_at", "completed_at", "open_tasks", "deadline_at", "error",
    "parent_workflow_id", "definition_key", "on_error",
)  # fmt: skip
NODE_FIELDS = (
    "index", "node_id", "kind", "name", "status", "task_id", "sub_workflow_id", "queue_name", "priority",
    "dependencies", "started_at", "completed_at", "due_at", "result", "summary",
)  # fmt: skip
SIGNS = {
    "PENDING": "·", "READY": "○", "ENQUEUED": "○", "RUNNING": "▶", "COMPLETED": "✔", "FAILED": "✘", "SKIPPED": "↷",
}  # fmt: skip


@click.group()
def workflows() -> None:
    """List workflows, draw one, and pause, resume, cancel or repair it."""


@workflows.command("list")
@click.option("--status", type=click.Choice([*WorkflowStatus], case_sensitive=False), help="Only these.")
@click.option("--name", help="Only workflows of this name.")
@click.option("--all", "all_", is_flag=True, help="Sub-workflows too.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@database_options
def list_(
    status: str | None,
    name: str | None,
    all_: bool,
    limit: int,
    as_json: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """The latest workflows, newest first."""
    values = {"status": status, "name": name, "all": all_, "limit": limit}
    rows = ask(named_database(app, database_url), lambda connection: stored.listing(connection, values))
    found: list[dict[str, Any]] = [dict(zip(LIST_FIELDS, row, strict=True)) for row in rows]
    if as_json:
        print_json({"workflows": found})
        return
    print_table(
        ["workflow", "name", "status", "done", "sent", "took", "error"],
        [_listed(each) for each in found],
        right=["done", "took"],
    )
    if not found:
        click.echo("no workflows")


@workflows.command()
@click.argument("workflow_id", type=click.UUID)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@database_options
def show(workflow_id: UUID, as_json: bool, app: str | None, database_url: PostgresConfig | None) -> None:
    """Draw a workflow: its nodes in order, what each waits for, their states and times."""

    async def look(connection: Connection) -> tuple[tuple[Any, ...] | None, list[tuple[Any, ...]]]:
        return await stored.shown(connection, workflow_id), await stored.nodes(connection, workflow_id)

    row, rows = ask(named_database(app, database_url), look)
    if row is None:
        raise _unknown(workflow_id)
    flow: dict[str, Any] = dict(zip(SHOW_FIELDS, row, strict=True))
    nodes: list[dict[str, Any]] = [dict(zip(NODE_FIELDS, each, strict=True)) for each in rows]
    if as_json:
        print_json({**flow, "nodes": nodes})
        return
    click.echo(f"{printable(flow['name'])}  {flow['status']}  {workflow_id}")
    if flow["error"]:
        message = msgspec.json.decode(flow["error"]).get("message")
        click.echo(f"error: {printable(str(message))}")
    print_table(["", "node", "status", "waits for", "runs", "started", "took"], drawn(nodes), right=["took"])


@workflows.command()
@click.argument("workflow_id", type=click.UUID)
@database_options
def pause(workflow_id: UUID, app: str | None, database_url: PostgresConfig | None) -> None:
    """Start nothing more of a workflow; what runs may end."""
    _steer(app, database_url, workflow_id, steering.pause, "paused", "not running, so it was not paused")


@workflows.command()
@click.argument("workflow_id", type=click.UUID)
@database_options
def resume(workflow_id: UUID, app: str | None, database_url: PostgresConfig | None) -> None:
    """Go on with a workflow that is paused."""
    _steer(
        app,
        database_url,
        workflow_id,
        steering.resume,
        "goes on",
        "not paused, so there is nothing to resume",
    )


@workflows.command()
@click.argument("workflow_id", type=click.UUID)
@database_options
def cancel(workflow_id: UUID, app: str | None, database_url: PostgresConfig | None) -> None:
    """End a workflow with all its parts; what runs may end."""
    _steer(app, database_url, workflow_id, steering.cancel, "cancelled", "over already")


@workflows.command()
@click.argument("workflow_id", type=click.UUID)
@database_options
def retry(workflow_id: UUID, app: str | None, database_url: PostgresConfig | None) -> None:
    """Run again what failed or was skipped in a workflow that has failed."""
    unfit = "neither failed nor paused, or a part of another workflow, so there is nothing to run again"
    _steer(app, database_url, workflow_id, steering.retry_failed, "runs again what failed", unfit)


def _steer(
    app: str | None,
    database_url: PostgresConfig | None,
    workflow_id: UUID,
    act: Callable[[Connection, UUID], Awaitable[bool | None]],
    done: str,
    refused: str,
) -> None:
    """Do something about a workflow, and say what came of it."""
    outcome = ask(named_database(app, database_url), lambda connection: act(connection, workflow_id))
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


def _listed(flow: dict[str, Any]) -> list[str]:
    done = flow["total_tasks"] - flow["open_tasks"]
    return [
        flow["workflow_id"],
        flow["name"],
        flow["status"],
        f"{done}/{flow['total_tasks']}",
        _at(flow["sent_at"]),
        _took(flow["started_at"], flow["completed_at"]),
        flow["error"] or "",
    ]


def drawn(nodes: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each node, indented by how many nodes come before it on the longest way there."""
    depth: dict[int, int] = {}
    names = {node["index"]: node["node_id"] for node in nodes}
    left = {node["index"]: node for node in nodes}
    while left:
        level = [index for index, node in left.items() if all(dep in depth for dep in node["dependencies"])]
        for index in level:
            depth[index] = 1 + max((depth[dep] for dep in left[index]["dependencies"]), default=-1)
        for index in level:
            del left[index]
    return [
        _line(node, depth[node["index"]], names) for node in sorted(nodes, key=lambda n: depth[n["index"]])
    ]


def _line(node: dict[str, Any], depth: int, names: dict[int, str]) -> list[str]:
    runs = node["name"] if node["kind"] == "task" else f"{node['kind']} {node['name']}"
    before = [names[dep] for dep in node["dependencies"]]
    shown = ", ".join(before[:3]) + (f" and {len(before) - 3} more" if len(before) > 3 else "")
    arrow = "  " * depth + ("└─ " if depth else "")
    return [
        SIGNS[node["status"]],
        arrow + node["node_id"],
        node["status"],
        shown,
        runs,
        _at(node["started_at"]),
        _took(node["started_at"], node["completed_at"]),
    ]


def _at(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(began: datetime | None, ended: datetime | None) -> str:
    if began is None or ended is None:
        return ""
    return f"{(ended - began).total_seconds():.2f} s"
