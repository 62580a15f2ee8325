"""Where horsies with default settings stands among the others of the same run, as figures with a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.figures import Figure
from bench.peers.catalogue import PEERS, PROCESSES, Peer
from bench.peers.mix import TABLE
from bench.report import Row, median

GROUP = "standing"
OURS = PEERS[0].name
_DRAIN = "drain, 2 processes"


def standings(rows: Sequence[Row]) -> Iterator[Figure]:
    """Compare the drain with every Python library's, and the tail of each load with that of those that run tasks in processes."""
    ours = next((row for row in rows if row.peer == OURS), None)
    if ours is None:
        return
    others = {peer.name: peer for peer in PEERS if not peer.script.startswith("horsies")}
    measured = [(others[row.peer], row) for row in rows if row.peer in others]
    yield from _beside(ours, _DRAIN, "tasks/s", [row for peer, row in measured if _is_python(peer)])
    in_processes = [row for peer, row in measured if peer.runs_in == PROCESSES]
    for load in TABLE.values():
        for percent in (95, 99):
            yield from _beside(ours, f"{load.title}, p{percent}", "ms", in_processes)


def _is_python(peer: Peer) -> bool:
    return not any("@" in requirement for requirement in peer.requirements)


def _beside(ours: Row, work: str, unit: str, others: Sequence[Row]) -> Iterator[Figure]:
    """Compare a work with the best of the others: rates are better when they are higher, times when they are lower."""
    found = [row for row in others if work in row.works]
    if not found or work not in ours.works:
        return
    is_rate = unit.endswith("/s")
    best = (max if is_rate else min)(found, key=lambda row: median(row.works[work]))
    values = ours.works[work]
    value = median(values)
    ratio = value / median(best.works[work])
    yield Figure(
        f"{OURS}: {work}",
        value,
        unit,
        ratio,
        best.peer,
        "≥ 1" if is_rate else "≤ 1",
        ratio >= 1 if is_rate else ratio <= 1,
        GROUP,
        min(values),
        max(values),
    )
