"""Kill a durable function at every step, and compare what it leaves behind with an undisturbed run.

All runs are in the process of the test. A kill is an exception that is no `Exception`: what the run has not stored is lost, and the
task is settled as one whose process died. Unlike in a killed process, `finally` blocks run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, cast

from horsies.event_loop import run_sync
from horsies.executor.durable import StepPort, Steps
from horsies.executor.protocol import Call, StoredStep
from horsies.executor.runner import MAX_RESULT, Run
from horsies.handle import TaskHandle
from horsies.registry import AnyTask, TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.status import OperationalErrorCode, RetrievalCode
from horsies.testing.runner import LIMIT, InProcessWorker, run_in_process

KILLED = "the process of the task was killed by crash_test"


class Moment(Enum):
    """The moment of a kill, seen from a step."""

    BEFORE = "before step {!r}"
    UNSTORED = "in step {!r}, after its function had returned and before its value was stored"
    AFTER = "after step {!r}"


class Point(NamedTuple):
    """A point of a run at which it can be killed."""

    step: str
    moment: Moment

    def __str__(self) -> str:
        return self.moment.value.format(self.step)


class CrashTestFailed(AssertionError):
    """Raised by `crash_test` if a kill changes what `check` sees, or how the task ends.

    `step` is the step whose effect happened twice or never, `kill` says where the run was killed, `expected` and `seen` are what
    `check` returned after an undisturbed run and after this one.
    """

    def __init__(self, problem: str, step: str, kill: str, expected: object, seen: object) -> None:
        super().__init__(f"killed {kill}: {problem}")
        self.step = step
        self.kill = kill
        self.expected = expected
        self.seen = seen


def crash_test(
    task: AnyTask,
    *args: Any,
    check: Callable[[], object] | None = None,
    signals: Mapping[str, object] | None = None,
    **kwargs: Any,
) -> None:
    """Run a durable function, and again with a kill before and after each step; compare what `check()` returns after each run.

    A function whose value was not stored yet is killed, too. Raise `CrashTestFailed`, which names the step whose effect happened
    twice or never. Each run must find the same state: `check` is called after each run, and may clean up after it. Without
    `check`, the results of the runs are compared. `signals` are given to each run by name. Sleeps and timeouts take no time.

    >>> crash_test(ship, Order(1, 200), check=bookings_of_order_1)
    """
    for _point in crashes(task, args, kwargs, check, signals):
        pass


def crashes(
    task: AnyTask,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    check: Callable[[], object] | None = None,
    signals: Mapping[str, object] | None = None,
) -> Generator[Point]:
    """Do the same as `crash_test`; yield each point at which a kill has changed nothing."""

    def run(point: Point | None) -> _Seen:
        watch = _Watch(point)
        handle = task.delay(*args, **(kwargs or {}))
        for name, value in (signals or {}).items():
            handle.signal(name, value)
        result = _run_to_its_end(task.registry, handle, watch)
        return _Seen(watch, result, result if check is None else check())

    first, second = run(None), run(None)
    if not first.watch.points:
        raise ValueError(
            f"task {task.name!r} has begun no step in an undisturbed run, which ended as {first.result!r}"
        )
    if first.state != second.state:
        what = "its result was" if check is None else "check() returned"
        raise ValueError(
            f"two undisturbed runs of task {task.name!r} differ: {what} {first.state!r}, and then {second.state!r}; each run must "
            "find the same state, so let `check` clean up, and let it leave out what differs in each run"
        )
    unclear: CrashTestFailed | None = None
    for point in first.watch.points:
        failed, is_clear = _compare(point, first, run(point), looks=check is not None)
        if failed is not None and is_clear:
            raise failed
        unclear = unclear or failed
        if unclear is None:
            yield point
    if unclear is not None:
        raise unclear


# Runs


class _Killed(BaseException):
    """The process of the task dies. Not an `Exception`, so that no `except Exception` catches it."""


class _Watch:
    """Observes all runs of one task, and kills it once at a point."""

    def __init__(self, point: Point | None) -> None:
        self._point = point
        self.points: dict[Point, None] = {}  # in order
        self.bodies: Counter[str] = Counter()  # that were called, by step

    def come_to(self, point: Point) -> None:
        """Note a point; kill the run if it is the one."""
        self.points.setdefault(point)
        if point == self._point:
            self._point = None
            raise _Killed


class _Seen(NamedTuple):
    """A task that was run to its end: its result, and what `check` returned."""

    watch: _Watch
    result: TaskResult[Any, TaskError]
    state: object


class _WatchedSteps(Steps):
    """The steps of a run that is watched."""

    def __init__(self, call: Call, port: StepPort, watch: _Watch) -> None:
        super().__init__(call, port, MAX_RESULT)
        self._watch = watch
        self.is_killed = False

    def _come_to(self, name: str, moment: Moment) -> None:
        try:
            self._watch.come_to(Point(name, moment))
        except _Killed:
            self.is_killed = self.is_over = True
            raise

    async def _begin(self, name: str, kind: str) -> StoredStep | None:
        self._check_is_running()
        self._come_to(name, Moment.BEFORE)
        return await super()._begin(name, kind)

    @contextmanager
    def _body(self, name: str) -> Generator[None]:
        self._watch.bodies[name] += 1
        with super()._body(name):
            yield

    def _encoded(self, name: str, value: Any, value_type: Any) -> str:
        self._come_to(name, Moment.UNSTORED)
        return super()._encoded(name, value, value_type)

    async def step(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._after(name, await super().step(name, *args, **kwargs))

    async def transact(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._after(name, await super().transact(name, *args, **kwargs))

    async def sleep(self, name: str, *args: Any, **kwargs: Any) -> None:
        self._after(name, await super().sleep(name, *args, **kwargs))

    async def wait_for(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._after(name, await super().wait_for(name, *args, **kwargs))

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._after(name, await super().call(name, *args, **kwargs))

    async def call_many(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self._after(name, await super().call_many(name, *args, **kwargs))

    def _after(self, name: str, value: Any) -> Any:
        self._come_to(name, Moment.AFTER)
        return value


class _WatchedRun(Run):
    """A run that may be killed."""

    def __init__(self, call: Call, port: StepPort, watch: _Watch) -> None:
        super().__init__(call, lambda _said: True, ())
        self._steps = self.watched = _WatchedSteps(call, port, watch)


def _run_to_its_end(app: TaskRegistry, handle: TaskHandle[Any], watch: _Watch) -> TaskResult[Any, TaskError]:
    """Run everything that is due, and move time forward, until a task has ended; return its result."""
    worker = run_sync(InProcessWorker.open(app, retry_now=False))
    try:
        for _ in range(LIMIT):
            task = run_sync(worker.next())
            if task is None:
                result = handle.get(timeout_ms=0)
                if result.is_ok() or result.err_value.error_code != RetrievalCode.WAIT_TIMEOUT:
                    return result
                if not run_sync(worker.travel_to_next()):
                    raise _stuck(handle)
            elif task.id != handle.task_id:
                worker.ended(task, run_in_process(app, worker.run_of(task)))
            else:
                run = _WatchedRun(worker.call_of(task), worker.port_of(task), watch)
                outcome = run_in_process(app, run)
                if run.watched.is_killed:
                    worker.crashed(task, KILLED)
                else:
                    worker.ended(task, outcome)
    finally:
        run_sync(worker.close())
    raise ValueError(f"{LIMIT:,} runs of tasks did not end task {handle.task_id}")


def _stuck(handle: TaskHandle[Any]) -> ValueError:
    waits = [step.name for step in handle.steps() if step.kind == "wait" and step.ended_at is None]
    if not waits:
        return ValueError(f"task {handle.task_id} does not end; see `horsies why {handle.task_id}`")
    return ValueError(
        f"the task waits in step {waits[0]!r} without a timeout; give it the signal: signals={{{waits[0]!r}: …}}"
    )


# Comparison


def _compare(point: Point, first: _Seen, now: _Seen, looks: bool) -> tuple[CrashTestFailed | None, bool]:
    """Return the error if a killed run has left behind something else than the undisturbed one, and True if its step is certain.

    It is not if the functions of several steps have run again: those that ran beside each other.
    """
    again = [name for name, count in now.watch.bodies.items() if count > first.watch.bodies[name]]
    step = again[0] if again and point.step not in again else point.step
    problem = _failure(first.result, now.result)
    if now.state != first.state:
        what = "check() returned" if looks else "its result was"
        problem += "; " if problem else ""
        problem += f"{what} {now.state!r} instead of {first.state!r}"
        problem += f": {_explanation(step, again, first.state, now.state)}"
    failed = CrashTestFailed(problem, step, str(point), first.state, now.state) if problem else None
    return failed, len(again) <= 1


def _failure(first: TaskResult[Any, TaskError], now: TaskResult[Any, TaskError]) -> str:
    """Describe an error of a task that it has not in an undisturbed run."""
    if now.is_ok():
        return ""
    error = now.err_value
    if first.is_err() and first.err_value.error_code == error.error_code:
        return ""
    remedy = ""
    if error.error_code == OperationalErrorCode.WORKER_CRASHED:
        remedy = "; with idempotent=True or a retry_policy it is run again"
    return f"the task failed with {error.error_code}: {error.message}{remedy}"


def _explanation(step: str, again: Sequence[str], expected: object, seen: object) -> str:
    steps = f"step {step!r}" if len(again) <= 1 else f"one of the steps {', '.join(map(repr, again))}"
    match _times(expected, seen):
        case "twice" if again:
            return (
                f"the effect of {steps} happened twice, because its function ran again; make it idempotent, with a key for what it "
                "calls, or use transact"
            )
        case "twice":
            return f"an effect happened twice at {steps}, outside of all steps; move it into a step"
        case "never":
            return f"an effect of {steps}, or beside it, never happened"
        case _:
            return f"the effect of {steps} is another one"


def _times(expected: object, seen: object) -> str:
    """Return "twice" if there is more than expected, "never" if there is less, and "" if that cannot be said."""
    more, less = _excess(seen, expected), _excess(expected, seen)
    if more == less:
        return ""
    return "twice" if more else "never"


def _excess(one: object, other: object) -> bool:
    """Return True if one has more than the other: a larger number, or items that the other has not."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one > other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        ones, others = cast("Mapping[Any, Any]", one), cast("Mapping[Any, Any]", other)
        return any(key not in others or _excess(value, others[key]) for key, value in ones.items())
    if isinstance(one, Collection) and isinstance(other, Collection) and not isinstance(one, str | bytes):
        return bool(_items(cast("Collection[Any]", one)) - _items(cast("Collection[Any]", other)))
    return False


def _items(collection: Collection[Any]) -> Counter[str]:
    """Count the items, which need not be hashable."""
    return Counter(map(repr, collection))
