"""The pure parts: where a home is, what a pid file says, who may pass, which version."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.embedded import home_directory
from horsies.embedded.binaries import major_version
from horsies.embedded.cluster import Postmaster, parse_pid_file
from horsies.embedded.paths import LONGEST_SOCKET, ServerPaths, ServerUser, can_reach

READY = "4711\n/data\n1700000000\n23456\n/run\n127.0.0.1\n 123 456\nready   \n"


@pytest.mark.parametrize(
    ("env", "home"),
    [
        ({"HORSIES_HOME": "/a", "XDG_DATA_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"HORSIES_HOME": "", "XDG_DATA_HOME": "/b", "HOME": "/c"}, "/b/horsies"),
        ({"HOME": "/c"}, "/c/.local/share/horsies"),
    ],
)
def test_the_home_is_found_in_the_environment(env, home):
    assert home_directory(env) == Path(home)


def test_without_an_environment_the_home_is_the_users_own():
    assert home_directory({}) == Path.home() / ".local/share/horsies"


def test_a_pid_file_tells_pid_and_port_of_a_ready_server():
    assert parse_pid_file(READY) == Postmaster(pid=4711, port=23456, ready=True)


@pytest.mark.parametrize("state", ["starting", "stopping", "standby "])
def test_a_server_in_another_state_is_not_ready(state):
    assert parse_pid_file(READY.replace("ready   ", state)) == Postmaster(pid=4711, port=23456, ready=False)


@given(st.integers(0, len(READY) - len("ready   \n")))
def test_a_pid_file_in_the_making_is_never_ready(length):
    found = parse_pid_file(READY[:length])

    assert found is None or not found.ready


@given(st.text())
def test_any_text_is_a_pid_file_or_none(text):
    found = parse_pid_file(text)

    assert found is None or found.pid > 0


@pytest.mark.parametrize(("version", "major"), [("18.6", 18), ("15\n", 15), ("19beta1", 19), ("9.6.24", 9)])
def test_the_major_version_is_the_first_number(version, major):
    assert major_version(version) == major


def test_what_is_no_version_is_refused():
    with pytest.raises(ValueError, match="not a PostgreSQL version"):
        major_version("eighteen")


@pytest.mark.parametrize(
    ("mode", "as_owner", "as_group", "as_other"),
    [
        (0o700, True, False, False),
        (0o710, True, True, False),
        (0o711, True, True, True),
        (0o611, False, True, True),
        (0o701, True, False, True),
    ],
)
def test_the_narrowest_role_that_fits_decides_who_may_pass(new, mode, as_owner, as_group, as_other):
    folder = new.parent / "folder"
    folder.mkdir()
    folder.chmod(mode)
    uid, gid = folder.stat().st_uid, folder.stat().st_gid

    assert can_reach(folder, ServerUser("owner", uid, gid)) is as_owner
    assert can_reach(folder, ServerUser("member", uid + 7, gid)) is as_group
    assert can_reach(folder, ServerUser("other", uid + 7, gid + 7)) is as_other


def test_one_closed_folder_on_the_way_is_enough(tmp_path):
    closed = tmp_path / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)

    assert not can_reach(closed / "open", ServerUser("other", os.geteuid() + 7, os.getegid() + 7))


@given(st.integers(1, 200))
def test_a_socket_path_is_never_too_long(length):
    paths = ServerPaths(home=Path("/home"), data=Path("/" + "x" * length) / "data", user=None)

    if paths.sockets is not None:
        assert len(os.fsencode(paths.sockets / ".s.PGSQL.65535")) <= LONGEST_SOCKET
    else:
        assert length > 80
