"""Where drills are carried out one after another: a PostgreSQL server of their own, a fresh database for each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.faults import drill
from tests.faults.drill import Fault, Verdict
from tests.faults.scene import OwnServer, Plan


class Place:
    """Keeps the verdicts of all drills."""

    def __init__(self, server: OwnServer, folder: Path, seed: int) -> None:
        self.server = server
        self.verdicts: list[Verdict] = []
        self._random = Random(seed)
        self._folder = folder

    def drill(self, fault: Fault, times: int = 1, **settings: Any) -> Verdict:
        """Let a fault loose so many times; the settings are those of a `Plan`. Says what was broken."""
        name = f"drill_{uuid4().hex}"
        folder = self._folder / name
        folder.mkdir()
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        plan = Plan(seed=self._random.randrange(10**9), **settings)
        verdict = drill.run(folder, f"{self.server.url.rpartition('/')[0]}/{name}", plan, fault, times)
        for violation in verdict.violations:
            print("BROKEN:", violation, flush=True)
        self.verdicts.append(verdict)
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        if not verdict.violations:  # else its logs may tell why
            shutil.rmtree(folder)
        return verdict

    @property
    def broken(self) -> int:
        """How many promises were broken."""
        return sum(len(verdict.violations) for verdict in self.verdicts)


@contextmanager
def place(seed: int) -> Generator[Place]:
    """A server that writes everything to the disk, as it should."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-faults-"))
    folder.chmod(0o755)
    server = OwnServer(folder / "server", fsync="on")
    here = Place(server, folder, seed)
    try:
        yield here
    finally:
        server.remove()
        if here.broken:
            print(f"what was said and logged is in {folder}")
        else:
            shutil.rmtree(folder)
