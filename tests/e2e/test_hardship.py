"""Whatever a task does to the process that it runs in, it gets an outcome, and the worker runs the next task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from horsies import OperationalErrorCode, OutcomeCode, TaskResult
from horsies.executor import protocol
from tests.e2e.observing import Db, attempts, children, is_alive, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import multiprocessing
import resource
import stat
import tempfile
import threading

app = Horsies(AppConfig.for_database_url(URL))

def wait_until_exists(path):
    while not Path(path).exists():
        time.sleep(0.005)

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("die")
def die() -> TaskResult[int, TaskError]:
    os._exit(9)

@app.task("spin", timeout_ms=1_000)
def spin(begun: str | None = None) -> TaskResult[int, TaskError]:
    if begun is not None:
        Path(begun).touch()
    while True:
        pass

@app.task("reset_all_signals")
def reset_all_signals(path: str) -> TaskResult[int, TaskError]:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    wait_until_exists(path)
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    wait_until_exists(path)
    return TaskResult(ok=os.getpid())

# What it may do to its process

@app.task("close_standard_files")
def close_standard_files() -> TaskResult[int, TaskError]:
    os.closerange(0, 3)
    return TaskResult(ok=os.getpid())

@app.task("flood")
def flood() -> TaskResult[int, TaskError]:
    end = os.lseek(1, 0, os.SEEK_CUR)
    for _ in range(50):
        sys.stdout.write("x" * 1_000_000)
        sys.stderr.write("x" * 1_000_000)
    os.ftruncate(1, end)  # both are the test's log file, where nobody wants to keep this
    os.lseek(1, end, os.SEEK_SET)
    return TaskResult(ok=os.getpid())

@app.task("leave_the_folder")
def leave_the_folder() -> TaskResult[int, TaskError]:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    return TaskResult(ok=os.getpid())  # in a folder that does not exist

@app.task("forget_the_environment")
def forget_the_environment() -> TaskResult[int, TaskError]:
    os.environ.clear()
    return TaskResult(ok=os.getpid())

@app.task("lose_the_streams")
def lose_the_streams() -> TaskResult[int, TaskError]:
    sys.stdout = sys.stderr = None
    return TaskResult(ok=os.getpid())

@app.task("close_the_streams")
def close_the_streams() -> TaskResult[int, TaskError]:
    sys.stdout.close()
    return TaskResult(ok=os.getpid())

@app.task("ignore_all_signals")
def ignore_all_signals() -> TaskResult[int, TaskError]:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return TaskResult(ok=os.getpid())

@app.task("leave_threads")
def leave_threads() -> TaskResult[int, TaskError]:
    threading.Thread(target=time.sleep, args=(600,)).start()
    threading.Thread(target=chatter, daemon=True).start()
    return TaskResult(ok=os.getpid())

def chatter():
    while True:
        print("still here")
        time.sleep(0.001)

@app.task("use_processes")
def use_processes() -> TaskResult[int, TaskError]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    return TaskResult(ok=os.getpid())

@app.task("return_twice")
def return_twice() -> TaskResult[int, TaskError]:
    os.fork()
    return TaskResult(ok=os.getpid())

# What it may raise

class Holding(Exception):
    pass

class Unspeakable(Exception):
    def __repr__(self):
        raise KeyboardInterrupt

@app.task("raise_lock")
def raise_lock() -> TaskResult[int, TaskError]:
    raise Holding(threading.Lock(), lambda: None, sys._getframe())

@app.task("raise_unspeakable")
def raise_unspeakable() -> TaskResult[int, TaskError]:
    raise Unspeakable("words")

@app.task("hoard")
def hoard() -> TaskResult[int, TaskError]:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 50_000_000, resource.RLIM_INFINITY))
    heap = []
    while True:
        heap.append(b"x" * 1_000)

# What may cost its process

@app.task("close_all_files")
def close_all_files() -> TaskResult[int, TaskError]:
    os.closerange(3, 256)
    return TaskResult(ok=1)

@app.task("become_a_daemon")
def become_a_daemon() -> TaskResult[int, TaskError]:
    if os.fork():
        os._exit(0)
    os.setsid()
    return TaskResult(ok=os.getpid())

@app.task("kill_the_parent")
def kill_the_parent() -> TaskResult[int, TaskError]:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

@app.task("write_garbage")
def write_garbage(garbage: str) -> TaskResult[int, TaskError]:
    sockets = [number for number in range(3, 256) if is_socket(number)]
    assert sockets
    for number in sockets:
        os.write(number, bytes.fromhex(garbage))
    return TaskResult(ok=os.getpid())

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

# What it may leave behind

@app.task("fork_a_daemon")
def fork_a_daemon(path: str) -> TaskResult[int, TaskError]:
    if os.fork() == 0:
        os.setsid()
        Path(path).write_text(f"{os.getpid()}\\n")
        time.sleep(600)
        os._exit(0)
    wait_until_exists(path)
    return TaskResult(ok=os.getpid())

@app.task("start_a_daemon")
def start_a_daemon(path: str) -> TaskResult[int, TaskError]:
    os.system(f"setsid sh -c 'echo $$ > {path}.new; mv {path}.new {path}; exec sleep 600' &")
    wait_until_exists(path)
    return TaskResult(ok=os.getpid())

@app.task("give_much")
def give_much() -> TaskResult[str, TaskError]:
    return TaskResult(ok="x" * 100_000_000)
"""

SPOILING = [
    *("close_standard_files", "lose_the_streams", "close_the_streams", "flood", "leave_the_folder"),
    *("forget_the_environment", "ignore_all_signals", "leave_threads", "use_processes"),
]
GARBAGE = {
    "ones": b"\xff" * 64,
    "zeros": bytes(64),
    "a few bytes": bytes(3),
    "much": b"garbage " * 12_500,
    "an unknown message": protocol.frame([[9, "what"]]),
    "an unknown ticket": protocol.frame([protocol.Outcome(1_000_000, True, '{"ok":1}', 0.0)]),
    "unknown tickets": protocol.frame([protocol.Returned([1_000_000])]),
    "a second hello": protocol.frame([protocol.Hello(4_194_305, 0.0)]),  # a pid that no process can have
}


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1")


@pytest.fixture(autouse=True)
def _the_worker_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """It runs the next task, and the one after that in a fresh process; so the next test has one, too."""
    yield
    if "office" in request.fixturenames:
        office: Office = request.getfixturevalue("office")
        assert _pid(office)
        assert _error(office, "die") is OperationalErrorCode.WORKER_CRASHED
        assert _pid(office)
        assert office.worker.process.poll() is None
        eventually(lambda: len(children(office.worker.pid)) == 2, what="a child and a spare")


def _run(office: Office, task: str, *arguments: str) -> TaskResult[Any, Any]:
    return getattr(office.tasks, task).send(*arguments).unwrap().get(20_000)


def _pid(office: Office) -> int:
    return _run(office, "pid").ok_value


def _error(office: Office, task: str, *arguments: str) -> object:
    return _run(office, task, *arguments).err_value.error_code


@pytest.mark.parametrize("task", SPOILING)
def test_a_task_that_spoils_its_process_ends_well_and_so_does_the_next(office: Office, task: str) -> None:
    before = _pid(office)

    assert _run(office, task) == TaskResult(ok=before)

    assert [_pid(office) for _ in range(3)] == [before] * 3


def test_a_fork_that_returns_as_well_does_not_count(office: Office, shared_db: Db) -> None:
    before = _pid(office)
    handle = office.tasks.return_twice.send().unwrap()

    assert handle.get(20_000) == TaskResult(ok=before)

    assert len(attempts(shared_db, handle)) == 1
    assert [_pid(office) for _ in range(5)] == [before] * 5
    eventually(lambda: len(children(office.worker.pid)) == 2, what="the fork being gone")


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("raise_lock", "Holding: (<unlocked _thread.lock"),
        ("raise_unspeakable", "Unspeakable: words"),
        ("hoard", "MemoryError: "),
    ],
)
def test_an_exception_that_is_hard_to_tell_is_told(office: Office, task: str, told: str) -> None:
    before = _pid(office)

    error = _run(office, task).err_value

    assert error.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert error.message.startswith(told)
    assert error.exception["type"] == told.partition(":")[0]
    assert _pid(office) == before


@pytest.mark.parametrize("task", ["close_all_files", "become_a_daemon", "kill_the_parent"])
def test_a_task_that_leaves_its_worker_is_lost(office: Office, task: str) -> None:
    assert _error(office, task) is OperationalErrorCode.WORKER_CRASHED


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_task_that_writes_to_every_socket_is_lost_alone(office: Office, garbage: bytes) -> None:
    assert _error(office, "write_garbage", garbage.hex()) is OperationalErrorCode.WORKER_CRASHED


@pytest.fixture(params=["fork_a_daemon", "start_a_daemon"])
def daemon(office: Office, request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that a task has left behind, in a session of its own, where the worker does not look for it."""
    path = office.gate(f"{request.node.name}-daemon")
    assert _run(office, request.param, str(path)) == TaskResult(ok=_pid(office))
    pid = int(lines(path)[0])
    yield pid
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_what_a_task_leaves_behind_does_not_hide_a_crash(office: Office, daemon: int) -> None:
    assert _error(office, "die") is OperationalErrorCode.WORKER_CRASHED


def test_what_a_task_leaves_behind_does_not_take_a_limit_away(office: Office, daemon: int) -> None:
    assert _error(office, "spin") is OutcomeCode.TASK_TIMEOUT


def test_a_limit_holds_in_a_process_that_ignores_every_signal(office: Office, shared_db: Db) -> None:
    before = _run(office, "ignore_all_signals").ok_value
    handle = office.tasks.spin.send().unwrap()

    assert handle.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT

    assert row(shared_db, handle)["worker_pid"] == before


def test_a_task_that_resets_every_signal_is_not_ended_by_one_of_the_workers(
    workplace: Workplace, db: Db
) -> None:
    """Short tasks are sent to a child ahead of time, and asked back with a signal when it is held up."""
    ahead = "for_database_url(URL, prefetch_buffer=64, claim_lease_ms=10_000)"
    own = staffed(workplace, APP.replace("for_database_url(URL)", ahead), "--processes=1")
    for short in own.tasks.pid.send_many([()] * 60).unwrap():
        assert short.get(20_000).is_ok()
    gate = own.gate("reset")

    handle = own.tasks.reset_all_signals.send(str(gate)).unwrap()
    behind = own.tasks.pid.send_many([()] * 20).unwrap()
    started = until_status(db, handle, "RUNNING", "FAILED")["started_at"]
    ran = "SELECT now() - %s > interval '300 ms' AS longer"
    eventually(lambda: db.execute(ran, (started,)).fetchone()["longer"], what="the others being asked back")
    gate.touch()

    assert handle.get(20_000).is_ok()
    assert all(other.get(20_000).is_ok() for other in behind)


def test_a_limit_holds_in_a_process_that_is_stopped(office: Office, shared_db: Db) -> None:
    handle = office.tasks.spin.send(str(office.gate("spin-begun"))).unwrap()
    pid = until_status(shared_db, handle, "RUNNING")["worker_pid"]
    office.until_begun("spin")  # before, the task would go to another child

    os.kill(pid, signal.SIGSTOP)

    assert handle.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT
    eventually(lambda: not is_alive(pid), what="its process being gone")


def test_an_interrupt_does_not_reach_a_task(office: Office, shared_db: Db) -> None:
    gate = office.gate("interrupted")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(shared_db, handle, "RUNNING")["worker_pid"]

    os.killpg(pid, signal.SIGINT)
    gate.touch()

    assert handle.get(20_000) == TaskResult(ok=pid)


def test_a_result_that_is_too_large_is_refused(office: Office) -> None:
    before = _pid(office)

    error = _run(office, "give_much").err_value

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "100,000,002 bytes" in error.message
    assert _pid(office) == before


def test_without_a_limit_a_result_of_100_mb_arrives(workplace: Workplace) -> None:
    unlimited = "for_database_url(URL, payload=PayloadPolicy(warn_bytes=None, reject_bytes=None))"
    own = staffed(workplace, APP.replace("for_database_url(URL)", unlimited), "--processes=1")
    before = _pid(own)

    result = own.tasks.give_much.send().unwrap().get(100_000)

    assert result.ok_value == "x" * 100_000_000
    assert _pid(own) == before


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_spoiled_process_is_replaced_without_noise(workplace: Workplace, method: str) -> None:
    own = staffed(workplace, APP, "--processes=1", "--max-tasks-per-child=1", f"--start-method={method}")

    spoiling = ["lose_the_streams", "close_the_streams", "close_standard_files", "leave_threads"]
    pids = [_run(own, task).ok_value for task in spoiling]

    assert _pid(own) not in pids
    eventually(lambda: not any(map(is_alive, pids)), what="all of them being gone")
    assert "Traceback" not in own.worker.log
