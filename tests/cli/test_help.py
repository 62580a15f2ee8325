"""The help: grouped by purpose, with whole sentences, and with earlier names hidden."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from horsies.cli import ALIASES, COMMANDS, EXIT_CODES, PURPOSES, horsies


def command_paths(command: click.Command = horsies, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from command_paths(found, (*path, name))


def help_of(*path: str) -> str:
    result = CliRunner().invoke(horsies, [*path, "--help"], terminal_width=80, prog_name="horsies")
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", [*command_paths()], ids=" ".join)
def test_no_line_of_the_help_is_cut_off(path: tuple[str, ...]) -> None:
    usage, *lines = help_of(*path).splitlines()

    assert usage.startswith("Usage: horsies")
    assert not [line for line in lines if line.endswith(("...", "…"))]
    assert all(len(line) <= 80 for line in lines)


def test_commands_are_grouped_by_purpose() -> None:
    lines = help_of().splitlines()
    titles = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]

    assert titles == ["Options", "Run", "Look", "Act", "Develop", "Set up"]
    listed = [
        line.split()[0]
        for line in lines
        if line.startswith("  ") and line[2:3].strip() and line.split()[0] in COMMANDS
    ]
    assert listed == [name for commands in PURPOSES.values() for name in commands]


def test_the_help_names_the_ways_to_name_the_app_and_the_exit_codes() -> None:
    text = " ".join(help_of().split())

    for words in ("LOCATOR", "HORSIES_APP", "pyproject.toml", *EXIT_CODES.values()):
        assert words in text


@pytest.mark.parametrize(("old", "new"), ALIASES.items())
def test_an_earlier_name_still_works_and_is_not_listed(old: str, new: str) -> None:
    context = click.Context(horsies)

    assert horsies.get_command(context, old) is horsies.get_command(context, new)
    assert f"\n  {old} " not in help_of()
