"""Make `docs/reference/api.md` of the signatures and docstrings of the package."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

import horsies
from horsies.task import BaseTask, Sender, Task
from tests.docs.pages import ROOT, tables
from tests.unit.test_public_api import MADE_BY_HORSIES, RETURNED, SPECIAL_METHODS

CONFIGURATION = ROOT / "docs" / "configuration.md"
_INTRODUCTION = (
    "Everything that `from horsies import …` offers, and the classes of the objects that these names return. "
    "The guides explain how to use them; begin with [tasks](../tasks.md)."
)
_TASKS = (
    "`@app.task` returns an object of one of these classes. They share the methods of `Task`, and differ in what a call in "
    "the same process returns."
)
# Attributes of the app that only horsies itself uses.
_INTERNAL = {
    "child_hooks",
    "definition",
    "event_hooks",
    "task_modules",
    "workflow_builders",
    "declared_schedules",
}
_REQUIRED = "required"
_SETTINGS = ("Config", "Policy", "Options", "Queue")


def api() -> str:
    """Return the page without its title."""
    parts = [_INTRODUCTION, "## The app", *_class("Horsies", horsies.Horsies), "## Tasks", _TASKS]
    for cls in [Task, *(each for each in objects() if issubclass(each, Sender) and each is not Task)]:
        parts += _class(cls.__name__, cls)
    for title, wanted in _CHAPTERS.items():
        parts.append(f"## {title}")
        for name in horsies.__all__:
            value = getattr(horsies, name)
            if name != "Horsies" and name not in _task_names() and wanted(name, value):
                parts += _name(name, value)
        if title == "Classes":
            others = sorted((each for each in objects() if not issubclass(each, Sender)), key=_name_of)
            parts += [part for cls in others for part in _class(cls.__name__, cls)]
    return "\n\n".join(parts)


def objects() -> list[type]:
    """Return the classes that users meet without importing them."""
    return sorted({*RETURNED, Sender}, key=_name_of)


def _name_of(cls: type) -> str:
    return cls.__name__


def _task_names() -> set[str]:
    return {each.__name__ for each in objects() if issubclass(each, BaseTask)}


# Chapters


def _is_enum(_name: str, value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Enum)


def _is_exception(_name: str, value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _is_setting(name: str, value: Any) -> bool:
    return inspect.isclass(value) and is_dataclass(value) and name.endswith(_SETTINGS)


def _is_other_class(name: str, value: Any) -> bool:
    return inspect.isclass(value) and not any(
        kind(name, value) for kind in (_is_enum, _is_exception, _is_setting)
    )


_CHAPTERS: dict[str, Callable[[str, Any], bool]] = {
    "Classes": _is_other_class,
    "Exceptions": _is_exception,
    "Functions": lambda _name, value: inspect.isfunction(value),
    "Settings": _is_setting,
    "Enumerations": _is_enum,
    "Aliases and constants": lambda _name, value: (
        not inspect.isclass(value) and not inspect.isfunction(value)
    ),
}


def _name(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value) and not _is_enum(name, value):
        yield from _class(name, value)
        return
    yield f"### {name}"
    if isinstance(value, frozenset):
        yield ", ".join(f"`{member}`" for member in sorted(value))
    elif inspect.isfunction(value):
        yield f"`{_signature(name, value)}`"
        yield from _document(value)
    elif _is_enum(name, value):
        yield from _document(value)
        yield ", ".join(f"`{member.name}`" for member in value)
    else:
        yield "A type, for annotations."


# Classes


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}"
    attributes = [each for each in _attributes(cls) if each[0] not in _INTERNAL]
    if _is_made_by_users(name, cls, {field for field, _, _ in attributes}):
        yield f"`{_signature(name, cls).removesuffix(' -> None')}`"
    yield from _document(cls)
    if attributes:
        yield _fields(name, attributes)
    if rows := list(_methods(cls)):
        yield _table(["method", ""], rows)
    if issubclass(cls, Sender) and cls is not Task:
        yield "Its other methods are those of [Task](#task)." if issubclass(cls, BaseTask) else _of_sender()


def _of_sender() -> str:
    names = [name for name in vars(Sender) if not name.startswith("_")]
    return f"`with_options` returns it. It has these members of [Task](#task): {', '.join(f'`{n}`' for n in names)}."


def _is_made_by_users(name: str, cls: type, listed: set[str]) -> bool:
    """Return True for a class whose constructor has parameters that its table of fields does not list."""
    if name in MADE_BY_HORSIES or cls in objects():
        return False
    return not is_dataclass(cls) or set(inspect.signature(cls).parameters) != listed


def _fields(name: str, attributes: list[tuple[str, str, str]]) -> str:
    """Return the table of the fields with type, default and, for settings, their meaning."""
    meanings = {row[0]: _from_here(row[-1]) for row in tables(CONFIGURATION).get(name, [])}
    columns = [
        ("field", [f"`{field}`" for field, _, _ in attributes]),
        ("type", [_code(annotation) for _, annotation, _ in attributes]),
        ("default", ["required" if each == _REQUIRED else _code(each) for _, _, each in attributes]),
        ("meaning", [meanings.get(field, "") for field, _, _ in attributes]),
    ]
    shown = [(head, cells) for head, cells in columns if any(cells)]
    return _table(
        [head for head, _ in shown], [list(row) for row in zip(*(c for _, c in shown), strict=True)]
    )


def _attributes(cls: type) -> Iterator[tuple[str, str, str]]:
    if is_dataclass(cls):
        for field in fields(cls):
            if not field.name.startswith("_"):
                yield field.name, _text(field.type), _default(field)
    elif issubclass(cls, msgspec.Struct):
        for field in msgspec.structs.fields(cls):
            given = "" if field.default is msgspec.NODEFAULT else repr(field.default)
            yield field.name, _text(cls.__annotations__.get(field.name, field.type)), given
    elif issubclass(cls, tuple):
        for field, annotation in cls.__annotations__.items():
            yield field, _text(annotation), ""
    else:
        yield from ((name, annotation, "") for name, annotation in _set_by_init(cls).items())


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return str(field.default) if isinstance(field.default, Enum) else repr(field.default)
    if field.default_factory is not MISSING:
        value = field.default_factory()
        return repr(value) if isinstance(value, (dict, list, tuple)) else f"{type(value).__name__}(…)"
    return _REQUIRED


def _set_by_init(cls: type) -> dict[str, str]:
    """Return the public attributes that the constructors of a class set, with their annotations."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        constructor = vars(base).get("__init__")
        if not base.__module__.startswith("horsies") or not inspect.isfunction(constructor):
            continue
        function = ast.parse(textwrap.dedent(inspect.getsource(constructor))).body[0]
        assert isinstance(function, ast.FunctionDef)
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
        for node in ast.walk(function):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in (
                part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])
            ):
                if (
                    isinstance(target, ast.Attribute)
                    and not target.attr.startswith("_")
                    and not hasattr(BaseException, target.attr)
                ):
                    written = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                    found[target.attr] = written or types.get(target.attr, "")
    return found


def _methods(cls: type) -> Iterator[list[str]]:
    """Yield the methods and properties; a task's class those that `Task` has not."""
    documented = RETURNED.get(cls)
    for name in documented or dir(cls):
        if name.startswith("_") and name not in SPECIAL_METHODS:
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
        member = inspect.getattr_static(cls, name)
        is_known = (
            issubclass(cls, Sender) and cls is not Task and member is inspect.getattr_static(Task, name, None)
        )
        if not owner.__module__.startswith("horsies") or is_known:
            continue
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inspect.isfunction(function):
            prefix = "async " if inspect.iscoroutinefunction(function) else ""
            yield [f"`{prefix}{_signature(name, function)}`", _summary(cls, name)]
        elif isinstance(member, property):
            yield [f"`{name}`", _summary(cls, name)]


def _summary(cls: type, name: str) -> str:
    """Return the first paragraph of a method's docstring."""
    member = inspect.getattr_static(cls, name)
    text = (inspect.getdoc(member) or "") if member.__doc__ else ""
    if not text and name == "__call__":
        text = "Run the function in this process, without the queue."
    return text.partition("\n\n")[0].partition("\n>>>")[0]


def _document(value: Any) -> Iterator[str]:
    """Yield a docstring, its examples as a block."""
    text, _, example = (inspect.getdoc(value) or "").partition("\n>>> ")
    own = value.__doc__ is not None and not text.startswith(f"{value.__name__}(")
    if own and text.strip():
        yield text.strip()
    if own and example:
        yield f"```python\n>>> {example.strip()}\n```"


# Text


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    return f"{name}{_clean(str(signature.replace(parameters=given)))}"


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _from_here(text: str) -> str:
    """Return a text of the page of settings with its links as the reference has to write them."""
    return re.sub(r"\]\((?=[\w-]+\.md)", "](../", text).replace("](#", f"](../{CONFIGURATION.name}#")


def _code(text: str) -> str:
    return f"`{_clean(text)}`" if text else ""


def _clean(text: str) -> str:
    """Return a signature without quoted annotations, modules, addresses and the inside of enum members."""
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text)
    text = re.sub(r"<([A-Z]\w+\.[A-Z_]+): [^>]*>", r"\1", text)
    text = re.sub(r"<factory>|<object object[^>]*>|<[\w.]*UNSET[^>]*>", "…", text)
    text = re.sub(r" at 0x\w+", "", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def cell(text: str) -> str:
    """Return a text as the cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
