"""The figures of drills in words: sums for a test run, and what `python -m tests.faults` measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def summary(figures: Iterable[Mapping[str, int]]) -> str:
    """One line about many drills."""
    every = list(figures)
    total: Counter[str] = Counter()
    for entry in every:
        total.update(entry)
    return f"{len(every)} drills: " + ", ".join(f"{total[name]:,} {name}" for name in every[0])


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that so large a share does not exceed; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def spread(values: Sequence[float]) -> str:
    """Median and maximum of some seconds."""
    if not values:
        return "nothing to measure"
    return f"{percentile(values, 0.5):.2f} s median, {max(values):.2f} s at most (n={len(values)})"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    lines = list(rows)
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
