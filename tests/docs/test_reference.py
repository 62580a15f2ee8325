"""What the reference pages list is what the code has: settings, error codes, flags, modules."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest

import horsies as package
from horsies import (
    AppConfig,
    CustomQueueConfig,
    ErrorCode,
    PayloadPolicy,
    PostgresConfig,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    TaskSchedule,
    TaskSendErrorCode,
    WorkerConfig,
    WorkerResilienceConfig,
)
from horsies.cli import horsies
from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    BrokerErrorCode,
    HandleErrorCode,
    WorkflowStartErrorCode,
)
from horsies.worker.claim_loop import ClaimLoop
from horsies.worker.pacing import LoopState, PollPolicy
from tests.docs.generate import pages
from tests.docs.pages import ROOT, anchors, prose, tables
from tests.unit.test_public_api import SNAPSHOT

DOCS = ROOT / "docs"
MODELS: list[Any] = [
    AppConfig,
    PostgresConfig,
    CustomQueueConfig,
    WorkerConfig,
    WorkerResilienceConfig,
    PayloadPolicy,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    TaskSchedule,
]


def default_of(setting: Field[Any]) -> str:
    """A default as one writes it."""
    if setting.default_factory is not MISSING:
        value = setting.default_factory()
        return f"{type(value).__name__}()" if type(value) in MODELS else repr(value)
    match setting.default:
        case value if value is MISSING:
            return "required"
        case bool() as value:
            return str(value)
        case Enum() as value if type(value).__name__ == "QueueMode":
            return str(f"{type(value).__name__}.{value.name}")
        case str() as value:
            return f'"{value}"'
        case int() as value:
            return f"{value:_}"
        case value:
            return repr(value)


def range_of(setting: Field[Any]) -> str | None:
    """The bounds of a number as one writes them; None for a setting without any."""
    if "range" not in setting.metadata:
        return None
    low, high, or_none = setting.metadata["range"]
    bounds = f"≥ {low:_}" if high is None else f"{low:_} … {high:_}"
    return f"{bounds} or None" if or_none else bounds


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_is_listed_with_its_default_and_range(model: Any) -> None:
    listed = tables(DOCS / "configuration.md")[model.__name__]
    settings: dict[str, Field[Any]] = model.__dataclass_fields__

    assert [row[0] for row in listed] == list(settings)
    for name, default, bounds, meaning in listed:
        assert default == default_of(settings[name]), name
        assert range_of(settings[name]) in (None, bounds), name
        assert meaning, name


def codes_in_use() -> set[ErrorCode]:
    """The codes that the package mentions outside their definition."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "horsies").rglob("*.py")]
    return {
        ErrorCode[name]
        for text in sources
        for name in re.findall(r"ErrorCode\.([A-Z_]+)\b", text)
        if name in ErrorCode.__members__
    }


def test_every_error_code_has_a_cause_and_a_remedy_or_is_called_reserved() -> None:
    rows = [row for rows in tables(DOCS / "errors.md").values() for row in rows]
    listed = {row[0]: row for row in rows if row[0].startswith("HRS-")}

    assert sorted(listed) == sorted(ErrorCode)
    for code in ErrorCode:
        row = listed[code]
        assert row[1] == code.name
        assert row[2].startswith("reserved for ") == (code not in codes_in_use()), code
        assert len(row) == 4
        assert all(row), code


def test_every_error_code_has_an_anchor_of_its_own() -> None:
    assert {anchor for anchor in anchors(DOCS / "errors.md") if anchor.startswith("hrs-")} == {
        code.lower() for code in ErrorCode
    }


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_what_is_made_of_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages()[path], "run: python -m tests.docs.generate"


def sections_of_the_api() -> dict[str, str]:
    """The text below each name of the reference."""
    parts = re.split(
        r"^### (.*)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_api_reference_has_every_public_name() -> None:
    sections = sections_of_the_api()

    assert [name for name in package.__all__ if not sections.get(name, "").strip()] == []


def test_the_api_reference_lists_every_public_member_of_every_class() -> None:
    sections = sections_of_the_api()
    name, missing = "", list[str]()
    for line in SNAPSHOT.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            name = re.split(r"[:(]", line)[0]
        member = re.match(r" +(?:async )?(\w+)", line)
        if member and name in sections and member[1] != name:
            shared = sections["Task"] if "[Task](#task)" in sections[name] else ""
            missing += [f"{name}.{member[1]}"] * (not re.search(rf"\b{member[1]}\b", sections[name] + shared))

    assert missing == []


def test_the_api_reference_describes_every_method_and_property() -> None:
    text = "".join(sections_of_the_api().values())
    methods = re.findall(r"^\| method \|  \|\n.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [line.strip("| ").rsplit(" | ", 1) for table in methods for line in table.splitlines()]

    assert len(rows) > 200
    assert [row[0] for row in rows if len(row) < 2 or not row[1].endswith(".")] == []


def test_the_api_reference_tells_how_tasks_are_sent() -> None:
    listed = sections_of_the_api()["Task"]

    for method in ("send", "delay", "delay_async", "send_many", "schedule", "with_options", "node"):
        assert f"{method}(" in listed, method


def test_the_site_leads_to_every_page() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_code_of_a_task_and_of_a_send_is_explained() -> None:
    explained = {row[0] for rows in tables(DOCS / "errors-and-retries.md").values() for row in rows}

    assert {*BUILTIN_CODE_REGISTRY, *TaskSendErrorCode} <= explained


def test_every_code_without_a_number_has_a_meaning_a_cause_and_a_remedy() -> None:
    rows = tables(DOCS / "errors.md")["Codes of tasks, workflows and sends"]
    kinds = (TaskSendErrorCode, WorkflowStartErrorCode, HandleErrorCode, BrokerErrorCode)

    assert {row[0] for row in rows} == {*BUILTIN_CODE_REGISTRY, *(code for kind in kinds for code in kind)}
    assert all(len(row) == 4 and all(row) for row in rows)
    assert len({row[0] for row in rows}) == len(rows)


def test_every_flag_of_a_worker_is_listed() -> None:
    worker = horsies.get_command(click.Context(horsies), "worker")
    assert worker is not None
    options = [each for each in worker.params if isinstance(each, click.Option) and not each.hidden]
    flags = {flag for option in options for flag in option.opts}

    listed = {flag.split()[0] for row in tables(DOCS / "workers.md")["Flags"] for flag in row[0].split(", ")}

    assert listed == flags - {"-h", "--help"}


def test_the_module_map_names_every_module() -> None:
    there = {
        path.name if path.is_file() else f"{path.name}/"
        for path in (ROOT / "horsies").iterdir()
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    }
    named = {name for row in tables(DOCS / "architecture.md")["Module map"] for name in row[0].split(", ")}

    assert named == there - {"__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize(("heading", "owner"), [("The claim loop", ClaimLoop), ("Sleeping", PollPolicy)])
def test_the_states_of_the_claim_loop_are_documented_as_in_the_code(heading: str, owner: type) -> None:
    lines = [line.strip() for line in (owner.__doc__ or "").splitlines() if line.strip().startswith("|")]
    in_code = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]

    assert tables(DOCS / "architecture.md")[heading] == in_code
    assert {name for row in in_code for name in row[0].split(", ")} <= {state.name for state in LoopState}


def test_the_pages_name_no_setting_that_does_not_exist() -> None:
    known = {name for model in MODELS for name in model.__dataclass_fields__}
    pattern = re.compile(r"\b(?:AppConfig|PostgresConfig|WorkerConfig|PayloadPolicy)\.([a-z_]+)\b(?!\()")

    for page in DOCS.glob("*.md"):
        assert set(pattern.findall(prose(page))) <= known, page
