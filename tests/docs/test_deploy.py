"""The examples of deployment can be read by what they are for, and every command in them is one of ours."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
import yaml

from horsies.cli import horsies
from tests.docs.pages import ROOT, blocks

DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
DOCUMENTS = {path.name: list(yaml.safe_load_all(path.read_text())) for path in DEPLOY.glob("*.yaml")}


def values(document: Any, key: str) -> Iterator[Any]:
    """What stands under a key, however deep."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(document, list):
        for each in document:
            yield from values(each, key)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for path in UNITS:
        for line in re.findall(r"^Exec\w+=\S*/(horsies .*)$", path.read_text(), re.MULTILINE):
            yield path.name, shlex.split(line)
    for line in (DEPLOY / "Procfile").read_text().splitlines():
        for part in line.partition(": ")[2].split(" && "):
            yield "Procfile", shlex.split(part)
    for name, documents in DOCUMENTS.items():
        for command in values(documents, "command"):
            yield name, shlex.split(command) if isinstance(command, str) else command
        for test in values(documents, "test"):
            yield from ((name, shlex.split(word)) for word in test if word.startswith("horsies"))


@pytest.mark.parametrize(("file", "words"), list(command_lines()))
def test_every_command_is_one_of_ours(file: str, words: list[str]) -> None:
    program, name, *arguments = words
    command = horsies.get_command(click.Context(horsies), name)

    assert program == "horsies"
    assert command is not None
    command.make_context(name, list(arguments), resilient_parsing=False)


def test_the_recipes_for_log_collectors_are_valid_configuration() -> None:
    recipes = {block.language: block.text for block in blocks(ROOT / "docs" / "operations.md")}
    vector, filebeat = tomllib.loads(recipes["toml"]), yaml.safe_load(recipes["yaml"])

    program, name, *arguments = vector["sources"]["horsies"]["command"]
    command = horsies.get_command(click.Context(horsies), name)

    assert (program, name) == ("horsies", "events")
    assert command is not None
    command.make_context(name, list(arguments), resilient_parsing=False)
    assert vector["sinks"]["elasticsearch"]["id_key"] == "id"
    [source] = filebeat["filebeat.inputs"]
    assert source["parsers"][0]["ndjson"]["document_id"] == "id"


def test_every_kind_of_example_has_commands() -> None:
    assert {file for file, _ in command_lines()} == {path.name for path in DEPLOY.iterdir()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_can_read_the_units(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("horsies")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(
            unit.read_text().replace("/srv/shop/.venv/bin/horsies", str(script))
        )

    verified = subprocess.run(
        ["systemd-analyze", "verify", *tmp_path.iterdir()], capture_output=True, text=True, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_queries_that_scale_workers_give_one_number(database_url: str) -> None:
    queries = list(values(DOCUMENTS["kubernetes.yaml"], "query"))
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO horsies_tasks (task_name, enqueued_at) VALUES ('add', now() - interval '70 s')"
        )
        answers = [connection.execute(query.encode()).fetchall() for query in queries]

    assert answers == [[(1,)], [(70,)]]
