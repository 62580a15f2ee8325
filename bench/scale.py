"""How much is measured: everything, what a change can be judged by in three minutes, or just enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass

from bench.idle import Patience
from bench.peers.works import FULL, REDUCED, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Numbers of tasks unless the name says otherwise; `groups` are measured when none is named."""

    groups: tuple[str, ...]
    repeat: int
    patience: Patience
    drained: int
    sent: int
    latencies: int
    producer_seconds: float
    children: int
    capped: int
    schedule_seconds: int
    nodes: int
    stepped: int
    depths: tuple[int, ...]
    kept: int
    queues: tuple[int, ...]
    workers: tuple[int, ...]
    snapshot_seconds: float
    mixed: int
    keys: tuple[int, ...]
    requeued: int
    deleted: int
    idle_workers: int
    idle_seconds: float
    peers: Size


BASIC = ("drains", "sends", "latencies", "producers", "children", "caps", "workflows")
GROWTH = (
    "steps",
    "schedules",
    "async",
    "backlog",
    "history",
    "queues",
    "workers",
    "snapshot",
    "mixed",
    "events",
    "operations",
    "keys",
    "idling",
    "dashboard",
)
GROUPS = (*BASIC, "peers", "mix", *GROWTH)

EVERYTHING = Scale(
    groups=GROUPS,
    repeat=3,
    patience=Patience(60, 600),
    drained=20_000,
    sent=1_000,
    latencies=200,
    producer_seconds=8,
    children=40,
    capped=200,
    schedule_seconds=60,
    nodes=1_000,
    stepped=500,
    depths=(1_000, 20_000, 100_000, 1_000_000),
    kept=1_000_000,
    queues=(1, 10, 100),
    workers=(1, 2, 4, 8),
    snapshot_seconds=600,
    mixed=400,
    keys=(100, 1_000, 10_000, 100_000, 1_000_000),
    requeued=100_000,
    deleted=1_000_000,
    idle_workers=20,
    idle_seconds=60,
    peers=FULL,
)
QUICK = Scale(
    groups=(*BASIC, "async", "backlog", "queues"),
    repeat=1,
    patience=Patience(1, 5),
    drained=10_000,
    sent=300,
    latencies=60,
    producer_seconds=3,
    children=6,
    capped=24,
    schedule_seconds=10,
    nodes=300,
    stepped=100,
    depths=(1_000, 10_000, 50_000),
    kept=50_000,
    queues=(1, 100),
    workers=(1, 4),
    snapshot_seconds=10,
    mixed=60,
    keys=(100, 10_000, 100_000),
    requeued=5_000,
    deleted=20_000,
    idle_workers=2,
    idle_seconds=10,
    peers=REDUCED,
)
