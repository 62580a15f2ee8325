"""No user code is begun for a task that may be someone else's by now: neither by a child nor by its worker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from uuid import uuid4

import pytest

from horsies.storage.tasks import Claimed
from horsies.worker import wire
from horsies.worker.launch import SpawnLauncher
from horsies.worker.pool import ChildPool, Hooks, Shape
from horsies.worker.settings import ChildKind, ChildSettings
from tests.e2e.pipes import child, settings_for
from tests.support.workers import Workplace

APP = """
app = Horsies()

@app.task("mark")
def mark(path: str) -> TaskResult[int, TaskError]:
    Path(path).touch()
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


def call(ticket: int, kind: ChildKind, path: Path, valid_until: float) -> wire.Call:
    kwargs = f'{{"path":"{path}"}}'
    return wire.Call(
        ticket, str(uuid4()), TASK_OF[kind], None, kwargs, "default", 1, 0, None, valid_until, 1, None
    )


@pytest.mark.parametrize("kind", ChildKind)
def test_a_child_gives_back_a_call_that_comes_after_the_lease(
    settings: ChildSettings, workplace: Workplace, kind: ChildKind
) -> None:
    late, early = workplace.folder / "late", workplace.folder / "early"
    with child(settings, kind) as line:
        assert isinstance(line.hear(), wire.Hello)

        line.say(call(1, kind, late, time.monotonic() - 0.001))
        assert line.hear() == wire.Returned([1])
        line.say(call(2, kind, early, time.monotonic() + 60))
        outcome = line.hear()

    assert isinstance(outcome, wire.Outcome)
    assert (outcome.ticket, outcome.ok) == (2, True)
    assert early.exists()
    assert not late.exists()


def test_a_call_handed_in_after_the_lease_runs_when_it_is_renewed(
    settings: ChildSettings, workplace: Workplace
) -> None:
    path = workplace.folder / "ran"
    assert asyncio.run(_submit_and_renew(settings, path)) == ["held", "ended"]
    assert path.exists()


async def _submit_and_renew(settings: ChildSettings, path: Path) -> list[str]:
    """What becomes of a call that is handed in after the lease ran out, and after it is renewed."""
    ended, seen = asyncio.Event(), list[str]()
    hooks = Hooks(
        ended=lambda _task, _outcome: ended.set(),
        crashed=lambda _task, how: seen.append(how),
        timed_out=lambda _task, _limit: seen.append("timed out"),
        came_free=lambda: None,
    )
    launcher = SpawnLauncher(settings)
    pool = ChildPool(Shape(ChildKind.SERIAL, 1), launcher, hooks, None)
    try:
        await pool.start()
        (pid,) = pool.free(1)
        pool.renew(time.monotonic() - 0.001)
        pool.submit([_claimed(path, pid)])
        seen.append("held" if pool.running and not pool.idle() and not ended.is_set() else "sent")
        assert not path.exists()
        pool.renew(time.monotonic() + 60)
        await asyncio.wait_for(ended.wait(), 20)
        seen.append("ended")
    finally:
        await pool.close()
        await launcher.close()
    return seen


def _claimed(path: Path, pid: int) -> Claimed:
    kwargs = f'{{"path":"{path}"}}'
    return Claimed(
        1, str(uuid4()), 1, "mark", None, kwargs, "default", False, 100, "", pid, None, 0, 0, 0, False, None
    )
