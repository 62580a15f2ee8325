"""Ratios beside those of an earlier run: a report for whoever reads it, not a gate. Only ratios travel between machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.table import Table

from bench.report import Report, named_figures

PATH = Path(__file__).parent / "baseline.json"
# Short runs on a shared machine differ by this much from one to the next.
NOISE = 0.3


@dataclass(frozen=True, slots=True)
class Baseline:
    """The ratios of a run, and how it was with the machine."""

    at: str
    scale: str
    load: float
    machine: dict[str, str]
    ratios: dict[str, float]


def ratios(report: Report) -> dict[str, float]:
    """Return the ratios by group and name."""
    named = named_figures(report)
    return {name: round(figure.ratio, 3) for name, figure in named if figure.ratio is not None}


def write(report: Report) -> list[Path]:
    kept = Baseline(report.at, report.scale, report.load[0], report.machine, ratios(report))
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    return [PATH]


def _before() -> Baseline:
    if not PATH.exists():
        return Baseline("never", "", 0.0, {}, {})
    return msgspec.json.decode(PATH.read_bytes(), type=Baseline)


def table(report: Report) -> Table:
    before = _before()
    title = f"ratios beside those of {before.at} (load {before.load:.1f}, now {report.load[0]:.1f})"
    shown = Table(box=None, pad_edge=False, title=title, title_justify="left")
    shown.add_column("measurement", no_wrap=True)
    for column in ("before", "now", "now ÷ before"):
        shown.add_column(column, justify="right")
    shown.add_column("")
    for name, ratio in ratios(report).items():
        then = before.ratios.get(name)
        change = ratio / then if then else None
        shown.add_row(
            name,
            "–" if then is None else f"{then:.2f}",
            f"{ratio:.2f}",
            "–" if change is None else f"{change:.2f}",
            "" if change is None or abs(change - 1) <= NOISE else "changed",
        )
    return shown
