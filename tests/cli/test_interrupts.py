"""Ctrl-C ends every command at once and in order, in a real terminal, and the exit code says what happened."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.support.terminals import TerminalCommand

CTRL_C = "\x03"
MAIN_SCREEN = "\x1b[?1049l"
CURSOR_ON, CURSOR_OFF = "\x1b[?25h", "\x1b[?25l"


def terminal(place, *words: str) -> TerminalCommand:
    return TerminalCommand(words, place.folder, place.env)


@pytest.mark.parametrize("keys", [CTRL_C, "q", f"/{CTRL_C}"], ids=["ctrl-c", "q", "ctrl-c in the filter"])
def test_top_ends_and_restores_the_terminal(workplace, keys):
    with terminal(workplace, "top") as top:
        top.read_until("queues")
        assert not top.is_restored  # it reads single keys, so there is something to restore

        top.type(keys)

        assert top.wait() == 0
        assert top.is_restored
    assert MAIN_SCREEN in top.shown
    assert top.shown.rindex(CURSOR_ON) > top.shown.rindex(CURSOR_OFF)
    assert "Traceback" not in top.shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_top_restores_the_terminal_after_a_signal_too(workplace, number):
    with terminal(workplace, "top") as top:
        top.read_until("queues")
        top.process.send_signal(number)

        assert top.wait() == 0
        assert top.is_restored
    assert MAIN_SCREEN in top.shown


def test_watching_ends_without_an_error(workplace):
    with terminal(workplace, "info", "--watch") as info:
        info.read_until("there are no tasks")
        info.wait_until_it_reads()
        info.type(CTRL_C)

        assert info.wait() == 0
    assert "Abort" not in info.shown
    assert "Traceback" not in info.shown


def test_following_events_ends_without_an_error(workplace):
    workplace.write("app = Horsies()\n@app.task('t')\ndef t() -> TaskResult[None, TaskError]: ...\n")
    task = workplace.load().t
    with terminal(workplace, "events", "--follow", "--since=1h") as events:
        task.send().unwrap()
        events.read_until("queued")
        events.wait_until_it_reads()
        events.type(CTRL_C)

        assert events.wait() == 0
    assert "Traceback" not in events.shown


@pytest.fixture
def silent_server():
    """The port of a server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(
    "words", [["info"], ["tasks"], ["doctor"], ["migrate"], ["schedules", "list"]], ids=" ".join
)
def test_a_command_that_waits_for_the_database_is_interrupted_with_130(workplace, silent_server, words):
    url = f"postgresql://127.0.0.1:{silent_server.getsockname()[1]}/app"
    with terminal(workplace, *words, "--database-url", url) as command:
        connection, _ = silent_server.accept()
        with connection:
            command.type(CTRL_C)

            assert command.wait() == 130
    assert "Interrupted." in command.shown
    assert "Traceback" not in command.shown


def test_a_question_that_is_interrupted_deletes_nothing(workplace, db):
    db.execute(
        "INSERT INTO horsies_tasks (task_name, queue_name, status, live, completed_at, terminal_at, enqueued_at)"
        " VALUES ('t', 'default', 'COMPLETED', false, now(), now(), now())"
    )
    with terminal(workplace, "purge", "--older-than=0s") as purge:
        purge.read_until("[y/N]:")
        purge.wait_until_it_reads()
        purge.type(CTRL_C)

        assert purge.wait() == 1
    assert db.execute("SELECT count(*) AS n FROM horsies_tasks").fetchone()["n"] == 1
