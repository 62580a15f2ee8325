"""`python -m bench`: one table, ratios side by side in one run. `--quick` takes about a minute."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import children, measures, schedules, workflows
from bench.harness import Bench, bench_database
from bench.measures import Figure
from horsies.config import PostgresConfig
from horsies.storage.migrate import migrate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--only",
        choices=["drains", "sends", "latencies", "producers", "children", "caps", "schedules", "workflows"],
        help="one group only",
    )
    options = parser.parse_args()
    console = Console(width=118 if not sys.stdout.isatty() else None)
    with bench_database() as bench:
        os.environ["HORSIES_DATABASE_URL"] = bench.url
        asyncio.run(migrate(PostgresConfig(database_url=bench.url)))
        console.print(_where(bench), highlight=False)
        figures = _run(bench, options.quick, options.only, console)
    console.print(_table(figures))
    if options.json is not None:
        options.json.write_text(
            json.dumps([asdict(figure) for figure in figures], indent=1, ensure_ascii=False)
        )


def _run(bench: Bench, quick: bool, only: str | None, console: Console) -> list[Figure]:
    groups: dict[str, Callable[[], Iterator[Figure]]] = {
        "drains": lambda: measures.drains(bench, 10_000 if quick else 20_000),
        "sends": lambda: measures.sends(bench, 300 if quick else 1_000),
        "latencies": lambda: measures.latencies(bench, 60 if quick else 200),
        "producers": lambda: measures.producers(bench, 3 if quick else 8),
        "children": lambda: children.children(bench, 6 if quick else 40),
        "caps": lambda: children.caps(bench, 24 if quick else 200),
        "schedules": lambda: schedules.schedules(bench, 20 if quick else 60),
        "workflows": lambda: workflows.workflows(bench, 300 if quick else 1_000),
    }
    figures: list[Figure] = []
    for name, measure in groups.items():
        if only in (None, name):
            console.print(f"measuring {name} …", style="dim")
            figures += measure()
    return figures


def _where(bench: Bench) -> str:
    version = bench.value("SHOW server_version")
    return (
        f"Python {platform.python_version()}, PostgreSQL {version} (fsync {bench.value('SHOW fsync')}), "
        f"{os.cpu_count()} cores, {platform.machine()}"
    )


def _table(figures: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, align in (
        ("measurement", "left"),
        ("value", "right"),
        ("", "left"),
        ("ratio", "right"),
        ("of", "left"),
        ("target", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify="right" if align == "right" else "left", no_wrap=True)
    for figure in figures:
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3f}"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        verdict = "" if figure.met is None else "met" if figure.met else "MISSED"
        table.add_row(figure.what, value, figure.unit, ratio, figure.of, figure.target, verdict)
    return table


if __name__ == "__main__":
    main()
