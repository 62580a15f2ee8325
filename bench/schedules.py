"""What ten thousand schedules cost a scheduler, and how late their slots are run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import psycopg

from bench.figures import Figure
from bench.harness import ROOT, Bench
from horsies import CronSchedule, HourlySchedule, IntervalSchedule, SchedulePattern, TaskSchedule
from horsies.schedule.model import config_hash, encode_definition
from horsies.schedule.occurrences import next_run

SCHEDULES = 10_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
_COPY = "COPY horsies_schedule_state (schedule_name, definition, config_hash, next_run_at) FROM STDIN"


def schedules(bench: Bench, seconds: int) -> Iterator[Figure]:
    """A day's mix of patterns, ten thousand schedules that sleep, and ten thousand that are due at once."""
    _fill(bench, [_mixed(number) for number in range(SCHEDULES)])
    cpu, late = _measure(bench, seconds)
    yield Figure(
        f"a scheduler with {SCHEDULES:,} schedules", 100 * cpu, "% of a core", target="≤ 5", met=cpu <= 0.05
    )
    yield Figure("  runs, each second", len(late) / seconds, "")
    yield from _lateness(late)

    _fill(bench, [CronSchedule("0 0 1 1 *")] * SCHEDULES)
    cpu, _ = _measure(bench, seconds)
    yield Figure("  the same, none of them due", 100 * cpu, "% of a core")

    _fill(bench, [IntervalSchedule(hours=1)] * SCHEDULES)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=12)
    bench.session.execute("UPDATE horsies_schedule_state SET next_run_at = %s", (due,))
    _, late = _measure(bench, 30)
    yield Figure(f"  {SCHEDULES:,} due in one second: the last one", 1000 * late[-1], "ms late")


def _mixed(number: int) -> SchedulePattern:
    """Nine in ten run every hour, the rest every five minutes or every minute, at seconds of their own."""
    dice = random.Random(number)
    if number % 100 == 0:
        return IntervalSchedule(minutes=1)
    if number % 10 == 0:
        return CronSchedule("*/5 * * * *")
    return HourlySchedule(minute=dice.randrange(60), second=dice.randrange(60))


def _lateness(late: Sequence[float]) -> Iterator[Figure]:
    for name, share, target in (("median", 0.5, ""), ("95 %", 0.95, "≤ 100"), ("the latest", 1.0, "")):
        value = 1000 * late[min(len(late) - 1, int(share * len(late)))]
        met = value <= 100 if target else None
        yield Figure(f"  slots are late by, {name}", value, "ms", target=target, met=met)


def _fill(bench: Bench, patterns: Sequence[SchedulePattern]) -> None:
    bench.session.execute("TRUNCATE horsies_tasks, horsies_schedule_state")
    now = datetime.now(UTC)
    with bench.session.cursor() as cursor, cursor.copy(_COPY) as copy:
        for number, pattern in enumerate(patterns):
            zone = ZONES[number % len(ZONES)]
            schedule = TaskSchedule(name=f"s{number}", task_name="noop", pattern=pattern, timezone=zone)
            spread = timedelta(seconds=number % 60) if isinstance(pattern, IntervalSchedule) else timedelta(0)
            slot = next_run(pattern, zone, now + spread)
            copy.write_row(
                (schedule.name, encode_definition(schedule, b'{"x":1}'), config_hash(schedule), slot)
            )
    bench.session.execute("VACUUM ANALYZE horsies_schedule_state")


def _measure(bench: Bench, seconds: int) -> tuple[float, list[float]]:
    """The share of a core that a scheduler takes, and how late each run was sent, in order."""
    env = {**os.environ, "HORSIES_DATABASE_URL": bench.url}
    command = [sys.executable, "-m", "horsies", "scheduler", "bench.app:app", "--loglevel", "WARNING"]
    process = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        bench.wait_until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'horsies-scheduler'"
        )
        time.sleep(3)  # its start is another matter
        watched, began = psutil.Process(process.pid), time.monotonic()
        before = _cpu_seconds(watched)
        time.sleep(seconds)
        used, elapsed = _cpu_seconds(watched) - before, time.monotonic() - began
    finally:
        process.terminate()
        process.wait(30)
    return used / elapsed, sorted(_late(bench.session, seconds))


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _late(session: psycopg.Connection[Any], seconds: int) -> list[float]:
    """Of the runs of the measured time; those that were due before the start are late for another reason."""
    rows = session.execute(
        "SELECT extract(epoch FROM enqueued_at - sent_at)::float FROM horsies_tasks"
        " WHERE sent_at > now() - make_interval(secs => %s)",
        (seconds,),
    ).fetchall()
    return [row[0] for row in rows]
