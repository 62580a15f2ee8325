"""A run as it is kept: where it was made, with what, and every figure; as JSON, and as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil
from rich.table import Table

from bench.figures import Figure
from bench.harness import Bench
from bench.idle import Wait
from bench.peers.catalogue import PEERS
from bench.peers.mix import TITLES, WORKS

_SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "wal_level",
    "jit",
)
# The columns of the tables of peers, by what was measured.
RATES = {
    "send": "send/s",
    "send, 16 producers": "16 send/s",
    "bulk send": "bulk/s",
    "drain, 2 processes": "drain/s",
    "drain, 4 processes": "×4/s",
}
COSTS = {
    "send → start, p50": "start ms",
    "send → result, p50": "result ms",
    "transactions per task": "transactions",
    "WAL per task": "WAL B",
    "memory, 2 processes": "MB",
    "CPU of the worker per task": "CPU ms",
}
COLUMNS = {**RATES, **COSTS}
MIX = dict(zip(WORKS, TITLES, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured of one peer: the values of all runs by work, or why there are none."""

    peer: str
    store: str
    settings: str
    packages: list[str]
    runs_in: str = ""
    results: str = ""
    works: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run."""

    at: str
    scale: str
    seconds: float
    machine: dict[str, str]
    settings: dict[str, str]
    server: str = "embedded"
    load: list[float]
    waited: Wait | None = None
    figures: list[Figure]
    peers: list[Row]


def machine(bench: Bench) -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": str(bench.value("SHOW server_version")),
        "psycopg": version("psycopg"),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def settings(bench: Bench) -> dict[str, str]:
    return {name: str(bench.value(f"SHOW {name}")) for name in _SETTINGS}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def named_figures(report: Report) -> list[tuple[str, Figure]]:
    """Return the figures by group and name. A part has the name above it in front, as «a claim …: with a cap on each»."""
    named: list[tuple[str, Figure]] = []
    above = ""
    for figure in report.figures:
        is_part = figure.what.startswith(" ")
        above = above if is_part else figure.what
        name = f"{above}: {figure.what.strip()}" if is_part else figure.what
        named.append((f"{figure.group}: {name}", figure))
    return named


def save(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def load(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def number(value: float) -> str:
    """With three digits that mean something.

    >>> number(12345.6), number(12.345), number(0.01234)
    ('12,346', '12.3', '0.012')
    """
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def verdict(figure: Figure) -> str:
    return "" if figure.met is None else "met" if figure.met else "MISSED"


def spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return ""
    return f"{number(figure.low)}–{number(figure.high)}"


def figures_table(figures: list[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("measurement", "value:", "", "spread", "ratio:", "of", "target:", ""):
        table.add_column(
            column.removesuffix(":"), justify="right" if column.endswith(":") else "left", no_wrap=True
        )
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(
            figure.what,
            number(figure.value),
            figure.unit,
            spread(figure),
            ratio,
            figure.of,
            figure.target,
            verdict(figure),
        )
    return table


def rows_with(rows: Sequence[Row], works: Collection[str]) -> list[Row]:
    """Return the rows of which any of these works was measured."""
    return [row for row in rows if not row.works.keys().isdisjoint(works)]


def cells(row: Row, works: Iterable[str]) -> list[str]:
    """Return the medians of these works."""
    return [number(median(row.works[work])) if work in row.works else "–" for work in works]


def cells_with_spread(row: Row, works: Iterable[str]) -> list[str]:
    """Return the medians of these works with the least and the most that was measured."""
    return [_with_spread(row.works[work]) if work in row.works else "–" for work in works]


def _with_spread(values: list[float]) -> str:
    low, middle, high = (number(value) for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def peers_tables(rows: list[Row]) -> Iterator[Table]:
    """Yield a table of all works, one of the mix, and one of what is missing, each if there is anything to say."""
    for title, columns in (("", COLUMNS), ("from send to start, ms", MIX)):
        if found := rows_with(rows, columns):
            table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
            table.add_column("peer", no_wrap=True)
            for head in columns.values():
                table.add_column(head, justify="right")
            for row in found:
                table.add_row(row.peer, *cells(row, columns))
            yield table
    if missing := [row for row in rows if row.problem]:
        table = Table(box=None, pad_edge=False, title="missing", title_justify="left", show_header=False)
        for row in missing:
            table.add_row(row.peer, row.problem)
        yield table


def empty_row(name: str) -> Row:
    """Return the row of a peer, or of what is computed beside them."""
    peer = next((peer for peer in PEERS if peer.name == name), None)
    if peer is None:
        return Row(peer=name, store="", settings="", packages=[])
    return Row(
        peer=name,
        store=peer.store,
        settings=peer.settings,
        packages=list(peer.requirements),
        runs_in=peer.runs_in,
        results=peer.results,
    )
