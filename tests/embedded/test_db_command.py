"""`horsies db` by hand."""

from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from horsies import embedded
from horsies.cli.db import db
from horsies.db.urls import with_database
from horsies.errors import ConfigurationError
from horsies.project import database_name, project_folder


@pytest.fixture
def run(monkeypatch):
    def run(home, *words):
        monkeypatch.setenv("HORSIES_HOME", str(home))
        return CliRunner().invoke(db, words, catch_exceptions=False)

    return run


def test_a_server_is_started_shown_and_stopped_by_hand(home, run):
    start = run(home, "start")
    again = run(home, "start")
    shown = run(home, "status")
    stopped = run(home, "stop")

    assert start.exit_code == 0
    assert "stop it with `horsies db stop`" in start.stderr
    assert "runs as process" in again.stdout
    assert again.stdout.strip() in shown.stdout
    assert stopped.stdout == "stopped\n"
    assert embedded.status(home) is None


def test_nothing_running_is_exit_code_1(new, run):
    result = run(new, "status")

    assert (result.exit_code, result.stdout) == (1, "not running\n")
    assert run(new, "stop").stdout == "not running\n"
    assert not new.exists()


def test_the_url_alone_is_on_stdout_and_works(shared_home, shared, run):
    result = run(shared_home, "url")

    assert result.stdout == f"{with_database(shared.url, database_name(project_folder(Path.cwd())))}\n"
    with psycopg.connect(result.stdout.strip()):
        pass


def test_status_hides_the_password(shared_home, shared, run):
    result = run(shared_home, "status")

    assert str(shared.data_dir) in result.stdout
    assert "horsies:***@127.0.0.1" in result.stdout
    assert (shared_home / "password").read_text() not in result.output


def test_the_path_is_the_data_directory(shared_home, shared, run):
    assert run(shared_home, "path").stdout == f"{shared.data_dir}\n"


@pytest.mark.parametrize("word", ["start", "url"])
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_the_embedded_server_takes_no_part_in_replication(new, run, monkeypatch, word, scheme):
    monkeypatch.setenv("HORSIES_DATABASE_URL", f"{scheme}://ann:secret@db1,db2:5433/shop")

    with pytest.raises(ConfigurationError) as refused:
        run(new, word)

    assert "several PostgreSQL servers" in str(refused.value)
    assert "db1,db2:5433" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert embedded.status(new) is None
