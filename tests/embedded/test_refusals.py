"""What can't work says why, and what to do; and touches nobody's data."""

import os
import re
from pathlib import Path

import pytest

from horsies import embedded
from horsies.embedded import binaries
from horsies.errors import EmbeddedError, ErrorCode

NO_SYNC = {"fsync": "off"}


def refusal(home: Path, **arguments) -> EmbeddedError:
    with pytest.raises(EmbeddedError) as caught:
        embedded.ensure(home, **arguments)
    return caught.value


@pytest.fixture
def no_wheels(monkeypatch):
    monkeypatch.setattr(binaries, "WHEEL", "no_such_wheel")


@pytest.fixture
def no_binaries(monkeypatch, no_wheels, tmp_path):
    monkeypatch.setattr(binaries, "SYSTEM", ())
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def data(new):
    """A data directory that somebody else put into a home of ours."""
    data = new / "data"
    data.mkdir(parents=True, mode=0o711)
    if os.geteuid() == 0:
        new.chmod(0o711)
        os.chown(data, 65534, -1)
    return data


@pytest.mark.parametrize("value", ["production", " Production "])
def test_production_gets_no_embedded_server(shared_home, monkeypatch, value):
    monkeypatch.setenv("HORSIES_ENV", value)

    error = refusal(shared_home)

    assert error.code is ErrorCode.EMBEDDED_REFUSED
    assert "HORSIES_DATABASE_URL" in (error.help_text or "")


def test_without_binaries_the_error_names_both_remedies(new, no_binaries):
    error = refusal(new)

    assert error.code is ErrorCode.EMBEDDED_NO_BINARIES
    assert 'pip install "/path/to/horsies[local]"' in (error.help_text or "")
    assert "HORSIES_DATABASE_URL" in (error.help_text or "")


def test_a_folder_of_other_files_is_refused_and_left_alone(new, data):
    (data / "diary.txt").write_text("dear diary")

    error = refusal(new)

    assert error.code is ErrorCode.EMBEDDED_DATA_DIRECTORY
    assert error.message == f"the data directory {data} is not empty and not a PostgreSQL data directory"
    assert [path.name for path in data.iterdir()] == ["diary.txt"]
    assert (data / "diary.txt").read_text() == "dear diary"


def test_data_of_a_version_that_is_not_installed_is_refused(new, data):
    (data / "PG_VERSION").write_text("9.6\n")
    (new / "password").write_text("x")

    error = refusal(new)

    assert error.code is ErrorCode.EMBEDDED_DATA_DIRECTORY
    assert "PostgreSQL 9" in error.message
    assert any(re.match(r"found PostgreSQL \d+\.\d+ in /", note) for note in error.notes)


def test_data_without_its_password_is_refused(new, data):
    (data / "PG_VERSION").write_text("18\n")

    error = refusal(new)

    assert error.code is ErrorCode.EMBEDDED_DATA_DIRECTORY
    assert str(new / "password") in error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_data_of_another_user_is_refused(new, data):
    (data / "PG_VERSION").write_text("18\n")
    os.chown(data, 12345, 12345)

    error = refusal(new)

    assert error.code is ErrorCode.EMBEDDED_DATA_DIRECTORY
    assert "belongs to user 12345" in error.message


def test_an_empty_data_directory_is_as_good_as_none(new, data):
    server = embedded.ensure(new, settings=NO_SYNC)

    assert (server.started, server.data_dir) == (True, data)


def test_a_home_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    error = refusal(tmp_path / "file" / "home")

    assert error.code is ErrorCode.EMBEDDED_DATA_DIRECTORY


def test_a_read_only_home_is_refused_with_both_remedies(others_home, scripts):
    others_home.parent.chmod(0o555)

    answer = scripts.run(
        others_home,
        """
        try:
            embedded.ensure(home)
        except EmbeddedError as error:
            print(error.code, error.help_text)
        """,
        ordinary=True,
    )

    assert answer.startswith("HRS-403")
    assert "HORSIES_HOME" in answer
    assert "HORSIES_DATABASE_URL" in answer


def test_a_failed_start_shows_the_servers_own_words_and_can_be_mended(home):
    error = refusal(home, settings={**NO_SYNC, "no_such_setting": "1"})

    assert error.code is ErrorCode.EMBEDDED_START_FAILED
    assert any("no_such_setting" in note for note in error.notes)
    assert "server.log" in (error.help_text or "")
    assert embedded.ensure(home, settings=NO_SYNC).started


def test_data_is_opened_by_binaries_of_its_own_version_only(new, monkeypatch, tmp_path):
    marker = tmp_path / "verified"
    preferred = next(binaries.available(None, marker)).major
    with monkeypatch.context() as patched:
        patched.setattr(binaries, "WHEEL", "no_such_wheel")
        on_system = {found.major for found in binaries.available(None, marker)} - {preferred}
        if not on_system:
            pytest.skip("needs a second version of PostgreSQL on this machine")
        first = embedded.ensure(new, settings=NO_SYNC)
        embedded.stop(new)

    second = embedded.ensure(new, settings=NO_SYNC)

    assert second.version == first.version
    assert binaries.major_version(second.version) in on_system
