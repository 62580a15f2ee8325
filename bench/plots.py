"""Bars as plain SVG, in the colours of the reader's theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.harness import ROOT
from bench.peers.mix import IN_ORDER, WORKS
from bench.report import Report, median, number

FOLDER = ROOT / "docs" / "performance"
LEFT, WIDTH, RIGHT, HEIGHT, TOP = 250, 440, 150, 24, 48
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 } .note { font-size: 11px } .spread { stroke: #57606a }
.ours { fill: #1f6feb } .other { fill: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .spread { stroke: #b1bac4 } .other { fill: #6e7681 } }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with the least and the most that was measured."""

    label: str
    value: float
    low: float
    high: float
    is_ours: bool


def drawn(title: str, note: str, bars: Sequence[Bar]) -> str:
    """The bars below each other, all from zero and to one scale."""
    most = max(bar.high for bar in bars)
    rows = [_row(bar, most, TOP + place * HEIGHT) for place, bar in enumerate(bars)]
    width, height = LEFT + WIDTH + RIGHT, TOP + len(bars) * HEIGHT + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<text class="title" x="0" y="18">{escape(title)}</text>',
            f'<text class="note" x="0" y="36">{escape(note)}</text>',
            *rows,
            "</svg>\n",
        ]
    )


def _row(bar: Bar, most: float, top: float) -> str:
    length, low, high = (WIDTH * value / most for value in (bar.value, bar.low, bar.high))
    middle = top + HEIGHT / 2
    spread = (
        f'<path class="spread" d="M{LEFT + low:.1f} {middle:.1f}H{LEFT + high:.1f}"/>' if high > low else ""
    )
    return (
        f'<text x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect class="{"ours" if bar.is_ours else "other"}" x="{LEFT}" y="{top + 3:.1f}" '
        f'width="{max(length, 1):.1f}" height="{HEIGHT - 6}" rx="2"/>{spread}'
        f'<text x="{LEFT + max(length, high) + 8:.1f}" y="{middle + 4:.1f}">{number(bar.value)}</text>'
    )


_PEER_PLOTS = {
    "drain": ("Drain, 2 processes: no-op tasks per second", "drain, 2 processes", True),
    "send": ("Send one by one: tasks per second", "send", True),
    "producers": ("Send one by one, 16 producers: tasks per second", "send, 16 producers", True),
    "bulk": ("Bulk send: tasks per second", "bulk send", True),
    "start": ("Idle worker, from send to start: ms, p50", "send → start, p50", False),
    "result": ("Idle worker, from send to result: ms, p50", "send → result, p50", False),
    "mix": ("One task of 5 s among 100 of 1 ms, from send to start: ms, p99", WORKS[-1], False),
}
_GROWTH_PLOTS = {
    "backlog": "Tasks per second with more and more pending",
    "queues": "Tasks per second from more and more queues",
    "workers": "Tasks per second with more and more workers",
    "history": "Tasks per second with finished tasks kept",
}


def plots(report: Report) -> dict[str, str]:
    """Every plot that the run has figures for, by the name of its file."""
    found: dict[str, str] = {}
    note = f"{report.at[:10]}, {report.scale}, load before the run {report.load[0]:.1f}, {report.machine['cores']} cores"
    for name, (title, work, more_is_better) in _PEER_PLOTS.items():
        bars = [
            Bar(
                f"{row.peer} · {row.store}",
                median(row.works[work]),
                min(row.works[work]),
                max(row.works[work]),
                row.peer.startswith("horsies") and not row.packages,
            )
            for row in report.peers
            if work in row.works and row.peer != IN_ORDER
        ]
        if bars:
            found[name] = drawn(title, note, sorted(bars, key=lambda bar: bar.value, reverse=more_is_better))
    for group, title in _GROWTH_PLOTS.items():
        bars = [
            Bar(figure.what, figure.value, figure.low or figure.value, figure.high or figure.value, True)
            for figure in report.figures
            if figure.group == group and figure.unit == "tasks/s"
        ]
        if bars:
            found[group] = drawn(title, note, bars)
    return found


def write(report: Report) -> list[Path]:
    FOLDER.mkdir(exist_ok=True)
    written: list[Path] = []
    for name, drawing in plots(report).items():
        path = FOLDER / f"{name}.svg"
        path.write_text(drawing, encoding="utf-8")
        written.append(path)
    return written
