"""The PostgreSQL of the operating system, older than the one that comes with us, will do as well."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import Horsies, PostgresConfig
from horsies.db.migrations import LATEST, migrate
from tests.pg.conftest import define_add
from tests.pg.hands import Hands
from tests.pg.schema import SNAPSHOT, describe

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    """A server of the oldest PostgreSQL on this machine, on a socket of its own, run by nobody when we are root."""
    if not INSTALLED:
        pytest.skip("no PostgreSQL in /usr/lib/postgresql")
    programs = INSTALLED[0].parent
    folder = Path(tempfile.mkdtemp(prefix="horsies-old-"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(folder / "data"), *arguments]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **account
        )
        assert done.returncode == 0, done.stdout + done.stderr

    settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        run("initdb", "--auth=trust", "--username=horsies", "--no-sync", "--encoding=UTF8", "--locale=C")
        run("pg_ctl", "start", "-w", "-o", settings, "-l", str(folder / "log"))
        try:
            yield f"postgresql://horsies@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def test_an_older_server_carries_tasks_from_send_to_result(
    make_app: Callable[..., Horsies], hire: Callable[[], Hands], database_url: str
) -> None:
    assert asyncio.run(migrate(PostgresConfig(database_url=database_url))) == LATEST
    assert describe(database_url) == SNAPSHOT.read_text()
    add = define_add(make_app())
    hands = hire()
    hands.register(waiting=True)

    good, bad = add.send_many([(1,), (2,)]).unwrap()
    held = hands.run_next()
    assert hands.fail(held[1:], delay_seconds=0) == {bad.task_id: True}
    assert hands.complete(held[:1]) == 1
    hands.fail(hands.run_next())

    assert good.get(timeout_ms=10_000).unwrap() == 5
    assert bad.get(timeout_ms=10_000).unwrap_err().error_code == "BROKEN"
    info = bad.info(include_attempts=True).unwrap()
    assert info is not None
    assert [attempt.attempt for attempt in info.attempts or ()] == [2, 1]


def test_an_older_server_has_the_rest_too(
    make_app: Callable[..., Horsies], hire: Callable[[], Hands], database_url: str
) -> None:
    app = make_app()
    add = define_add(app, unique="args")
    hands = hire()
    first = add.send(7).unwrap()
    assert add.send(7).unwrap().task_id == first.task_id
    (held,) = hands.claim()
    assert hands.start([held]) == {held.id}
    assert hands.release() == 1
    hands.complete(hands.run_next())
    add.with_options(good_until=datetime.now(UTC) - timedelta(seconds=1)).send(8).unwrap()
    assert hands.expire() == 1
    add.schedule(600, 9).unwrap()
    seconds = hands.next_due()
    assert seconds is not None
    assert 500 < seconds <= 600

    with psycopg.connect(database_url, autocommit=True) as connection:
        row = connection.execute(
            """SELECT horsies_send('add', '{"x": 1}', idempotency_key => 'k')"""
        ).fetchone()
        assert row is not None
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            connection.execute("UPDATE horsies_tasks SET status = 'FAILED' WHERE status = 'COMPLETED'")
    hands.complete(hands.run_next())
    assert app.handle(row[0], add).get(timeout_ms=10_000).unwrap() == 5
