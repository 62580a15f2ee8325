"""Public names and their signatures change only on purpose.

`public_api.txt` beside this file lists every name of `horsies.__all__`, and the classes whose objects those names return.
After an intended change, write it anew:

    python -m tests.unit.test_public_api
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import MISSING, fields, is_dataclass
from difflib import unified_diff
from enum import Enum
from pathlib import Path
from typing import Any

import horsies
from horsies.client import Broker
from horsies.middleware import Middleware
from horsies.schedule.api import Schedules
from horsies.task import AsyncPlainTask, AsyncTask, PlainTask, Task

SNAPSHOT = Path(__file__).with_name("public_api.txt")
COMMAND = "python -m tests.unit.test_public_api"
# Users get objects of these classes and never make one, so their constructors may change.
MADE_BY_HORSIES = {"CurrentTask", "TaskHandle", "WorkflowContext", "WorkflowHandle"}
# Classes that users meet but do not import from `horsies`, and which of their methods are documented; None: all.
RETURNED: dict[type, Collection[str] | None] = {
    AsyncPlainTask: None,
    AsyncTask: None,
    Broker: (
        "close",
        "close_async",
        "ensure_schema_initialized",
        "get_expired_tasks",
        "get_stale_tasks",
        "get_task_info",
        "get_task_info_async",
        "mark_stale_tasks_as_failed",
        "open_async",
        "requeue_stale_claimed",
    ),
    Middleware: None,
    PlainTask: None,
    Schedules: None,
    Task: None,
}
SPECIAL_METHODS = {"__call__", "__await__", "__enter__", "__exit__", "__aenter__", "__aexit__"}


def public_api() -> str:
    """Return the text of the snapshot."""
    lines = [f"# Written by `{COMMAND}`", ""]
    for name in sorted(horsies.__all__):
        lines += [*_describe(name, getattr(horsies, name)), ""]
    for cls, documented in RETURNED.items():
        lines += [f"{cls.__name__}: class, not imported from horsies", *_members(cls, documented), ""]
    return "\n".join(lines)


def _describe(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield f"{_function(name, value)}: function"
    elif isinstance(value, frozenset):
        yield f"{name}: frozenset"
        yield from (f"    {member}" for member in sorted(map(str, value)))
    elif not inspect.isclass(value):
        yield f"{name}: type alias"
    elif issubclass(value, Enum):
        yield f"{name}: enum"
        yield from (f"    {member.name} = {member.value!r}" for member in value)
    else:
        yield from _describe_class(name, value)


def _describe_class(name: str, cls: type) -> Iterator[str]:
    kind = "exception" if issubclass(cls, BaseException) else "dataclass" if is_dataclass(cls) else "class"
    yield f"{name}: {kind}"
    if name not in MADE_BY_HORSIES:
        yield f"    {_function(name, cls)}"
    if is_dataclass(cls):
        for field in fields(cls):
            required = field.default is MISSING and field.default_factory is MISSING
            if field.init and not field.name.startswith("_"):
                yield f"    {field.name}: {_annotation(field.type)}{', required' if required else ''}"
    yield from _members(cls)


def _members(cls: type, documented: Collection[str] | None = None) -> Iterator[str]:
    """Yield a line for each public method, property and attribute that this package defines."""
    hidden = {field.name for field in fields(cls)} if is_dataclass(cls) else set[str]()
    for name in sorted(documented or dir(cls)):
        owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
        is_ours = owner.__module__.startswith("horsies") and name not in hidden
        if is_ours and (not name.startswith("_") or name in SPECIAL_METHODS):
            yield f"    {_member(name, inspect.getattr_static(cls, name))}"


def _member(name: str, member: Any) -> str:
    match member:
        case property() if member.fget is not None:
            return f"{name}: {_annotation(inspect.signature(member.fget).return_annotation)}: property"
        case staticmethod() | classmethod():
            return f"{_function(name, member.__func__)}: {type(member).__name__}"
        case _ if inspect.isfunction(member):
            return f"{'async ' if inspect.iscoroutinefunction(member) else ''}{_function(name, member)}"
        case _:
            return f"{name}: attribute"


def _function(name: str, value: Any) -> str:
    signature = re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
    return f"{name}{_without_modules(signature)}"


def _annotation(annotation: Any) -> str:
    return _without_modules(
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )


def _without_modules(text: str) -> str:
    """Return annotations without the modules of their names: where an internal name is defined is not public."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def test_public_names_and_their_signatures_do_not_change() -> None:
    expected, actual = SNAPSHOT.read_text(encoding="utf-8"), public_api()
    difference = unified_diff(
        expected.splitlines(), actual.splitlines(), "snapshot", "code", n=1, lineterm=""
    )

    assert actual == expected, "\n".join(
        [f"the public API has changed; if that is intended, run `{COMMAND}`", *difference]
    )


if __name__ == "__main__":
    SNAPSHOT.write_text(public_api(), encoding="utf-8")
