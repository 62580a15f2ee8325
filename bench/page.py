"""The block of docs/performance.md that a run fills: where it was made, the tables, and the plots that are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.harness import ROOT
from bench.plots import plots
from bench.report import COLUMNS, Report, number, peer_cells, spread, verdict

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write(report: Report) -> list[Path]:
    """Replace the block; the rest of the page is by people."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{block(report)}\n{END}{after}", encoding="utf-8")
    return [PAGE]


def block(report: Report) -> str:
    """What a run has to say, as Markdown."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    settings = ", ".join(f"`{name}={value}`" for name, value in report.settings.items())
    parts = [
        f"Run of {report.at} ({report.scale}, {report.seconds / 60:.0f} minutes, load before it "
        f"{report.load[0]:.1f}). {facts}. {settings}.\n",
        *(f"{doubt}\n" for doubt in doubts(report)),
    ]
    if report.peers:
        parts += ["### Beside others\n", _peers(report), _settings(report)]
    if report.figures:
        parts += ["### Beside its limits\n", _figures(report)]
    parts += ["### Plots\n", *(f"![{name}](performance/{name}.svg)\n" for name in plots(report))]
    return "\n".join(parts)


def doubts(report: Report) -> list[str]:
    """Why a reader should not rely on the figures, if there is a reason."""
    found: list[str] = []
    if report.scale != "everything":
        found.append("**A short run with few tasks and no repetition:** it shows what a run looks like.")
    if report.load[0] > 0.5:
        found.append(
            "**The machine was busy with other work:** no rate here is what it can do, and neighbours were not measured "
            "under the same conditions. Do not compare."
        )
    return found


def _peers(report: Report) -> str:
    rows = [[row.peer, row.store, *peer_cells(row)] for row in report.peers if row.works]
    return _table(["", "store", *COLUMNS.values()], rows, left=2)


def _settings(report: Report) -> str:
    rows = [
        [row.peer, ", ".join(row.packages) or "this repository", row.problem or row.settings]
        for row in report.peers
    ]
    return _table(["", "version", "settings, or why it is missing"], rows, left=3)


def _figures(report: Report) -> str:
    rows = [
        [
            figure.what.strip(),
            f"{number(figure.value)} {figure.unit}".strip(),
            spread(figure),
            "" if figure.ratio is None else f"{figure.ratio:.2f} × {figure.of}",
            f"{figure.target} {verdict(figure)}".strip(),
        ]
        for figure in report.figures
    ]
    return _table(["measurement", "value", "spread", "ratio", "target"], rows, left=1)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    marks = ["---"] * left + ["---:"] * (len(heads) - left)
    lines = [heads, marks, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
