"""Lines that are logged together look like lines that are logged one by one, whoever listens."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from select import PIPE_BUF

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.logs import TaskContext, TextFormatter, log_lines

LINES = ['{"kind":"completed"}', "a\x07b\x9b1m", "grün", ""]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.together")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.filters.clear()
    logger.disabled = False
    logger.setLevel(logging.NOTSET)


def listening(logger: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(TaskContext())
    logger.addHandler(handler)
    return stream


def messages(text: str) -> list[str]:
    """The lines without what stands before each: a time, and the level."""
    return [line.split("  INFO      ", 1)[1] for line in text.split("\n")[:-1]]


def test_many_lines_look_as_if_each_had_been_logged(logger: logging.Logger) -> None:
    together, apart = listening(logger, TextFormatter()), io.StringIO()
    log_lines(logger, LINES)

    logger.handlers.clear()
    apart = listening(logger, TextFormatter())
    for line in LINES:
        logger.info("%s", line)

    assert messages(together.getvalue()) == messages(apart.getvalue())
    assert len(messages(apart.getvalue())) == len(LINES)


def test_every_other_handler_gets_a_record_for_each(logger: logging.Logger, tmp_path: Path) -> None:
    theirs = listening(logger, logging.Formatter("%(name)s|%(levelname)s|%(message)s|%(task_id)s|"))
    file = logging.FileHandler(tmp_path / "log", delay=True)
    file.setFormatter(TextFormatter())
    logger.addHandler(file)
    deaf = listening(logger, TextFormatter())
    logger.handlers[-1].setLevel(logging.WARNING)

    log_lines(logger, ["one", "two"])
    file.close()

    assert theirs.getvalue() == "tests.together|INFO|one||\ntests.together|INFO|two||\n"
    assert messages((tmp_path / "log").read_text()) == ["one", "two"]
    assert deaf.getvalue() == ""


def test_what_a_logger_is_told_to_leave_out_is_left_out(logger: logging.Logger) -> None:
    stream = listening(logger, TextFormatter())
    logger.addFilter(lambda record: record.getMessage() != "two")
    log_lines(logger, ["one", "two", "three"])
    logger.setLevel(logging.WARNING)
    log_lines(logger, ["four"])
    logger.setLevel(logging.INFO)
    logger.disabled = True
    log_lines(logger, ["five"])

    assert messages(stream.getvalue()) == ["one", "three"]


def test_a_stream_that_cannot_be_written_stops_nobody(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = listening(logger, TextFormatter())
    stream.close()

    log_lines(logger, ["one"])

    assert "Logging error" in capsys.readouterr().err


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=3000), max_size=8))
def test_no_write_is_longer_than_a_pipe_takes_at_once_but_for_a_line_that_is(lines: list[str]) -> None:
    written: list[bytes] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text.encode())
            return len(text)

    logger = logging.Logger("tests.portions")
    handler = logging.StreamHandler(Stream())
    handler.setFormatter(TextFormatter())
    logger.addHandler(handler)

    log_lines(logger, lines)

    assert all(len(portion) <= PIPE_BUF or portion.count(b"\n") == 1 for portion in written)
    assert b"".join(written).count(b"\n") == len(lines)
