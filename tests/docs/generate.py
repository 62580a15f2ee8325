"""Write the pages that are made of the code, and the explanations that the command line prints.

    python -m tests.docs.generate

`docs/reference/cli.md` is made of the commands, `docs/reference/api.md` of the docstrings of everything that
`import horsies` offers and returns, `horsies/cli/explanations.json` of the error index, whose rows get an anchor each.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click

from horsies.cli import EXIT_CODES
from horsies.cli import horsies as command_line
from tests.docs.api import api, cell
from tests.docs.pages import ROOT, tables

ERRORS = ROOT / "docs" / "errors.md"
_ROW = re.compile(r"^\| (?:<a id=\"hrs-\d+\"></a>)?HRS-(\d+) \|", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_MADE = "<!-- Made by `python -m tests.docs.generate`: change the code, not this page. -->"


def pages() -> dict[Path, str]:
    """Every generated file with what belongs into it."""
    return {
        ROOT / "docs" / "reference" / "cli.md": cli(),
        ROOT / "docs" / "reference" / "api.md": f"# API reference\n\n{_MADE}\n\n{api()}\n",
        ROOT / "horsies" / "cli" / "explanations.json": explanations(),
        ERRORS: anchored(ERRORS.read_text(encoding="utf-8")),
    }


# The error index


def anchored(page: str) -> str:
    """The page with an anchor at every code."""
    return _ROW.sub(r'| <a id="hrs-\1"></a>HRS-\1 |', page)


def explanations() -> str:
    """Every code with its meaning (a number's is its name), cause and remedy, as JSON."""
    rows = [row for table in tables(ERRORS).values() for row in table]
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
        inspect.cleandoc(command_line.help or "").partition("\n\n")[2],
        "## Exit codes",
        "\n".join(
            [
                "| code | |",
                "| --- | --- |",
                *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
            ]
        ),
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
    return f"| `{cell(flag)}` | {cell(text)} |"


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
