"""No piece of a password shows in an error, a log line or what a command prints, however badly a URL is written."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable

import psycopg
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.cli import horsies as command_line
from horsies.config import WorkerConfig
from horsies.db.connection import connect, explain_connection_error
from horsies.errors import HorsiesError

# Nobody listens there, so that a URL that is read is refused at once.
NOBODY = "127.0.0.1:1"

# The parts of a failed send that differ from one send to the next: ids, times and digests.
_VARYING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|datetime\.datetime\([^)]*\)|\b[0-9a-f]{64}\b"
)

# Ways in which people write a password into a database URL, some of which are none.
FORMS: list[Callable[[str], str]] = [
    lambda password: f"postgresql://ann:{password}@{NOBODY}/app",
    lambda password: f"postgres://ann:{password}@{NOBODY}",
    lambda password: f"postgresql+psycopg://ann:{password}@{NOBODY},127.0.0.1:2/app?target_session_attrs=any",
    lambda password: f"postgresql://ann:{password}@{NOBODY}/app?options=-cx%3Dy",
    lambda password: f"postgresql:/ann:{password}@{NOBODY}/app",
    lambda password: f"ann:{password}@{NOBODY}/app",
    lambda password: f"mysql://ann:{password}@{NOBODY}/app",
    lambda password: f"host=127.0.0.1 port=1 user=ann password={password}",
    lambda password: f"host=127.0.0.1 port=1 user=ann password='{password}' dbname=app",
]


def told(url: str) -> str:
    """Return everything that is said about a database at this URL, which cannot be used."""
    said: list[str] = []
    for make in (
        lambda: PostgresConfig(database_url=url),
        lambda: PostgresConfig(database_url="postgresql://db/app", session_database_url=url),
        lambda: AppConfig.for_database_url(url),
        lambda: WorkerConfig(dsn=url),
    ):
        try:
            said.append(repr(make()))
        except HorsiesError as error:
            said += [str(error), repr(error)]
    try:
        config = PostgresConfig(database_url=url)
    except HorsiesError:
        return "\n".join(said)
    try:
        asyncio.run(connect(config))
    except HorsiesError as error:
        said.append(str(error))
    except psycopg.OperationalError as error:
        said += [
            str(error),
            str(explain_connection_error(error, config)),
            *traceback.format_exception(explain_connection_error(error, config)),
        ]
    return "\n".join(said)


def pieces(password: str, reference: str) -> set[str]:
    """Return the fragments of a password that would give it away: those that are not said of any other one, too."""
    found = {password[start : start + 3] for start in range(len(password) - 2)}
    return {piece for piece in found if piece not in reference}


def disguised(password: str) -> str:
    """Return a password of the same form, which meets the same errors, with other letters and digits."""
    return "".join("Ж" if each.isalnum() else each for each in password)


passwords = st.text(
    st.one_of(st.sampled_from("@:/?#&%= '\"\\,[]"), st.characters(exclude_categories=["Cs", "Cc"])),
    min_size=3,
    max_size=20,
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(password=passwords)
@example(password="p@ssword")
@example(password="p@ss#x")
@example(password="se cret")
@example(password="pa/ss@word")
@example(password="12/34@56")
@example(password="x@y?user=z")
@example(password="abc def=ghi")
def test_no_piece_of_a_password_is_told(form: Callable[[str], str], password: str) -> None:
    url = form(password)
    before, _, after = url.partition(password)
    reference = told(form("")) + told(form("a@b")) + told(form(disguised(password))) + before + after

    said = told(url)

    assert [piece for piece in pieces(password, reference) if piece in said] == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(password=passwords)
@example(password="p@ssword")
@example(password="se cret")
def test_no_command_or_log_line_tells_a_piece_of_a_password(
    password: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def said(password: str) -> str:
        caplog.clear()
        url = FORMS[0](password)
        runner = CliRunner()
        monkeypatch.setenv("HORSIES_DATABASE_URL", url)
        answers = [
            runner.invoke(command_line, ["tasks", "--database-url", url]),
            runner.invoke(command_line, ["migrate", "--check"]),
            runner.invoke(command_line, ["doctor"]),
        ]
        assert all(answer.exit_code for answer in answers)
        return "".join([answer.output + str(answer.exception) for answer in answers]) + sent() + caplog.text

    reference = said("") + said("a@b") + said(disguised(password)) + FORMS[0]("")

    assert [piece for piece in pieces(password, reference) if piece in said(password)] == []


def sent() -> str:
    """Return what a producer is told by a send that cannot work."""
    try:
        app = Horsies(AppConfig())

        @app.task("add")
        def add(x: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=x)

        return _VARYING.sub("…", repr(add.send(1)))
    except HorsiesError as error:
        return str(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:p@ss@db/app",
        "postgresql://ann:p/ss@db/app",
        "postgresql://ann:p@ss#x@db/app",
        "postgresql://ann:p@db:55x/app",
        "postgresql://ann:p@db/app?application_name=a@b",
    ],
)
def test_a_url_that_libpq_would_misread_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(HorsiesError) as refused:
        PostgresConfig(database_url=url)

    assert "%40" in (refused.value.help_text or "")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///app",
        "postgresql://ann:p%40ss@db:5432/app",
        "postgresql://ann:p?q#r@db/app",
        "postgresql://ann:pw@[::1]:5432,db:5433,other/app?sslmode=require",
        "postgresql://ann:pw@%2Fvar%2Frun/app",
        "postgresql://db/app?user=ann@tenant&password=p@ss",
        "postgresql://ann@db:/app",
    ],
)
def test_a_url_that_libpq_reads_as_it_was_meant_is_accepted(url: str) -> None:
    assert PostgresConfig(database_url=url).conninfo == url
