"""`horsies crashtest`: the points at which a durable function was killed, and the step that did not survive it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import misused, refused

APP = """
import json
from dataclasses import dataclass
import psycopg

app = Horsies()

@dataclass
class Order:
    number: int

def book(connection, order: Order) -> int:
    connection.execute("INSERT INTO bookings VALUES (%s)", [order.number])
    return order.number


@app.task("ship", idempotent=True)
def ship(order: Order) -> str:
    t = current_task()
    t.transact("book", book, order)
    return t.wait_for("approved", str)

@app.task("careless", idempotent=True)
def careless(path: str) -> None:
    current_task().step("note", note, path)

def note(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")

def create(url):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE bookings (number int)")

def bookings(url):
    with psycopg.connect(url) as connection:
        return connection.execute("DELETE FROM bookings RETURNING number").fetchall()

def notes():
    file = Path("notes")
    found = file.read_text()
    file.unlink()
    return found
"""


@pytest.fixture
def project(workplace, server_url):
    workplace.write(APP)
    workplace.env["HORSIES_TEST_DATABASE_URL"] = server_url
    return workplace


def test_a_function_that_survives_every_kill(project):
    result = project.run(
        "crashtest",
        "app:ship",
        '{"number": 7}',
        "--signal",
        'approved="yes"',
        "--setup=app:create",
        "--check=app:bookings",
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "ok: killed before step 'book'",
        "ok: killed in step 'book', after its function had returned and before its value was stored",
        "ok: killed after step 'book'",
        "ok: killed before step 'approved'",
        "ok: killed after step 'approved'",
        "ship survives 5 kills",
    ]


def test_the_step_whose_effect_happens_twice_is_named(project):
    result = project.run("crashtest", "app:careless", '"notes"', "--check=app:notes")

    assert result.returncode == 1
    assert "FAILED: killed in step 'note'" in result.stderr
    assert "'xx' instead of 'x'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_line_that_makes_no_sense_is_refused(project):
    misused(project.run("crashtest", "app"), "'app' is not of the form package.module:function")
    misused(project.run("crashtest", "app:nothing"), "app has no function 'nothing'")
    misused(project.run("crashtest", "app:ship", "ann"), "'ann' is not JSON")
    misused(project.run("crashtest", "app:ship", "1", "--signal=approved"), "not of the form NAME=JSON")
    refused(project.run("crashtest", "app:note"), "HRS-206", "'note' is no task")
    refused(project.run("crashtest", "nowhere:ship"), "HRS-206", "there is no module 'nowhere'")
    waiting = project.run("crashtest", "app:ship", '{"number": 7}', "--setup=app:create")
    assert waiting.returncode == 1
    assert "waits in step 'approved'" in waiting.stderr
