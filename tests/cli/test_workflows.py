"""`horsies workflows`: lists, draws and steers, and says what it could not do."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from tests.cli.conftest import misused, refused

APP = """
app = Horsies(AppConfig.for_database_url(os.environ["HORSIES_DATABASE_URL"]))

@app.task("one")
def one() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

def start():
    first = one.node(node_id="first")()
    second = one.node(node_id="second", waits_for=[first])()
    third = one.node(node_id="third", waits_for=[first, second])()
    return app.workflow("three", [first, second, third], definition_key="three").start().unwrap().workflow_id
"""


@pytest.fixture
def started(workplace) -> str:
    workplace.write(APP)
    return workplace.load().start()


def test_the_list_names_each_workflow_and_how_far_it_is(workplace, started):
    result = workplace.run("workflows", "list")

    header, line = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert header.split() == ["workflow", "name", "status", "done", "sent", "took", "error"]
    assert line.split()[:4] == [started, "three", "RUNNING", "0/3"]


def test_the_list_is_one_json_document(workplace, started):
    document = json.loads(workplace.run("workflows", "list", "--status", "running", "--json").stdout)

    assert [flow["workflow_id"] for flow in document["workflows"]] == [started]
    assert workplace.run("workflows", "list", "--status", "FAILED").stdout == "no workflows\n"


def test_a_workflow_is_drawn_with_what_waits_for_what(workplace, started):
    title, progress, _, *lines = workplace.run("workflows", "show", started).stdout.splitlines()

    assert title == f"three  RUNNING  {started}"
    assert progress == "0 of 3 completed"
    assert [line.split()[:2] for line in lines] == [["○", "first"], ["·", "└─"], ["·", "└─"]]
    assert "second" in lines[1]
    assert "PENDING" in lines[2]
    assert "first, second" in lines[2]


def test_a_workflow_is_paused_resumed_and_cancelled(workplace, started):
    verbs = [
        (verb, workplace.run("workflows", verb, started).returncode)
        for verb in ("pause", "pause", "resume", "resume", "cancel", "cancel", "retry")
    ]

    assert verbs == [
        ("pause", 0), ("pause", 1), ("resume", 0), ("resume", 1), ("cancel", 0), ("cancel", 1), ("retry", 1),
    ]  # fmt: skip
    shown = json.loads(workplace.run("workflows", "show", started, "--json").stdout)
    assert shown["status"] == "CANCELLED"
    assert {node["status"] for node in shown["nodes"]} == {"SKIPPED"}


def test_an_id_that_is_unknown_or_none_is_refused(workplace):
    refused(workplace.run("workflows", "show", str(uuid4())), "HRS-032", "there is no workflow")
    misused(workplace.run("workflows", "cancel", "seven"), "seven")
