"""Order the nodes of a workflow in columns, and count them, for the dashboard's graph and `horsies workflows show`.

The layout is that of Sugiyama: each node stands in the column after its dependencies, an edge that crosses columns gets a
place of its own in each of them, so that it passes between the nodes, and the places of a column are ordered by the mean of
their neighbours, which avoids most crossings. Pure functions.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

# The height of a node, of the place in which an edge passes a column, and of the gap between two places.
HEIGHT, LANE, GAP = 46, 14, 16
SWEEPS = 6
# Edges get places until there are so many; the others are drawn straight. Their places would make a large graph larger still.
MOST_PLACES = 20_000

# A place in a column: the index of a node, or an edge that passes: from, to, and the column.
Place: TypeAlias = int | tuple[int, int, int]
# For each node its index and those of its dependencies.
Shape: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


class Progress(NamedTuple):
    """The number of nodes of a workflow by their state."""

    total: int
    completed: int
    failed: int
    skipped: int
    running: int

    def __str__(self) -> str:
        """Return the progress as text, such as "7 of 10 completed, 1 failed"."""
        parts = [f"{self.completed} of {self.total} completed"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        parts += [f"{self.running} running"] if self.running else []
        return ", ".join(parts)


def progress(statuses: Iterable[str]) -> Progress:
    """Count nodes by their status.

    >>> str(progress(["COMPLETED", "FAILED", "SKIPPED"]))
    '1 of 3 completed, 1 failed, 1 skipped'
    """
    found = Counter(statuses)
    return Progress(found.total(), found["COMPLETED"], found["FAILED"], found["SKIPPED"], found["RUNNING"])


class Layout(NamedTuple):
    """The columns with their places from the top, the edges with the places they pass, and the upper edge of each place."""

    columns: list[list[Place]]
    chains: dict[tuple[int, int], list[Place]]
    tops: dict[Place, float]

    @property
    def nodes(self) -> list[tuple[int, int]]:
        """Return the index and the column of each node, by column and from the top."""
        return [
            (place, level)
            for level, column in enumerate(self.columns)
            for place in column
            if isinstance(place, int)
        ]

    @property
    def height(self) -> float:
        return max((top + size(place) for place, top in self.tops.items()), default=0.0)


@lru_cache(64)
def layout(shape: Shape) -> Layout:
    """Lay out the nodes from left to right. The shape of a workflow never changes, so its layout is made once."""
    columns, chains = _columns(shape, levels(shape))
    _order(columns, chains)
    return Layout(columns, chains, _tops(columns, chains))


def size(place: Place) -> int:
    return HEIGHT if isinstance(place, int) else LANE


def levels(shape: Shape) -> dict[int, int]:
    """Return the length of the longest path to each node. Dependencies that are not listed do not count."""
    known = {index for index, _ in shape}
    missing = {index: {each for each in before if each in known} for index, before in shape}
    dependents: dict[int, list[int]] = {}
    for index, before in missing.items():
        for each in before:
            dependents.setdefault(each, []).append(index)
    depth = {index: 0 for index, before in missing.items() if not before}
    ready = deque(depth)
    while missing:
        if not ready:  # rows that were changed by hand may have a cycle
            ready.append(next(iter(missing)))
            depth.setdefault(ready[0], 0)
        done = ready.popleft()
        if missing.pop(done, None) is None:
            continue
        for after in dependents.get(done, ()):
            if after in missing:
                depth[after] = max(depth.get(after, 0), depth[done] + 1)
                missing[after].discard(done)
                if not missing[after]:
                    ready.append(after)
    return depth


def _columns(
    shape: Shape, depth: Mapping[int, int]
) -> tuple[list[list[Place]], dict[tuple[int, int], list[Place]]]:
    """Return the places of each column, and for each edge the places through which it passes."""
    columns: list[list[Place]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    chains: dict[tuple[int, int], list[Place]] = {}
    places = 0
    for index, _ in shape:
        columns[depth[index]].append(index)
    for index, dependencies in shape:
        for before in dict.fromkeys(dependencies):
            if before not in depth:
                continue
            passed = range(depth[before] + 1, depth[index])
            places += len(passed)
            chain: list[Place] = [(before, index, level) for level in passed] if places <= MOST_PLACES else []
            chains[before, index] = chain
            for level, place in zip(passed, chain, strict=False):
                columns[level].append(place)
    return columns, chains


def _order(columns: list[list[Place]], chains: Mapping[tuple[int, int], Sequence[Place]]) -> None:
    """Order the places of each column by the mean position of their neighbours, forwards and backwards in turn."""
    before, after = _neighbours(chains)
    best, fewest = [list(column) for column in columns], None
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        neighbours = before if forwards else after
        order = range(1, len(columns)) if forwards else range(len(columns) - 2, -1, -1)
        for level in order:
            fixed = columns[level - 1] if forwards else columns[level + 1]
            at = {place: number for number, place in enumerate(fixed)}
            columns[level].sort(key=_mean_position(columns[level], neighbours, at).__getitem__)
        crossings = _crossings(columns, after)
        if fewest is None or crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
        if not crossings:
            break
    columns[:] = best


def _mean_position(
    column: Sequence[Place], neighbours: Mapping[Place, Sequence[Place]], at: Mapping[Place, int]
) -> dict[Place, float]:
    """Return the mean position of the neighbours of each place; a place without any keeps its own."""
    means: dict[Place, float] = {}
    for number, place in enumerate(column):
        near = [at[each] for each in neighbours.get(place, ()) if each in at]
        means[place] = sum(near) / len(near) if near else number
    return means


def _neighbours(
    chains: Mapping[tuple[int, int], Sequence[Place]],
) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    """Return the places before and after each place, by its edges."""
    before: dict[Place, list[Place]] = {}
    after: dict[Place, list[Place]] = {}
    for (start, end), chain in chains.items():
        path: list[Place] = [start, *chain, end]
        for left, right in pairwise(path):
            after.setdefault(left, []).append(right)
            before.setdefault(right, []).append(left)
    return before, after


def _crossings(columns: Sequence[Sequence[Place]], after: Mapping[Place, Sequence[Place]]) -> int:
    """Return the number of pairs of edges that cross between neighbouring columns."""
    total = 0
    for left, right in pairwise(columns):
        at = {place: number for number, place in enumerate(right)}
        counts = [0] * (len(right) + 1)  # a Fenwick tree of the ends that were met so far
        met = 0
        for place in left:
            ends = sorted(at[each] for each in after.get(place, ()) if each in at)
            for end in ends:
                total += met - _sum(counts, end + 1)
            for end in ends:
                _add(counts, end + 1)
                met += 1
    return total


def _sum(counts: list[int], place: int) -> int:
    found = 0
    while place:
        found += counts[place]
        place &= place - 1
    return found


def _add(counts: list[int], place: int) -> None:
    while place < len(counts):
        counts[place] += 1
        place += place & -place


def _tops(
    columns: Sequence[Sequence[Place]], chains: Mapping[tuple[int, int], Sequence[Place]]
) -> dict[Place, float]:
    """Return the upper edge of each place: near the mean of its neighbours, and below the place above it."""
    before, after = _neighbours(chains)
    tops: dict[Place, float] = {}
    for column in columns:
        top = 0.0
        for place in column:
            tops[place] = top
            top += size(place) + GAP
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        for column in columns if forwards else reversed(columns):
            _settle(column, before if forwards else after, tops)
    highest = min(tops.values(), default=0.0)
    return {place: top - highest for place, top in tops.items()}


def _settle(
    column: Sequence[Place], neighbours: Mapping[Place, Sequence[Place]], tops: dict[Place, float]
) -> None:
    """Move the places of a column towards their neighbours, in order and without overlap."""
    wanted: list[float] = []
    offset = 0.0
    for place in column:
        near = neighbours.get(place, ())
        middle = (
            sum(tops[each] + size(each) / 2 for each in near) / len(near)
            if near
            else tops[place] + size(place) / 2
        )
        wanted.append(middle - size(place) / 2 - offset)
        offset += size(place) + GAP
    offset = 0.0
    for place, top in zip(column, _ascending(wanted), strict=True):
        tops[place] = top + offset
        offset += size(place) + GAP


def _ascending(values: Sequence[float]) -> list[float]:
    """Return the ascending sequence that is nearest to the values, by pooling neighbours that are out of order."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, size = pools.pop()
            mean = (mean * count + other * size) / (count + size)
            count += size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
