"""Two runs side by side, such as one on the embedded server and one on the distribution's."""

from __future__ import annotations

from rich.table import Table

from bench.report import Report, named_figures, number

# Rows that differ by more than this factor are flagged.
FACTOR = 1.5


def table(report: Report, other: Report) -> Table:
    """Compare this run with another one, row by row."""
    shown = Table(box=None, pad_edge=False, title=_title(report, other), title_justify="left")
    shown.add_column("measurement", no_wrap=True)
    for run in (other, report):
        shown.add_column(_name(run), justify="right")
    shown.add_column("ratio", justify="right")
    shown.add_column("")
    values = {name: figure.value for name, figure in named_figures(other)}
    for name, figure in named_figures(report):
        before = values.get(name)
        ratio = figure.value / before if before else None
        shown.add_row(
            name,
            "–" if before is None else number(before),
            f"{number(figure.value)} {figure.unit}".strip(),
            "–" if ratio is None else f"{ratio:.2f}",
            "" if ratio is None else verdict(ratio, figure.unit),
        )
    return shown


def verdict(ratio: float, unit: str) -> str:
    """Say so if a row is off by more than the factor. Rates are better when they are higher, all else when it is lower.

    >>> verdict(1.4, "ms"), verdict(2.0, "ms"), verdict(2.0, "tasks/s"), verdict(0.5, "tasks/s")
    ('', 'SLOWER', 'faster', 'SLOWER')
    """
    if 1 / FACTOR <= ratio <= FACTOR:
        return ""
    is_better = (ratio > 1) == unit.endswith("/s")
    if unit not in ("ms", "s", "µs") and not unit.endswith("/s"):
        return "less" if is_better else "MORE"
    return "faster" if is_better else "SLOWER"


def _title(report: Report, other: Report) -> str:
    names = sorted(report.settings.keys() | other.settings.keys())
    differing = [
        f"{name} {other.settings.get(name, '–')} and {report.settings.get(name, '–')}"
        for name in names
        if other.settings.get(name) != report.settings.get(name)
    ]
    what = "settings differ: " + ", ".join(differing) if differing else "the settings are the same"
    return f"{_name(other)} and {_name(report)}; {what}"


def _name(report: Report) -> str:
    return f"{report.server} {report.machine['PostgreSQL'].partition(' ')[0]}"
