"""No user code is begun for a task that may be someone else's by now: neither by a child nor by its worker."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from horsies.db.queries.tasks import Claimed
from horsies.executor import children, protocol
from horsies.executor import pool as pools
from horsies.executor.forkserver import SpawnLauncher
from horsies.executor.pool import ChildPool, Shape
from horsies.executor.protocol import ChildKind, ChildSettings
from horsies.worker.steps import StepWriter
from horsies.worker.task_output import TaskOutputWriter
from tests.e2e.pipes import child, settings_for
from tests.support.workers import Workplace

APP = """
app = Horsies()

@app.task("mark")
def mark(path: str) -> TaskResult[int, TaskError]:
    Path(path).touch()
    return TaskResult(ok=1)

@app.task("hang")
def hang(path: str) -> TaskResult[int, TaskError]:
    Path(path + ".begun").touch()
    time.sleep(60)
    return TaskResult(ok=1)

@app.task("cling")
def cling(path: str) -> TaskResult[int, TaskError]:
    Path(path).touch()
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=1)

@app.task("mark_async")
async def mark_async(path: str) -> TaskResult[int, TaskError]:
    Path(path).touch()
    return TaskResult(ok=1)
"""
TASK_OF = {ChildKind.SERIAL: "mark", ChildKind.THREADS: "mark", ChildKind.ASYNC: "mark_async"}


@pytest.fixture
def settings(workplace: Workplace) -> ChildSettings:
    workplace.write(APP)
    return settings_for(workplace)


@pytest.fixture
def calls_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no call back because its child is busy, however long that lasts."""
    for module in (pools, children):
        monkeypatch.setattr(module, "HELD_UP_SECONDS", 60)


def call(ticket: int, kind: ChildKind, path: Path, valid_until: float) -> protocol.Call:
    kwargs = f'{{"path":"{path}"}}'
    return protocol.Call(
        ticket, str(uuid4()), TASK_OF[kind], None, kwargs, "default", 1, 0, None, valid_until, 1, None
    )


@pytest.mark.parametrize("kind", ChildKind)
def test_a_child_gives_back_a_call_that_comes_after_the_lease(
    settings: ChildSettings, workplace: Workplace, kind: ChildKind
) -> None:
    late, early = workplace.folder / "late", workplace.folder / "early"
    with child(settings, kind) as line:
        assert isinstance(line.hear(), protocol.Hello)

        line.say(call(1, kind, late, time.monotonic() - 0.001))
        assert line.hear() == protocol.Returned([1])
        line.say(call(2, kind, early, time.monotonic() + 60))
        outcome = line.hear()

    assert isinstance(outcome, protocol.Outcome)
    assert (outcome.ticket, outcome.ok) == (2, True)
    assert early.exists()
    assert not late.exists()


def test_a_call_handed_in_after_the_lease_runs_when_it_is_renewed(
    settings: ChildSettings, workplace: Workplace
) -> None:
    path = workplace.folder / "ran"
    assert asyncio.run(_submit_and_renew(settings, path)) == ["held", "ended"]
    assert path.exists()


@pytest.mark.usefixtures("calls_stay")
def test_what_a_killed_child_had_not_begun_is_let_go_of_and_never_run(
    settings: ChildSettings, workplace: Workplace
) -> None:
    path = workplace.folder / "ran"
    assert asyncio.run(_kill_and_renew(settings, path)) == ["crashed", "released"]
    assert not path.exists()


async def _until_begun(path: Path) -> None:
    """Wait until the task `hang` that was given this path has begun."""
    async with asyncio.timeout(20):
        while not path.with_name(path.name + ".begun").exists():
            await asyncio.sleep(0.005)


async def _kill_and_renew(settings: ChildSettings, path: Path) -> list[str]:
    """What becomes of two calls that a child holds when all that runs is ended, and the lease is another one's."""
    seen = list[str]()
    async with _pool(settings, seen) as pool:
        pool.depth = 2
        (pid, _) = pool.free(2)
        pool.submit([_claimed(path, pid)._replace(task_name="hang"), _claimed(path, pid)])
        await _until_begun(path)
        pool.kill_running("the test killed it")
        pool.renew(time.monotonic() + 60)
        async with asyncio.timeout(20):
            while pool.load or not pool.idle():
                await asyncio.sleep(0.01)
    return seen[1:]  # the first one says that there was nothing else to let go of


@pytest.mark.usefixtures("calls_stay")
def test_a_call_that_waits_behind_another_is_not_begun_once_it_is_cancelled(
    settings: ChildSettings, workplace: Workplace
) -> None:
    path = workplace.folder / "ran"
    assert asyncio.run(_cancel_behind(settings, path)) == ["cancelled", "crashed"]
    assert not path.exists()


async def _cancel_behind(settings: ChildSettings, path: Path) -> list[str]:
    """What becomes of the second of two calls of a child; the first is ended afterwards."""
    seen = list[str]()
    async with _pool(settings, seen) as pool:
        pool.depth = 2
        (pid, _) = pool.free(2)
        first, second = _claimed(path, pid)._replace(task_name="hang"), _claimed(path, pid)
        pool.submit([first, second])
        await _until_begun(path)
        pool.cancel([second.id])
        async with asyncio.timeout(20):
            while not seen:
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            while pool.load:
                await asyncio.sleep(0.01)
    return seen


@pytest.mark.usefixtures("calls_stay")
def test_what_a_dead_child_had_not_begun_is_let_go_of_with_all_the_rest(
    settings: ChildSettings, workplace: Workplace
) -> None:
    path = workplace.folder / "ran"
    assert asyncio.run(_die_and_renew(settings, path)) == ["crashed", "released"]
    assert not path.exists()


async def _die_and_renew(settings: ChildSettings, path: Path) -> list[str]:
    """The same when the child has died by itself before, and it is not known yet how."""
    seen, launcher = list[str](), _SlowLauncher(settings)
    async with _pool(settings, seen, launcher) as pool:
        pool.depth = 2
        (pid, _) = pool.free(2)
        pool.submit([_claimed(path, pid)._replace(task_name="hang"), _claimed(path, pid)])
        await _until_begun(path)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while pool.at_work:
                await asyncio.sleep(0.01)
            pool.kill_running("the test killed it")
            pool.renew(time.monotonic() + 60)
            launcher.knows.set()
            while pool.load or not pool.idle():
                await asyncio.sleep(0.01)
    return seen[1:]


class _SlowLauncher(SpawnLauncher):
    """Takes its time to find out how a child ended."""

    def __init__(self, settings: ChildSettings) -> None:
        super().__init__(settings)
        self.knows = asyncio.Event()

    async def exit_status(self, pid: int, seconds: float) -> int | None:
        await self.knows.wait()
        return await super().exit_status(pid, seconds)


class _Events:
    """Notes what a pool reports of its calls."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def ended(self, task: Claimed, outcome: protocol.Outcome) -> None:
        self._seen.append("ended")

    def crashed(self, task: Claimed, how: str) -> None:
        self._seen.append("crashed")

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        self._seen.append("timed out")

    def cancelled(self, task: Claimed) -> None:
        self._seen.append("cancelled")

    def child_available(self) -> None:
        pass

    def calls_released(self) -> None:
        self._seen.append("released")


@asynccontextmanager
async def _pool(
    settings: ChildSettings, seen: list[str], launcher: SpawnLauncher | None = None, size: int = 1
) -> AsyncGenerator[ChildPool]:
    """Serial children; what is said of their calls goes into the list."""
    launcher = launcher or SpawnLauncher(settings)
    pool = ChildPool(Shape(ChildKind.SERIAL, size), launcher, TaskOutputWriter(), StepWriter(), None)
    try:
        await pool.start(_Events(seen))
        yield pool
    finally:
        await pool.close()
        await launcher.close()


async def _submit_and_renew(settings: ChildSettings, path: Path) -> list[str]:
    """What becomes of a call that is handed in after the lease has expired, and after it is renewed."""
    seen = list[str]()
    async with _pool(settings, seen) as pool:
        (pid,) = pool.free(1)
        pool.renew(time.monotonic() - 0.001)
        pool.submit([_claimed(path, pid)])
        seen.append("held" if pool.running and not pool.idle() else "sent")
        assert not path.exists()
        pool.renew(time.monotonic() + 60)
        async with asyncio.timeout(20):
            while pool.load:
                await asyncio.sleep(0.01)
    return seen


@pytest.mark.usefixtures("calls_stay")
def test_the_task_behind_one_that_came_back_is_held_to_its_time(
    settings: ChildSettings, tmp_path: Path
) -> None:
    """The first lease expired before the second task's turn; the third clings to life, so that only the worker can end it."""
    gate, mark, sign = tmp_path / "gate", tmp_path / "mark", tmp_path / "clings"

    async def run() -> list[str]:
        seen = list[str]()
        async with _pool(settings, seen) as pool, asyncio.timeout(30):
            pool.depth = 3
            (pid,) = set(pool.free(3))
            lease = time.monotonic() + 0.3
            pool.renew(lease)
            pool.submit([_claimed(gate, pid, "wait_for"), _claimed(mark, pid)])
            pool.renew(time.monotonic() + 60)
            pool.submit([_claimed(sign, pid, "cling")._replace(timeout_ms=300)])
            await asyncio.sleep(lease - time.monotonic())
            gate.touch()
            while pool.load:
                await asyncio.sleep(0.01)
        return seen

    assert asyncio.run(run()) == ["ended", "timed out", "ended"]
    assert sign.exists()
    assert mark.exists()


@pytest.mark.parametrize(("size", "fate"), [(2, "ended"), (1, "released")])
def test_a_call_that_its_busy_child_does_not_begin_goes_to_an_idle_child_or_back(
    settings: ChildSettings, workplace: Workplace, size: int, fate: str
) -> None:
    path = workplace.folder / "ran"

    async def run() -> list[str]:
        seen = list[str]()
        async with _pool(settings, seen, size=size) as pool, asyncio.timeout(20):
            pool.depth = 2
            pid = pool.free(1)[0]
            pool.submit([_claimed(path, pid, "hang"), _claimed(path, pid)])
            while pool.load > 1:
                await asyncio.sleep(0.005)
            assert [call.task_name for call in pool.at_work] == ["hang"]
        return seen

    assert asyncio.run(run()) == [fate]
    assert path.exists() == (fate == "ended")


def test_each_call_is_begun_by_the_child_or_taken_back_by_the_worker_and_never_both(
    settings: ChildSettings, workplace: Workplace
) -> None:
    """The worker takes calls back at all moments: right after they were sent, and while the child works them off."""
    rng, total, taken = random.Random(1), 4_000, list[int]()
    begun: list[int] = []

    def hear_outcome() -> None:
        outcome = line.hear()
        assert isinstance(outcome, protocol.Outcome)
        assert outcome.ok
        begun.append(outcome.ticket)

    with child(settings, ChildKind.SERIAL) as line:
        assert isinstance(line.hear(), protocol.Hello)
        for first in range(1, total, 40):
            line.say(
                *(
                    call(ticket, ChildKind.SERIAL, workplace.folder / str(ticket), float("inf"))
                    for ticket in range(first, first + 40)
                )
            )
            for _ in range(rng.randrange(40)):
                if len(begun) + len(taken) < first + 39:
                    hear_outcome()
            if rng.random() < 0.7:
                taken += line.take_back()
        while len(begun) + len(taken) < total:
            hear_outcome()

    assert sorted(begun + taken) == list(range(1, total + 1))
    assert begun == sorted(begun)
    assert len(begun) > 100
    assert len(taken) > 100
    ran = {int(path.name) for path in workplace.folder.iterdir() if path.name.isdigit()}
    assert ran == set(begun)


def _claimed(path: Path, pid: int, name: str = "mark") -> Claimed:
    kwargs = f'{{"path":"{path}"}}'
    return Claimed(
        1, str(uuid4()), 1, name, None, kwargs, "default", False, 100, "", pid, None, 0, 0, 0, False, None
    )
