"""What runs have to say, as Markdown: a block of docs/performance.md, and one of the README.

The runs that the blocks were made of are kept in `bench/runs`, and a test compares them with the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import plots
from bench.harness import ROOT
from bench.peers.mix import WORKS
from bench.report import (
    COSTS,
    MIX,
    RATES,
    Report,
    Row,
    cells,
    cells_with_spread,
    load,
    named_figures,
    number,
    rows_with,
    save,
    spread,
    verdict,
)

RUNS = ROOT / "bench" / "runs"
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
SERVERS = {"embedded": "the embedded PostgreSQL", "system": "Debian's PostgreSQL, as packaged"}
# Of what was measured, this is in the README.
README_COLUMNS = {
    "send": "sends/s",
    "bulk send": "bulk/s",
    "drain, 2 processes": "drained/s",
    "send → start, p50": "start, ms",
    "send → result, p50": "result, ms",
    WORKS[-1]: "start in a mix, p99 ms",
    "transactions per task": "transactions per task",
    "WAL per task": "WAL per task, bytes",
}


def write(reports: Sequence[Report]) -> list[Path]:
    """Replace the blocks and keep the runs; the rest of the pages is by people."""
    kept = {RUNS / f"{report.server}.json": report for report in reports}
    if len(kept) < len(reports):
        raise SystemExit("two of these runs were made on the same server: give one for each")
    for old in RUNS.glob("*.json"):
        old.unlink()
    for path, report in kept.items():
        save(report, path)
    drawn = plots.write(kept_runs()[0])
    for page, text in ((PAGE, performance(kept_runs())), (README, comparison(kept_runs()))):
        before, _, after = split(page)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    return [*kept, *drawn, PAGE, README]


def kept_runs() -> list[Report]:
    """Return the runs that the pages were written from, in the order of their servers' names."""
    return [load(path) for path in sorted(RUNS.glob("*.json"))]


def split(page: Path) -> tuple[str, str, str]:
    """Return what is before the block of a page, in it, and after it."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    block, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no {BEGIN} and {END}")
    return before, block.strip("\n"), after


def performance(reports: Sequence[Report]) -> str:
    """Return everything that was measured, run by run. The plots are those of the first run."""
    parts: list[str] = []
    for report in reports:
        parts += [f"### On {_server(report)}\n", _facts(report), *_doubts(report), *_tables(report)]
    if len(reports) == 2:
        parts += ["### One server beside the other\n", _beside(*reports)]
    return "\n".join(
        [*parts, "### Plots\n", *(f"![{name}](performance/{name}.svg)\n" for name in plots.plots(reports[0]))]
    )


def comparison(reports: Sequence[Report]) -> str:
    """Return the tables of the README: every peer, on each server."""
    parts: list[str] = []
    for report in reports:
        rows = [
            [row.peer, row.runs_in, row.results, *cells(row, README_COLUMNS)]
            for row in rows_with(report.peers, RATES)
        ]
        heads = ["", "tasks run in", "results kept", *README_COLUMNS.values()]
        parts += [f"On {_server(report)}, {report.at[:10]}:\n", *_doubts(report), _table(heads, rows, left=3)]
    return "\n".join(parts)


def _server(report: Report) -> str:
    version = report.machine["PostgreSQL"].partition(" ")[0]
    return f"{SERVERS.get(report.server, f'server {report.server}')} ({version})"


def _facts(report: Report) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    settings = ", ".join(f"`{name}={value}`" for name, value in report.settings.items())
    waited = report.waited
    idle = "" if waited is None else f", after a wait of {waited.seconds:.0f} s for an idle machine"
    return (
        f"Run of {report.at} ({report.scale}, {report.seconds / 60:.0f} minutes, load before it "
        f"{report.load[0]:.1f}{idle}). {facts}. {settings}.\n"
    )


def _doubts(report: Report) -> list[str]:
    """Return why a reader should not rely on the figures, if there is a reason."""
    found: list[str] = []
    if report.scale != "everything":
        found.append("**A short run with few tasks and no repetition:** it shows what a run looks like.\n")
    if report.waited is None or not report.waited.is_idle:
        busy = "" if report.waited is None else f" ({100 * report.waited.busy:.0f} % of its processors)"
        found.append(
            f"**The machine was busy with other work{busy}:** no rate here is what it can do, and neighbours were not "
            "measured under the same conditions. Do not compare.\n"
        )
    return found


def _tables(report: Report) -> list[str]:
    parts: list[str] = []
    if report.peers:
        parts.append("#### Compared with other queues\n")
        parts += [_peers(report.peers, columns) for columns in (RATES, COSTS)]
        parts += ["#### From send to start in a mix, ms\n", _peers(report.peers, MIX)]
        parts += ["#### Versions and settings\n", _settings(report.peers)]
    if report.figures:
        parts += ["#### Compared with its limits\n", _figures(report)]
    return parts


def _peers(rows: Sequence[Row], columns: dict[str, str]) -> str:
    lines = [[row.peer, *cells_with_spread(row, columns)] for row in rows_with(rows, columns)]
    return _table(["", *columns.values()], lines, left=1)


def _settings(rows: Sequence[Row]) -> str:
    lines = [
        [
            row.peer,
            row.store,
            row.runs_in,
            ", ".join(row.packages) or "this repository",
            row.problem or row.settings,
        ]
        for row in rows
        if row.store
    ]
    return _table(["", "store", "tasks run in", "version", "settings, or why it is missing"], lines, left=5)


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


def _beside(first: Report, second: Report) -> str:
    """Return every figure that both runs have, with the ratio of the second to the first."""
    others = dict(named_figures(second))
    rows = [
        [
            name,
            *(f"{number(value)} {figure.unit}".strip() for value in (figure.value, others[name].value)),
            f"{others[name].value / figure.value:.2f}" if figure.value else "–",
        ]
        for name, figure in named_figures(first)
        if name in others
    ]
    return _table(["measurement", _server(first), _server(second), "ratio"], rows, left=1)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    marks = ["---"] * left + ["---:"] * (len(heads) - left)
    lines = [heads, marks, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
