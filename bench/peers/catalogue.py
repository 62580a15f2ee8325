"""The peers: what to install, how each is set, and how the bench sees that nothing is left to do.

Versions and settings are those that were the fastest when they were tried, or that the library's own pages recommend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# What is measured of a mix, and how: see `bench.peers.mix`.
LOADS = ("burn", "rest", "nap")
PROCESSES, THREADS, LOOP = "processes", "threads", "the worker's loop"
_HORSIES_LEFT = "SELECT count(*) FROM horsies_tasks_live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One row of the comparison; `left` counts tasks that have not ended for good, `bulk` is the size of a bulk send.

    `runs_in` and `results` are what the README says about where tasks run and whether results are kept. `mix` names the loads
    of `bench.peers.mix` that are measured, with `mix_environment` set as well; a row that is there only for those has no place `in_table`.
    """

    name: str
    script: str
    settings: str
    store: Literal["PostgreSQL", "Redis"]
    runs_in: str
    results: str = "yes"
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    left: str = ""
    bulk: int = 0
    drained: int = 20_000
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    mix: tuple[str, ...] = ()
    mix_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    in_table: bool = True

    @property
    def short_name(self) -> str:
        """As the command line and its environment's folder call it."""
        return self.script.removesuffix("_peer")


PEERS = [
    Peer(
        name="horsies",
        script="horsies_peer",
        settings="default settings, results stored",
        store="PostgreSQL",
        runs_in=PROCESSES,
        left=_HORSIES_LEFT,
        bulk=5_000,
        mix=LOADS,
    ),
    Peer(
        name="horsies, prefetch 1000",
        script="horsies_peer",
        settings="--prefetch-buffer 1000",
        store="PostgreSQL",
        runs_in=PROCESSES,
        left=_HORSIES_LEFT,
        bulk=5_000,
        environment={"BENCH_HORSIES": "--prefetch-buffer 1000"},
    ),
    Peer(
        name="horsies, prefetch 1000, no recycling",
        script="horsies_peer",
        settings="--prefetch-buffer 1000 --max-tasks-per-child 0",
        store="PostgreSQL",
        runs_in=PROCESSES,
        left=_HORSIES_LEFT,
        bulk=5_000,
        environment={"BENCH_HORSIES": "--prefetch-buffer 1000 --max-tasks-per-child 0"},
        mix=LOADS,
    ),
    Peer(
        name="horsies, strict",
        script="horsies_peer",
        settings="--prefetch-buffer 0: nothing is claimed ahead",
        store="PostgreSQL",
        runs_in=PROCESSES,
        left=_HORSIES_LEFT,
        bulk=5_000,
        drained=4_000,
        environment={"BENCH_HORSIES": "--prefetch-buffer 0"},
    ),
    Peer(
        name="horsies, async tasks",
        script="horsies_peer",
        settings="default settings, tasks that wait are async def",
        store="PostgreSQL",
        runs_in="a loop in a process of its own",
        left=_HORSIES_LEFT,
        bulk=5_000,
        environment={"BENCH_REST": "async"},
        mix=("rest",),
        in_table=False,
    ),
    Peer(
        name="horsies 0.5.4",
        script="released_peer",
        settings="prefetch_buffer=64, worker_child_pool_check=False; no bulk send",
        store="PostgreSQL",
        runs_in=PROCESSES,
        requirements=("horsies==0.5.4", "psycopg[binary]"),
        python=(3, 13),
        left="SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')",
        drained=2_000,
    ),
    Peer(
        name="Procrastinate",
        script="procrastinate_peer",
        settings="a worker per process, concurrency 20; keeps no results",
        store="PostgreSQL",
        runs_in=LOOP,
        results="no",
        mix=LOADS,
        requirements=("procrastinate==3.10.0", "psycopg[binary,pool]"),
        left="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        bulk=5_000,
        drained=4_000,
    ),
    Peer(
        name="PgQueuer",
        script="pgqueuer_peer",
        settings="a worker per process, uvloop, batch_size 200, 10 in the mix, in-process; keeps no results",
        store="PostgreSQL",
        runs_in=LOOP,
        results="no",
        mix=LOADS,
        mix_environment={"BENCH_BATCH": "10"},
        requirements=("pgqueuer==1.6.0", "asyncpg", "uvloop"),
        left="SELECT count(*) FROM pgqueuer",
        bulk=5_000,
    ),
    Peer(
        name="Oban",
        script="oban_peer",
        settings="a worker per process, uvloop, limit 50, result by Record, in-process",
        store="PostgreSQL",
        runs_in=LOOP,
        requirements=("oban==0.7.0", "psycopg[binary,pool]", "uvloop"),
        python=(3, 12),
        left="SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'scheduled', 'executing', 'retryable')",
        bulk=5_000,
        drained=10_000,
    ),
    Peer(
        name="graphile-worker",
        script="graphile_peer",
        settings="Node, a worker per process, concurrentJobs 24, localQueue 500; keeps nothing",
        store="PostgreSQL",
        runs_in=LOOP,
        results="no",
        requirements=("graphile-worker@0.17.3",),
        left="SELECT count(*) FROM graphile_worker._private_jobs",
        bulk=5_000,
    ),
    Peer(
        name="Celery",
        script="celery_peer",
        settings="prefork, prefetch 128, no gossip, mingle, heartbeat or events",
        store="Redis",
        runs_in=PROCESSES,
        results="in Redis",
        mix=LOADS,
        requirements=("celery[redis]==5.7.0",),
        drained=4_000,
    ),
    Peer(
        name="RQ",
        script="rq_peer",
        settings="worker-pool of SimpleWorker: no fork for each job",
        store="Redis",
        runs_in=PROCESSES,
        results="in Redis",
        mix=LOADS,
        requirements=("rq==2.12.0",),
        bulk=1_000,
        drained=2_000,
    ),
    Peer(
        name="Dramatiq",
        script="dramatiq_peer",
        settings="eight threads per process, looks for messages every 20 ms, results stored",
        store="Redis",
        runs_in=THREADS,
        results="in Redis",
        mix=LOADS,
        environment={"dramatiq_worker_timeout": "20"},
        requirements=("dramatiq[redis]==2.2.1",),
        drained=10_000,
    ),
    Peer(
        name="Huey",
        script="huey_peer",
        settings="worker processes, blocking pop, results stored",
        store="Redis",
        runs_in=PROCESSES,
        results="in Redis",
        requirements=("huey[redis]==3.5.4",),
        drained=10_000,
    ),
    Peer(
        name="SAQ",
        script="saq_peer",
        settings="a worker per process, concurrency 20, results stored",
        store="Redis",
        runs_in=LOOP,
        results="in Redis",
        requirements=("saq[redis,hiredis]==0.26.4", "typing_extensions"),
        drained=10_000,
    ),
    Peer(
        name="arq",
        script="arq_peer",
        settings="a worker per process, max_jobs 100, poll_delay 50 ms",
        store="Redis",
        runs_in=LOOP,
        results="in Redis",
        requirements=("arq==0.28.0", "redis[hiredis]"),
        drained=5_000,
    ),
]
