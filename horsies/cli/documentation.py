"""`horsies get-docs`: write the documentation into a folder, for people and coding assistants."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import click

from horsies.errors import ConfigurationError, ErrorCode
from horsies.units import counted

PACKAGE = Path(__file__).parents[1]
INDEX = "README.md"


@click.command("get-docs")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("horsies-docs"))
@click.option("--force", is_flag=True, help="Overwrite pages that are in the folder already.")
def get_docs(folder: Path, force: bool) -> None:
    """Write the documentation of this version into FOLDER, as Markdown files for people and coding assistants.

    The default folder is horsies-docs. Begin with README.md, which lists the pages.
    """
    source = documentation()
    pages = {page.relative_to(source): page.read_text(encoding="utf-8") for page in source.rglob("*.md")}
    files = {Path(INDEX): _index(pages), **dict(sorted(pages.items()))}
    try:
        _refuse_overwriting(folder, files, force)
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the documentation cannot be written to {str(folder)!r}: {error}",
            code=ErrorCode.CLI_INVALID_ARGS,
            help_text="give a folder that you may write to",
        ) from error
    click.echo(f"{counted(len(pages), 'page')} written to {folder}; begin with {folder / INDEX}")


def documentation() -> Path:
    """Return the folder with the pages: in the installed package, or beside it in a clone."""
    for folder in (PACKAGE / "docs", PACKAGE.parent / "docs"):
        if (folder / "index.md").is_file() and (folder / "reference" / "cli.md").is_file():
            return folder
    raise ConfigurationError(
        f"the documentation is not part of this installation: {PACKAGE}",
        code=ErrorCode.CLI_INVALID_ARGS,
        help_text="install horsies from its wheel, or run the command in a clone",
    )


def _refuse_overwriting(folder: Path, files: dict[Path, str], force: bool) -> None:
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise ConfigurationError(
            f"{str(folder)!r} already has {len(there)} of these files, such as {there[0]}",
            code=ErrorCode.CLI_INVALID_ARGS,
            help_text="give another folder, or overwrite them with --force",
        )


def _index(pages: dict[Path, str]) -> str:
    """Return the index: every page with its title and the headings of its sections."""
    lines = [
        "# Documentation of horsies",
        "",
        f"Version {version('horsies')}: background tasks, schedules and workflows for Python on PostgreSQL. `horsies get-docs` "
        "wrote these pages, without their images.",
        "",
    ]
    for name, text in sorted(pages.items(), key=lambda page: (page[0] != Path("index.md"), page[0])):
        title, sections = _headings(text)
        lines.append(
            f"- [{title or name.stem}]({name.as_posix()}){': ' if sections else ''}{', '.join(sections)}"
        )
    return "\n".join(lines) + "\n"


def _headings(text: str) -> tuple[str, list[str]]:
    title, in_code = "", False
    sections: list[str] = []
    for line in text.splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and line.startswith("# ") and not title:
            title = line[2:]
        elif not in_code and line.startswith("## "):
            sections.append(line[3:])
    return title, sections
