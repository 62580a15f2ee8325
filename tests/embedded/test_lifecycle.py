"""Start, share, crash, restart: against real servers."""

import fcntl
import os
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import embedded

NO_SYNC = {"fsync": "off"}


def test_eight_processes_at_once_share_one_server(new, scripts):
    code = "server = embedded.ensure(home, settings={'fsync': 'off'}); print(server.pid, server.started)"

    answers = [scripts.result(process) for process in [scripts.spawn(new, code) for _ in range(8)]]

    pids = {answer.split()[0] for answer in answers}
    assert len(pids) == 1
    assert [answer.split()[1] for answer in answers].count("True") == 1


def test_attaching_finds_the_running_server_and_says_nothing(shared_home, shared):
    said: list[str] = []

    again = embedded.ensure(shared_home, announce=said.append)

    assert (again.pid, again.url, again.version, again.started) == (
        shared.pid,
        shared.url,
        shared.version,
        False,
    )
    assert said == []
    assert embedded.status(shared_home) == again


def test_a_start_is_announced_once_with_the_place_of_the_data(new):
    said: list[str] = []

    server = embedded.ensure(new, settings=NO_SYNC, announce=said.append)

    assert server.started
    assert said == [
        f"horsies: started an embedded PostgreSQL {server.version} for development; "
        f"data in {server.data_dir}; stop it with `horsies db stop`"
    ]


def test_a_stopped_server_is_gone_and_its_data_and_port_come_back(home, ask, eventually):
    first = embedded.ensure(home, settings=NO_SYNC)
    ask(first.url, "CREATE TABLE kept AS SELECT 42 AS answer")

    assert embedded.stop(home) is True

    assert embedded.status(home) is None
    eventually(lambda: not Path(f"/proc/{first.pid}/exe").exists(), "the postmaster to end")
    assert embedded.stop(home) is False
    second = embedded.ensure(home, settings=NO_SYNC)
    assert second.started
    assert second.url == first.url
    assert ask(second.url, "SELECT answer FROM kept") == 42


def test_a_server_outlives_the_kill_of_its_starter(home, scripts):
    starter = scripts.spawn(
        home,
        "print(embedded.ensure(home, settings={'fsync': 'off'}).pid, flush=True); time.sleep(60)",
    )
    pid = int(starter.stdout.readline())

    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()

    server = embedded.ensure(home)
    assert (server.pid, server.started) == (pid, False)


def test_a_start_that_lost_its_starter_is_waited_for(home, scripts, eventually):
    pid_file = embedded.data_directory(home) / "postmaster.pid"
    starter = scripts.spawn(home, "embedded.ensure(home, settings={'fsync': 'off'}); time.sleep(60)")
    eventually(pid_file.exists, "the postmaster to begin")

    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()

    server = embedded.ensure(home)
    assert server.pid == int(pid_file.read_text().split()[0])
    with psycopg.connect(server.url):
        pass


@pytest.fixture
def initdb(new, scripts, eventually):
    """The pids of an initdb that a process has just begun, and that process."""
    place = embedded.data_directory(new).parent
    starter = scripts.spawn(new, "embedded.ensure(home)")
    eventually(lambda: list(place.glob(".initdb-*/data/global")), "initdb to write")
    return processes_that_mention(next(place.glob(".initdb-*"))), starter


def processes_that_mention(path: Path) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if os.fsencode(path) in command:
            found.append(int(entry.parent.name))
    return found


def test_a_kill_during_initdb_leaves_nothing_behind(new, initdb):
    pids, starter = initdb
    for pid in (starter.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    starter.wait()

    server = embedded.ensure(new, settings=NO_SYNC)

    assert server.started
    assert list(server.data_dir.parent.glob(".initdb-*")) == []
    with psycopg.connect(server.url):
        pass


def test_an_initdb_that_lost_its_starter_keeps_the_lock_until_it_ends(new, initdb):
    pids, starter = initdb
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    starter.kill()
    starter.wait()

    try:
        with (new / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    server = embedded.ensure(new, settings=NO_SYNC)
    assert server.started
    assert list(server.data_dir.parent.glob(".initdb-*")) == []


def test_a_killed_postmaster_is_replaced_and_no_commit_is_lost(home, ask, eventually):
    first = embedded.ensure(home)
    ask(first.url, "CREATE TABLE kept AS SELECT 42 AS answer")

    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: embedded.status(home) is None, "the postmaster to die")
    second = embedded.ensure(home)

    assert second.started
    assert second.pid != first.pid
    assert ask(second.url, "SELECT answer FROM kept") == 42


def test_no_second_server_runs_while_a_process_of_the_killed_one_lingers(home, eventually):
    first = embedded.ensure(home, settings=NO_SYNC)
    log = first.data_dir.parent / "server.log"
    found: list[embedded.Server] = []
    client = psycopg.connect(first.url)
    backend = client.info.backend_pid
    try:
        os.kill(backend, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: embedded.status(home) is None, "the postmaster to die")
        starter = threading.Thread(target=lambda: found.append(embedded.ensure(home, settings=NO_SYNC)))
        starter.start()
        eventually(lambda: "is still in use" in log.read_text(), "PostgreSQL to notice the survivor")
        assert found == []
    finally:
        os.kill(backend, signal.SIGKILL)
        client.close()

    starter.join(timeout=30)
    assert [server.url for server in found] == [first.url]


def test_a_pid_file_that_names_another_server_is_no_server(home, shared, ask):
    first = embedded.ensure(home, settings=NO_SYNC)
    pid_file = first.data_dir / "postmaster.pid"
    stale = pid_file.read_text().replace(str(first.pid), str(shared.pid), 1)
    embedded.stop(home)
    pid_file.write_text(stale)

    assert embedded.status(home) is None
    assert embedded.stop(home) is False
    assert embedded.ensure(home, settings=NO_SYNC).started
    assert ask(shared.url, "SELECT 1") == 1


SUBREAPER = """
# orphans become our children, as they do with PID 1 of a container
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
first = embedded.ensure(home, settings={'fsync': 'off'})
os.kill(first.pid, signal.SIGKILL)
deadline = time.monotonic() + 20
while pathlib.Path(f'/proc/{first.pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z':
    assert time.monotonic() < deadline
"""


def test_a_zombie_postmaster_of_our_own_is_reaped_and_replaced(home, scripts):
    second, reaped = scripts.run(
        home,
        SUBREAPER
        + """
second = embedded.ensure(home, settings={'fsync': 'off'})
print(second.started, not pathlib.Path(f'/proc/{first.pid}').exists())
""",
    ).split()

    assert (second, reaped) == ("True", "True")


def test_a_zombie_postmaster_that_nobody_reaps_is_replaced(home, scripts):
    parent = scripts.spawn(home, SUBREAPER + "print(first.pid, flush=True); sys.stdin.readline()")
    zombie = int(parent.stdout.readline())

    server = embedded.ensure(home, settings=NO_SYNC)

    assert server.started
    assert Path(f"/proc/{zombie}").exists()


def test_a_taken_port_is_passed_over(home, ask):
    port = urlsplit(embedded.ensure(home, settings=NO_SYNC).url).port
    embedded.stop(home)

    with socket.create_server(("127.0.0.1", port)):
        server = embedded.ensure(home, settings=NO_SYNC)

    assert urlsplit(server.url).port != port
    assert ask(server.url, "SELECT 1") == 1


def test_the_log_is_trimmed_at_a_start(home):
    log = embedded.data_directory(home).parent / "server.log"
    log.write_text("chatter\n" * 1_000_000 + "the end\n")

    embedded.ensure(home, settings=NO_SYNC)

    assert log.stat().st_size < 300_000
    assert "the end" in log.read_text()


@pytest.mark.parametrize("name", ["$HOME `id` \"a, b\" 'c'", "long/" * 30 + "path"], ids=["odd", "long"])
def test_any_path_will_do_for_a_home(home, ask, name):
    inner = home / name
    try:
        server = embedded.ensure(inner, settings=NO_SYNC)

        assert ask(server.url, "SELECT 1") == 1
        assert embedded.ensure(inner).pid == server.pid
    finally:
        embedded.stop(inner, remove=True)
    assert embedded.status(inner) is None


def test_a_link_to_another_folder_is_followed_and_its_neighbours_are_spared(new):
    elsewhere = new.parent / "elsewhere"
    elsewhere.mkdir()
    new.mkdir()
    (elsewhere / "diary.txt").write_text("dear diary")
    (new / "data").symlink_to(elsewhere / "pgdata")

    server = embedded.ensure(new, settings=NO_SYNC)
    embedded.stop(new, remove=True)

    assert server.data_dir == elsewhere / "pgdata"
    assert (elsewhere / "diary.txt").read_text() == "dear diary"
    assert not server.data_dir.exists()
