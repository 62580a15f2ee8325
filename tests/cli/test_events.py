"""`horsies events`, as people and programs read them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Workplace

LIFE = (
    "INSERT INTO horsies_tasks (task_name) VALUES ('send')",
    """UPDATE horsies_tasks SET status = 'RUNNING', started_at = now(), claimed_by_worker_id = gen_random_uuid()
        WHERE live AND status = 'PENDING'""",
    """UPDATE horsies_tasks SET live = false, status = 'FAILED', terminal_at = now(), error_code = 'BOUNCED',
              result = '{"err":{"error_code":"BOUNCED","message":"no such box","data":null,"exception":null}}'
        WHERE live""",
)


def fail_one(db: psycopg.Connection[Any]) -> None:
    for step in LIFE:
        db.execute(step)
    db.execute("SELECT pg_sleep(0.25)")  # events of the last fifth of a second are not shown yet


def test_events_are_lines_for_people_and_objects_for_programs(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    fail_one(db)

    said = workplace.run("events")
    programs = workplace.run("events", "--json", "--since=1h", "--kind=failed", "--name=send")

    assert (said.returncode, said.stderr) == (0, "")
    queued, processing, failed = said.stdout.splitlines()
    assert [line.split()[2] for line in (queued, processing, failed)] == ["queued", "processing", "failed"]
    assert failed.endswith("send  [default]  BOUNCED: no such box")
    assert "\x1b" not in said.stdout
    (event,) = map(json.loads, programs.stdout.splitlines())
    assert {event[key] for key in ("kind", "task_name", "error_code")} == {"failed", "send", "BOUNCED"}
    assert event["id"].startswith(event["task_id"])


def test_a_follower_outlives_the_connection_and_ends_quietly(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    def lines(name: str = "out") -> list[str]:
        return (workplace.folder / name).read_text().splitlines()

    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        command = [sys.executable, "-m", "horsies", "events", "--follow", "--json", "--since=1m"]
        with open(workplace.folder / "out", "w+b") as out, open(workplace.folder / "err", "w+b") as err:
            follower = subprocess.Popen(
                command, cwd=workplace.folder, env=workplace.env, stdout=out, stderr=err
            )
        try:
            fail_one(db)
            eventually(lambda: len(lines()) == 3, what="the first events")
            proxy.refusing = True
            proxy.cut()
            eventually(lambda: "waiting for it" in "".join(lines("err")), what="a word about the loss")
            fail_one(db)
            proxy.refusing = False
            eventually(lambda: len(lines()) == 6, what="the events since then")
            follower.send_signal(signal.SIGINT)
            code = follower.wait(10)
        finally:
            follower.kill()
            follower.wait()

    assert code == 0
    assert "Traceback" not in "".join(lines("err"))
    assert "the database is back; going on from" in "".join(lines("err"))
    assert len({json.loads(line)["id"] for line in lines()}) == 6


def test_a_sink_continues_where_it_stopped_and_repeats_what_was_not_stored(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    def read(*arguments: str) -> list[str]:
        result = workplace.run("events", "--json", "--sink=logs", *arguments)
        assert (result.returncode, result.stderr) == (0, "")
        return [json.loads(line)["id"] for line in result.stdout.splitlines()]

    fail_one(db)
    first = read("--since=1m")
    nothing_new = read("--since=1m")
    fail_one(db)
    second = read()
    db.execute("UPDATE horsies_event_cursors SET position = position - interval '1 minute'")
    repeated = read()

    assert (len(first), nothing_new, len(second)) == (3, [], 3)
    assert repeated == first + second
    rows = db.execute("SELECT sink FROM horsies_event_cursors").fetchall()
    assert [row["sink"] for row in rows] == ["logs"]


def test_without_a_sink_no_position_is_stored(workplace: Workplace, db: psycopg.Connection[Any]) -> None:
    fail_one(db)

    assert workplace.run("events", "--json").stdout == workplace.run("events", "--json").stdout != ""
    assert db.execute("SELECT FROM horsies_event_cursors").fetchall() == []


def test_what_the_reader_did_not_take_is_printed_again(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    fail_one(db)
    command = [sys.executable, "-m", "horsies", "events", "--json", "--since=1m", "--sink=logs"]
    with subprocess.Popen(command, cwd=workplace.folder, env=workplace.env, stdout=subprocess.PIPE) as gone:
        assert gone.stdout is not None
        gone.stdout.close()
        gone.wait(30)

    again = workplace.run("events", "--json", "--since=1m", "--sink=logs")

    assert len(again.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["events"], ["events", "--follow", "--since=1m"], ["events", "--json"], ["tasks"], ["tasks", "--json"], ["info"],
        ["doctor"], ["schedules", "list"], ["migrate", "--sql"], ["explain", "HRS-413"], ["--help"], ["tasks", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_whose_reader_has_gone_ends_without_a_word(
    workplace: Workplace, db: psycopg.Connection[Any], words: list[str]
) -> None:
    fail_one(db)
    with subprocess.Popen(
        [sys.executable, "-m", "horsies", *words],
        cwd=workplace.folder,
        env=workplace.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        command.stdout = None
        try:
            _, said = command.communicate(timeout=30)
        finally:
            command.kill()

    assert (command.returncode, said) == (141, b"")


def test_what_cannot_be_understood_is_said() -> None:
    from click.testing import CliRunner

    from horsies.cli import horsies

    result = CliRunner().invoke(horsies, ["events", "--since=soon"])

    assert result.exit_code == 2
    assert "'soon' is no duration" in result.output
