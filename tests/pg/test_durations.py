"""A duration may be a timedelta wherever a workflow takes seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import Horsies, WorkflowDefinition, WorkflowSpec, signal_node, sleep_node
from horsies.core.errors import HorsiesError

Db = psycopg.Connection[dict[str, Any]]


def test_sleeps_signals_and_deadlines_take_timedeltas(app: Horsies, db: Db) -> None:
    nodes = [
        sleep_node(timedelta(hours=1), node_id="slept"),
        signal_node("yes", timeout_seconds=timedelta(minutes=1), node_id="asked"),
    ]
    spec: WorkflowSpec[Any] = app.workflow("w", nodes, definition_key="w", deadline_seconds=timedelta(days=1))

    spec.start().unwrap()

    rows = db.execute("SELECT seconds FROM horsies_workflow_tasks ORDER BY task_index").fetchall()
    assert [row["seconds"] for row in rows] == [3600.0, 60.0]
    row = db.execute("SELECT deadline_seconds FROM horsies_workflows").fetchone()
    assert row == {"deadline_seconds": 86_400.0}


def test_a_definition_takes_a_timedelta_as_its_deadline(app: Horsies) -> None:
    class Timed(WorkflowDefinition[Any]):
        name = "timed"
        definition_key = "durations.timed"
        only = sleep_node(timedelta(seconds=1))

        class Meta:
            deadline_seconds = timedelta(hours=2)

    assert Timed.build(app).deadline_seconds == timedelta(hours=2)


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1), timedelta(days=40_000), "1h", True])
def test_what_is_no_duration_is_refused_with_its_value(app: Horsies, wrong: Any) -> None:
    for define in (
        lambda: app.workflow("w", [sleep_node(wrong)], definition_key="w"),
        lambda: app.workflow("w", [signal_node("yes", timeout_seconds=wrong)], definition_key="w"),
        lambda: app.workflow("w", [sleep_node(1)], definition_key="w", deadline_seconds=wrong),
    ):
        with pytest.raises(HorsiesError) as caught:
            define()
        assert repr(wrong) in str(caught.value)
        assert "timedelta" in str(caught.value)
