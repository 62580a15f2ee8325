"""Figures: a value beside what it is compared with, over one run or several."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report; `target` reads «at least» for rates and ratios, «at most» for costs."""

    what: str
    value: float
    unit: str
    ratio: float | None = None
    of: str = ""
    target: str = ""
    met: bool | None = None
    group: str = ""
    low: float | None = None
    high: float | None = None


def at_least(what: str, value: float, unit: str, ratio: float, of: str, least: float) -> Figure:
    return Figure(what, value, unit, ratio, of, f"≥ {least:g}", ratio >= least)


def at_most(what: str, value: float, unit: str, ratio: float, of: str, most: float) -> Figure:
    return Figure(what, value, unit, ratio, of, f"≤ {most:g}", ratio <= most)


def merged(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The same figures of several runs as one: medians, and how far the values lie apart.

    >>> [merged_figure] = merged([[Figure("drain", 10.0, "tasks/s")], [Figure("drain", 14.0, "tasks/s")]])
    >>> merged_figure.value, merged_figure.low, merged_figure.high
    (12.0, 10.0, 14.0)
    """
    return [_merge(figures) for figures in zip(*runs, strict=True)]


def _merge(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    ratios = [figure.ratio for figure in figures if figure.ratio is not None]
    met = [figure.met for figure in figures if figure.met is not None]
    return replace(
        figures[0],
        value=statistics.median(values),
        ratio=statistics.median(ratios) if ratios else None,
        met=2 * sum(met) > len(met) if met else None,
        low=min(values),
        high=max(values),
    )
