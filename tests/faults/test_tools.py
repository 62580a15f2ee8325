"""Faults that need more than a test has by itself: another clock, a full disk, a pooler."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from tests.faults import drill as drills
from tests.faults import faults
from tests.faults.conftest import SCALE
from tests.faults.drill import Fault, Verdict
from tests.faults.scene import OwnServer, Plan, Scene
from tests.support.pooler import PGBOUNCER, PgBouncer, pgbouncer
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(180 * SCALE)
FAKETIME = next(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"), None)
DISK_MB = 160


class Drill(Protocol):
    def __call__(self, plan: Plan, fault: Fault, times: int = 1) -> Verdict: ...


@pytest.mark.parametrize("seconds", [-90.0, 90.0][: min(SCALE, 2)])
def test_no_clock_but_the_servers_decides_anything(seconds: float, plan: Plan, drill: Drill) -> None:
    drill(replace(plan, clock_seconds=seconds, proxied=True, crashes=False), faults.lose_replies_to_producers)


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed (Debian: libfaketime)")
@pytest.mark.skipif(SCALE == 1, reason="takes long: make faults")
@pytest.mark.parametrize("shift", ["-90s", "+90s"])
def test_the_clock_of_a_worker_decides_nothing(shift: str, plan: Plan, drill: Drill) -> None:
    env = (("LD_PRELOAD", str(FAKETIME)), ("FAKETIME", shift), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"))

    drill(replace(plan, env=env, crashes=False), faults.nothing)


@pytest.fixture
def pooler(database_url: str) -> Iterator[PgBouncer]:
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    with pgbouncer(database_url) as pooler:
        yield pooler


def test_a_pooler_may_lend_every_transaction_another_session(
    pooler: PgBouncer, plan: Plan, drill: Drill
) -> None:
    def strike(scene: Scene) -> None:
        faults.end_sessions(scene)
        pooler.restart()

    drill(replace(plan, pooler_url=pooler.url, crashes=False), strike, 2)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A folder that holds little."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = Path(tempfile.mkdtemp(prefix="horsies-disk-"))
    options = f"size={DISK_MB}m,mode=755"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode != 0:
        folder.rmdir()
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.mark.skipif(SCALE == 1, reason="takes long: make faults")
def test_a_full_disk_costs_nothing_but_time(small_disk: Path, tmp_path: Path, plan: Plan) -> None:
    server = OwnServer(small_disk / "server", max_wal_size="64MB", shared_buffers="16MB")

    assert server.data_directory.is_relative_to(small_disk)

    def fill(scene: Scene) -> None:
        ballast = small_disk / "ballast"
        _fill(ballast)
        scene.pause(3.0)
        ballast.unlink()
        eventually(server.start, what="the server being up, if that was too much for it")

    try:
        verdict = drills.run(tmp_path, server.url, replace(plan, crashes=False), fill)
    finally:
        server.remove()

    assert verdict.violations == []


def _fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return
