"""What a worker says of itself is decided from facts: when to say it, and in which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies import AppConfig, CustomQueueConfig, QueueMode, RecoveryConfig
from horsies.db.queries.tasks import Claimed
from horsies.db.queries.workers import TaskHeartbeat
from horsies.status import WorkerState
from horsies.worker.claim import Limits
from horsies.worker.stats import (
    RETRY_SECONDS,
    Activity,
    ResourceMeter,
    StatsTimer,
    Usage,
    WorkerStats,
    task_heartbeats,
)

WORKER = UUID(int=7)
USAGE = Usage(
    memory_mb=40.0,
    memory_percent=1.5,
    cpu_percent=20.0,
    children_mb={11: 30.0, 12: 20.5},
    children_since={11: 1_000_000_000.0, 12: 1_000_000_060.0},
)


def run(number: int, *, claim_seq: int = 1, pid: int | None = 11) -> Claimed:
    return Claimed(
        turn=0,
        id=str(UUID(int=number)),
        claim_seq=claim_seq,
        task_name="add",
        args=None,
        kwargs=None,
        queue_name="default",
        is_async=False,
        priority=100,
        enqueued_at="2030-01-01T00:00:00Z",
        pid=pid,
        timeout_ms=None,
        retry_count=0,
        max_retries=0,
        crash_count=0,
        has_expiry=False,
        task_options=None,
    )


def doing(*at_work: Claimed, state: WorkerState = WorkerState.BUSY) -> Activity:
    return Activity(
        worker_id=WORKER, state=state, running=len(at_work), claimed=3, at_work=at_work, children=[11, 99]
    )


def limits(**changes: Any) -> Limits:
    facts = {
        "prefetch": 2,
        "max_claim_per_worker": 0,
        "max_claim_batch": 0,
        "cluster_wide_cap": None,
        "poll_seconds": 5.0,
        "hold_seconds": 180.0,
    }
    return Limits(**{**facts, **changes})


def stats_of(
    config: AppConfig | None = None,
    limited: Limits | None = None,
    queues: Sequence[CustomQueueConfig] = (),
    slots: int = 4,
) -> WorkerStats:
    return WorkerStats(config or AppConfig(), limited or limits(), queues, slots, ResourceMeter())


def timer_of(snapshot_seconds: int, beat_seconds: int = 120, *, now: float) -> StatsTimer:
    recovery = RecoveryConfig(
        worker_state_snapshot_interval_ms=snapshot_seconds * 1_000,
        runner_heartbeat_interval_ms=beat_seconds * 1_000,
    )
    return StatsTimer(recovery, now)


# --- when


def test_a_snapshot_is_due_at_once_and_then_at_every_interval():
    timer = timer_of(30, now=100)

    due = [timer.is_snapshot_due(WorkerState.BUSY, now) for now in (100, 101, 129.9, 130, 131, 160)]

    assert due == [True, False, False, True, False, True]


def test_a_snapshot_is_due_once_more_when_draining_begins():
    timer = timer_of(30, now=0)
    timer.is_snapshot_due(WorkerState.BUSY, 0)

    due = [timer.is_snapshot_due(WorkerState.DRAINING, now) for now in (10, 11, 39, 40)]

    assert due == [True, False, False, True]


def test_what_has_one_interval_is_due_at_one_time_however_late_it_was_done():
    timer = timer_of(30, 30, now=0)
    task = run(1)
    for now in (0.2, 30.7):
        timer.is_snapshot_due(WorkerState.BUSY, now)
        timer.long_running([task], now)

    assert timer.pause(30.7) == pytest.approx(29.3)
    assert timer.is_snapshot_due(WorkerState.BUSY, 60)
    assert timer.long_running([task], 60) == [task]


def test_a_snapshot_that_could_not_be_written_is_due_again_soon_and_no_later_than_the_next_one():
    timer = timer_of(30, now=0)
    timer.is_snapshot_due(WorkerState.BUSY, 0)

    timer.snapshot_failed(0.5)

    assert timer.pause(0.5) == RETRY_SECONDS
    due = [timer.is_snapshot_due(WorkerState.BUSY, now) for now in (1, 0.5 + RETRY_SECONDS, 4)]
    assert due == [False, True, False]
    timer.snapshot_failed(31.9)
    assert timer.pause(31.9) == pytest.approx(0.6)


def test_a_task_is_alive_when_it_was_seen_at_the_beat_before():
    timer = timer_of(300, 30, now=0)
    long, short, late = run(1), run(2), run(3)

    beats = [
        timer.long_running(at_work, now)
        for now, at_work in [(30, (long, short)), (60, (long, late)), (90, (late,)), (120, ())]
    ]

    assert beats == [[], [long], [late], []]


def test_a_task_that_was_only_seen_between_two_beats_is_not():
    timer = timer_of(10, 30, now=0)

    assert [timer.long_running([run(1)], now) for now in (0, 10, 20)] == [[], [], []]
    assert timer.long_running([run(1)], 30) == []
    assert timer.long_running([run(1)], 60) == [run(1)]


def test_another_run_of_the_same_task_has_not_lasted():
    timer = timer_of(300, 30, now=0)
    timer.long_running([run(1)], 30)

    assert timer.long_running([run(1, claim_seq=2)], 60) == []


def test_nothing_is_due_in_between():
    timer = timer_of(30, 30, now=0)

    assert timer.is_snapshot_due(WorkerState.BUSY, 0)
    assert not timer.is_snapshot_due(WorkerState.BUSY, 10)
    assert not timer.long_running([run(1)], 10)


@given(
    st.integers(1, 300),
    st.integers(1, 120),
    st.lists(st.tuples(st.floats(0, 400), st.booleans()), max_size=30),
)
def test_who_comes_when_told_never_comes_in_vain_and_never_late(
    snapshot_seconds: int, beat_seconds: int, visits: list[tuple[float, bool]]
):
    now = 1_000.0
    timer = timer_of(snapshot_seconds, beat_seconds, now=now)
    last_snapshot = now
    for late, drains in visits:
        state = WorkerState.DRAINING if drains else WorkerState.BUSY
        last_snapshot = now if timer.is_snapshot_due(state, now) else last_snapshot
        timer.long_running([], now)
        assert now - last_snapshot <= snapshot_seconds + 1e-6
        pause = timer.pause(now)
        assert 0 <= pause <= min(snapshot_seconds, beat_seconds) + 1e-6
        now += pause if late < 200 else late


# --- in which words


def test_a_snapshot_counts_the_parent_and_the_children_apart():
    row = stats_of().snapshot(doing(run(1), run(2)), USAGE)

    assert (row.memory_usage_mb, row.memory_percent, row.cpu_percent) == (40.0, 1.5, 20.0)
    assert row.children_memory_mb == 50.5
    assert (row.worker_id, row.state, row.tasks_running, row.tasks_claimed) == (WORKER, "busy", 2, 3)
    assert row.current_task_ids == [str(UUID(int=1)), str(UUID(int=2))]


def test_a_snapshot_tells_of_the_children_that_are_still_there():
    row = stats_of().snapshot(doing(), USAGE)

    assert json.loads(row.children) == [{"pid": 11, "memory_mb": 30.0, "started_at": "2001-09-09T01:46:40Z"}]


def test_a_snapshot_names_a_hundred_tasks_at_most():
    row = stats_of().snapshot(doing(*map(run, range(150))), USAGE)

    assert row.tasks_running == 150
    assert row.current_task_ids == [str(UUID(int=number)) for number in range(100)]


def test_the_setup_is_told_as_it_works():
    queues = [
        CustomQueueConfig(name="mail", priority=2, max_concurrency=None),
        CustomQueueConfig(name="bulk"),
    ]
    config = AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=queues,
        cluster_wide_cap=9,
        recovery=RecoveryConfig(check_interval_ms=5_000),
    )

    row = stats_of(config, limits(max_claim_batch=3), queues).snapshot(doing(), USAGE)

    assert (row.cluster_wide_cap, row.max_claim_batch) == (9, 3)
    assert json.loads(row.queue_priorities) == {"mail": 2, "bulk": 1}
    assert json.loads(row.queue_max_concurrency) == {"mail": None, "bulk": 5}
    recovery = json.loads(row.recovery_config)
    assert recovery["check_interval_ms"] == 5_000
    assert set(recovery) == set(RecoveryConfig.__dataclass_fields__)


@pytest.mark.parametrize(("asked", "told"), [(0, 6), (3, 3)])
def test_a_limit_that_is_left_to_the_worker_is_told_as_a_number(asked: int, told: int):
    row = stats_of(limited=limits(max_claim_per_worker=asked)).snapshot(doing(), USAGE)

    assert row.max_claim_per_worker == told


def test_a_sign_of_life_names_the_child_and_its_memory():
    assert task_heartbeats([run(1, claim_seq=4, pid=12)], USAGE) == [
        TaskHeartbeat(str(UUID(int=1)), 4, 12, 20.5)
    ]


def test_a_task_whose_process_has_gone_gets_no_sign_of_life():
    assert task_heartbeats([run(1, pid=99), run(2, pid=None)], USAGE) == []


# --- what the operating system says


def test_a_process_that_vanishes_while_it_is_measured_is_left_out(monkeypatch: pytest.MonkeyPatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
        vanished = psutil.Process(gone.pid)
        gone.communicate(b"\n")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as there:
        found = [vanished, psutil.Process(there.pid)]
        monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: found)

        usage = ResourceMeter().measure()
        there.communicate(b"\n")

    assert list(usage.children_mb) == [there.pid]


def test_memory_is_the_parents_own_and_cpu_is_of_the_time_since_the_last_look():
    meter = ResourceMeter()
    own_mb = psutil.Process(os.getpid()).memory_info().rss / 1_048_576

    first, second = meter.measure(), meter.measure()

    assert first.memory_mb == pytest.approx(own_mb, rel=0.2)
    assert first.memory_percent == pytest.approx(
        first.memory_mb * 1_048_576 / psutil.virtual_memory().total * 100, rel=0.2
    )
    assert first.cpu_percent >= 0
    assert second.cpu_percent >= 0
