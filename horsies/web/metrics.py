"""Metrics for Prometheus in its text format. Counters are stored totals, so that no request counts tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from horsies.db.queries.inspect import Queue, Worker
from horsies.db.queries.keys import KeyTotals
from horsies.db.queries.statistics import BOUNDS, ENDS, TaskTotals
from horsies.web.queries import DashboardQueries

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


async def exposition(queries: DashboardQueries) -> str:
    """Return all metrics as text."""
    totals, queues, workers = await queries.totals(), await queries.queues(), await queries.workers()
    of_keys = _keys(await queries.key_totals())
    return "\n".join([*_counters(totals), *_queues(queues), *of_keys, *_workers(workers), ""])


def _counters(totals: Sequence[TaskTotals]) -> Iterator[str]:
    ended = [
        ("", {**_labels(total), "status": end}, float(getattr(total, end)))
        for total in totals
        for end in ENDS
    ]
    yield from _metric(
        "horsies_tasks_total", "counter", "Tasks that have ended, counted once a minute.", ended
    )
    for name, about in (("run", "ran"), ("wait", "waited, from when they were due")):
        samples = [sample for total in totals for sample in _histogram(total, name)]
        yield from _metric(f"horsies_task_{name}_seconds", "histogram", f"How long tasks {about}.", samples)


def _histogram(total: TaskTotals, name: str) -> Iterator[Sample]:
    counts: list[int] = getattr(total, f"{name}s")
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        yield "_bucket", {**_labels(total), "le": bound}, count
    yield "_sum", _labels(total), getattr(total, f"{name}_ms") / 1000
    yield "_count", _labels(total), sum(counts)


def _labels(total: TaskTotals) -> dict[str, str]:
    return {"queue": total.queue_name, "task": total.task_name}


def _queues(queues: Sequence[Queue]) -> Iterator[str]:
    for name, about, value in _GAUGES:
        samples = [("", {"queue": queue.name}, float(value(queue))) for queue in queues]
        yield from _metric(f"horsies_queue_{name}", "gauge", about, samples)


_GAUGES: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("pending", "Tasks that are due and wait.", lambda queue: queue.waiting),
    ("scheduled", "Tasks that are not due yet, 10,000 at most.", lambda queue: queue.scheduled),
    ("parked", "Tasks that wait in a step, 10,000 at most.", lambda queue: queue.parked),
    ("running", "Tasks that workers hold.", lambda queue: queue.claimed + queue.running),
    ("suspended", "1 while nobody may claim.", lambda queue: queue.suspended_by is not None),
    (
        "oldest_pending_seconds",
        "How long the oldest waiting task has been due.",
        lambda queue: queue.oldest_seconds or 0.0,
    ),
)


def _keys(totals: KeyTotals) -> Iterator[str]:
    """Yield the gauges of all keys together. A label for each key would make as many series as there are customers."""
    for name, about, value in (
        ("keys_running", "Keys of which tasks run.", totals.keys_running),
        ("key_tasks_running", "Running tasks with a key.", totals.tasks_running),
        ("keys_paused", "Keys that an operator has paused.", totals.keys_paused),
        (
            "key_oldest_pending_seconds",
            "How long the oldest waiting task with a key has been due.",
            totals.oldest_seconds or 0.0,
        ),
    ):
        yield from _metric(f"horsies_{name}", "gauge", about, [("", {}, float(value))])


def _workers(workers: Sequence[Worker]) -> Iterator[str]:
    states = ("started", "idle", "busy", "suspended", "draining", "dead")
    counted = [
        ("", {"state": state}, float(sum(worker.state == state for worker in workers))) for state in states
    ]
    yield from _metric("horsies_workers", "gauge", "Workers by state; the dead of one day.", counted)
    slots = float(sum(worker.processes for worker in workers if worker.state != "dead"))
    yield from _metric("horsies_worker_slots", "gauge", "Processes of live workers.", [("", {}, slots)])


def _metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for suffix, labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        braced = f"{{{pairs}}}" if pairs else ""
        yield f"{name}{suffix}{braced} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
