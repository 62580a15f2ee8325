"""Write the pages that are made of the code, and the explanations that the command line prints.

    python -m tests.docs.generate

`docs/reference/cli.md` is made of the commands, `docs/reference/api.md` of the docstrings of everything that
`import horsies` offers, `horsies/cli/explanations.json` of the error index, whose rows get an anchor each.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click

import horsies
from horsies.cli import horsies as command_line
from tests.docs.pages import ROOT, tables

ERRORS = ROOT / "docs" / "errors.md"
_ROW = re.compile(r"^\| (?:<a id=\"hrs-\d+\"></a>)?HRS-(\d+) \|", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_MADE = "<!-- Made by `python -m tests.docs.generate`: change the code, not this page. -->"


def pages() -> dict[Path, str]:
    """Every generated file with what belongs into it."""
    return {
        ROOT / "docs" / "reference" / "cli.md": cli(),
        ROOT / "docs" / "reference" / "api.md": api(),
        ROOT / "horsies" / "cli" / "explanations.json": explanations(),
        ERRORS: anchored(ERRORS.read_text(encoding="utf-8")),
    }


# The error index


def anchored(page: str) -> str:
    """The page with an anchor at every code."""
    return _ROW.sub(r'| <a id="hrs-\1"></a>HRS-\1 |', page)


def explanations() -> str:
    """Every code with its name, cause and remedy, as JSON."""
    rows = [row for table in tables(ERRORS).values() for row in table if row[0].startswith("HRS-")]
    found = {code: [name, _plain(cause), _plain(remedy)] for code, name, cause, remedy in sorted(rows)}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text)


# The command line


def cli() -> str:
    parts = [
        "# Commands",
        _MADE,
        "`horsies COMMAND --help` prints the same. See [operations](../operations.md) for their use.",
    ]
    parts += _command(command_line, "horsies", level=2)
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    subcommands = command.list_commands(context) if isinstance(command, click.Group) else []
    if path != "horsies":
        yield f"{'#' * level} {path}"
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield f"`{usage}`"
        yield inspect.cleandoc(command.help or "").replace("\b\n", "")
        options = [param for param in command.params if isinstance(param, click.Option)]
        rows = [record for option in options if (record := option.get_help_record(context))]
        if rows:
            yield "\n".join(["| option | |", "| --- | --- |", *(_option(*row) for row in rows)])
    for name in subcommands:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        assert found is not None
        yield from _command(found, f"{path} {name}", level if path == "horsies" else level + 1)


def _option(flag: str, text: str) -> str:
    return f"| `{_cell(flag)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# The names of the package


def api() -> str:
    parts = ["# Names", _MADE, "Everything that `from horsies import …` offers."]
    for title, wanted in _CHAPTERS.items():
        names = [name for name in horsies.__all__ if wanted(name, getattr(horsies, name))]
        parts.append(f"## {title}")
        for name in names:
            parts += _name(name, getattr(horsies, name))
    return "\n\n".join(parts) + "\n"


def _is_setting(name: str, value: Any) -> bool:
    return inspect.isclass(value) and is_dataclass(value) and name.endswith(("Config", "Policy", "Options"))


def _is_enum(_name: str, value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Enum)


def _is_class(name: str, value: Any) -> bool:
    return inspect.isclass(value) and not _is_enum(name, value) and not _is_setting(name, value)


_CHAPTERS: dict[str, Callable[[str, Any], bool]] = {
    "Classes": _is_class,
    "Functions": lambda _name, value: inspect.isfunction(value),
    "Settings": _is_setting,
    "Enumerations": _is_enum,
    "Aliases and constants": lambda _name, value: (
        not inspect.isclass(value) and not inspect.isfunction(value)
    ),
}


def _name(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isclass(value) and not inspect.isfunction(value):
        yield _members(value) if isinstance(value, frozenset) else "A type, for annotations."
        return
    yield from _document(value)
    if _is_enum(name, value):
        yield ", ".join(f"`{member.name}`" for member in value)
    elif _is_setting(name, value):
        yield "Its fields are listed under [configuration](../configuration.md)."
    elif inspect.isclass(value):
        yield from _methods(value)
    else:
        yield f"`{_signature(name, value)}`"


def _members(values: frozenset[Any]) -> str:
    return ", ".join(f"`{member}`" for member in sorted(values))


def _document(value: Any) -> Iterator[str]:
    """A docstring, its examples as a block."""
    text, _, example = (inspect.getdoc(value) or "").partition("\n>>> ")
    own = value.__doc__ is not None and not text.startswith(f"{value.__name__}(")
    if own and text.strip():
        yield text.strip()
    if own and example:
        yield f"```python\n>>> {example.strip()}\n```"


def _methods(cls: type) -> Iterator[str]:
    ours = [each for each in cls.__mro__ if each.__module__.startswith("horsies.")]
    seen: dict[str, str] = {}
    for each in ours:
        for name, member in vars(each).items():
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if name.startswith("_") or name in seen or not (function.__doc__ or "").strip():
                continue
            if inspect.isfunction(function):
                seen[name] = f"| `{_cell(_signature(name, function))}` | {_first_line(function)} |"
            elif isinstance(member, property):
                seen[name] = f"| `{name}` | {_first_line(member)} |"
    if seen:
        yield "\n".join(["| method | |", "| --- | --- |", *seen.values()])


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    return f"{name}{signature.replace(parameters=given)}"


def _first_line(value: Any) -> str:
    return _cell((inspect.getdoc(value) or "").partition("\n")[0])


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
