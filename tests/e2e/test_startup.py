"""How a worker comes up: the app, its tasks, its children, and only then the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.observing import (
    CHILD,
    FORK_SERVER,
    Db,
    children,
    descendants,
    is_alive,
    lines,
    sessions,
    until_status,
)
from tests.e2e.office import URL, staffed
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

NOTE = """
def note(what):
    with open(Path(__file__).parent / "marks", "a") as file:
        file.write(f"{what} {os.getpid()} {os.environ.get('HORSIES_CHILD_PROCESS', '0')}\\n")
"""
PID = """
@app.task("{name}")
def {name}() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())
"""
APP = "app = Horsies(AppConfig.for_database_url(URL, unknown_task_grace_seconds=1))\n" + PID.format(
    name="pid"
)


def test_a_worker_has_a_child_for_each_process_a_spare_and_a_template(workplace: Workplace) -> None:
    worker = staffed(workplace, APP, "--processes=8").worker

    eventually(lambda: len(children(worker.pid)) == 9, what="eight children and a spare")
    (template,) = descendants(worker.pid, FORK_SERVER)
    assert descendants(worker.pid) == children(worker.pid) | {template}
    assert "default" in worker.log
    assert "Concurrency config: processes=8, cluster_wide_cap=unlimited, max_claim_per_worker=8" in worker.log


def test_the_app_comes_first_then_its_tasks_then_the_children_then_the_database(workplace: Workplace) -> None:
    workplace.write(
        URL
        + NOTE
        + """
note("app")
app = Horsies(AppConfig.for_database_url(URL))
app.discover_tasks(["tasks"])

@app.on_child_process_start
def child_starts():
    import psycopg
    with psycopg.connect(URL) as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies-%'"
        (sessions,) = db.execute(query).fetchone()
    note(f"child-with-{sessions}-sessions")
"""
    )
    workplace.write(NOTE + 'note("tasks")\n', name="tasks.py")

    worker = workplace.start("--processes=2")

    marks = [line.split() for line in lines(workplace.folder / "marks")]
    (template,) = descendants(worker.pid, FORK_SERVER)
    in_parent = [what for what, pid, _ in marks if int(pid) == worker.pid]
    in_template = [what for what, pid, _ in marks if int(pid) == template]
    in_children = [(what, flag) for what, pid, flag in marks if int(pid) in children(worker.pid)]
    assert in_parent == in_template == ["app", "tasks"]
    assert [what for what, _, _ in marks][:2] == ["app", "tasks"]
    assert in_children[:2] == [("child-with-0-sessions", "1")] * 2


def test_a_ready_worker_listens(workplace: Workplace, db: Db) -> None:
    staffed(workplace, APP, "--processes=1")

    def listens() -> bool:
        return any(session["application_name"] == "horsies-listener" for session in sessions(db))

    eventually(listens, what="a session that listens")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("import no_such_module", "no_such_module"),
        ("def (:", "SyntaxError"),
        ("sys.exit(0)", "SystemExit"),
    ],
)
def test_a_task_module_that_cannot_be_imported_ends_the_start_before_there_is_a_child(
    workplace: Workplace, db: Db, broken: str, told: str
) -> None:
    workplace.write(
        URL
        + NOTE
        + """
app = Horsies(AppConfig.for_database_url(URL))
app.discover_tasks(["tasks"])
app.on_child_process_start(lambda: note("child"))
note("app")
"""
    )
    workplace.write(broken, name="tasks.py")

    worker = workplace.start(ready=False)

    assert worker.wait() == 1
    assert told in worker.log
    assert "tasks" in worker.log
    assert "Traceback" not in worker.log
    assert lines(workplace.folder / "marks") == [f"app {worker.pid} 0"]
    assert db.execute("SELECT count(*) AS workers FROM horsies_workers").fetchone() == {"workers": 0}


def test_a_child_start_hook_that_fails_stops_the_worker_and_is_named(workplace: Workplace, db: Db) -> None:
    workplace.write(
        URL
        + APP
        + """
@app.on_child_process_start
def warm_up():
    raise LookupError("no model file")
"""
    )

    worker = workplace.start(ready=False)

    assert worker.wait() == 1
    assert "LookupError: no model file" in worker.log
    assert sessions(db) == []


def test_sends_at_import_are_suppressed_and_in_a_task_they_work(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP + 'app.discover_tasks(["tasks"])\n')
    workplace.write(
        NOTE
        + """
from app import app, pid

note(pid.send().err_value.code)

@app.task("relay")
def relay() -> TaskResult[str, TaskError]:
    return TaskResult(ok=pid.send().unwrap().task_id)
""",
        name="tasks.py",
    )
    worker = workplace.start("--processes=1")
    tasks = workplace.load()
    marks = [line.split()[0] for line in lines(workplace.folder / "marks")]
    assert marks
    assert set(marks) == {"SEND_SUPPRESSED"}
    assert db.execute("SELECT count(*) AS rows FROM horsies_tasks").fetchone() == {"rows": 0}

    sent = db.execute("SELECT horsies_send('relay') AS id").fetchone()
    assert sent is not None
    inner = tasks.app.handle(str(sent["id"])).get(20_000).ok_value
    assert tasks.app.handle(inner).get(20_000).ok_value in children(worker.pid)


def test_a_failed_import_leaves_sends_allowed(workplace: Workplace) -> None:
    workplace.write(URL + APP + 'app.discover_tasks(["tasks"])\n')
    workplace.write("raise RuntimeError('not today')", name="tasks.py")
    workplace.write(
        """
from app import app, pid
from horsies.core.errors import HorsiesError

try:
    app.import_task_modules()
except HorsiesError as error:
    print(error.code)
print(app.are_sends_suppressed(), pid.send().is_ok())
""",
        name="script.py",
    )

    ended = _run_script(workplace)

    assert ended.stdout.split() == ["HRS-210", "False", "True"], ended.stderr


def _run_script(workplace: Workplace) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=workplace.folder,
        env=workplace.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    "modules",
    ['["shop.orders", "shop.mail.letters"]', '["shop/orders.py", "shop/mail/letters.py"]'],
    ids=["modules", "files"],
)
def test_discovered_tasks_run_and_others_are_not_known(workplace: Workplace, db: Db, modules: str) -> None:
    for folder in ("shop", "shop/mail"):
        (workplace.folder / folder).mkdir()
        (workplace.folder / folder / "__init__.py").touch()
    workplace.write(URL + APP + f"app.discover_tasks({modules})\n")
    listed = ("orders", "letters")
    for path in ("shop/orders.py", "shop/mail/letters.py", "shop/mail/unlisted.py"):
        workplace.write("from app import app" + PID.format(name=Path(path).stem), name=path)
    worker = workplace.start("--processes=1")

    ids = db.execute(
        "SELECT horsies_send(name) AS id FROM unnest(%s::text[]) AS name", ([*listed, "unlisted"],)
    ).fetchall()
    ended = [until_status(db, sent["id"], "COMPLETED", "FAILED") for sent in ids]

    assert [task["error_code"] for task in ended] == [None, None, "WORKER_RESOLUTION_ERROR"]
    assert {task["worker_pid"] for task in ended} <= children(worker.pid)
    checked = workplace.run("check", "app:app")
    assert checked.returncode == 0, checked.stderr
    assert all(name in checked.stdout for name in listed)
    assert "unlisted" not in checked.stdout


@pytest.mark.parametrize("run", ["app.run_worker(config)", "asyncio.run(app.run_worker_async(config))"])
def test_a_worker_runs_from_a_script_without_the_command_line(workplace: Workplace, db: Db, run: str) -> None:
    workplace.write('app = Horsies(AppConfig.for_database_url("postgresql://nobody@127.0.0.1:1/nowhere"))')
    workplace.write("from app import app" + PID.format(name="pid"), name="more_tasks.py")
    workplace.write(
        f"""
from app import app
config = WorkerConfig(
    dsn=os.environ["HORSIES_DATABASE_URL"], queues=["default"], processes=2, max_claim_batch=1,
    max_claim_per_worker=2, app_locator="app:app", imports=["more_tasks"],
)
if __name__ == "__main__":
    {run}
    print("stopped well")
""",
        name="script.py",
    )
    sent = db.execute("SELECT horsies_send('pid') AS id").fetchone()
    assert sent is not None
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=workplace.folder,
        env=workplace.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            ended = until_status(db, sent["id"], "COMPLETED", "FAILED")
            assert (ended["status"], ended["worker_pid"] in children(process.pid)) == ("COMPLETED", True), (
                ended
            )
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (output, process.returncode) == ("stopped well\n", 0)


def test_an_async_worker_stops_when_it_is_cancelled(workplace: Workplace) -> None:
    workplace.write(URL + APP)
    workplace.write(
        """
from app import app, pid

async def main():
    worker = asyncio.create_task(app.run_worker_async(WorkerConfig(processes=1)))
    handle = (await pid.send_async()).unwrap()
    result = await handle.get_async(20_000)
    worker.cancel()
    try:
        await worker
    except asyncio.CancelledError:
        print("cancelled after", result.is_ok())

if __name__ == "__main__":
    asyncio.run(main())
""",
        name="script.py",
    )

    ended = _run_script(workplace)

    assert ended.stdout == "cancelled after True\n", ended.stderr


def test_a_script_that_runs_a_worker_wherever_it_is_imported_does_not_multiply(
    workplace: Workplace, db: Db
) -> None:
    """Its children import the app again; a script without a guard must not start a worker in each of them."""
    workplace.write(URL + APP)
    workplace.write("from app import app\napp.run_worker(WorkerConfig(processes=1))\n", name="script.py")
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=workplace.folder, env=workplace.env, start_new_session=True
    )
    try:
        eventually(
            lambda: process.poll() is not None or db.execute("SELECT FROM horsies_workers").rowcount, 5
        )
        assert len(descendants(process.pid) - children(process.pid)) <= 1
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_children_can_be_started_in_every_way(workplace: Workplace, method: str) -> None:
    office = staffed(workplace, APP, "--processes=2", f"--start-method={method}", "--max-tasks-per-child=2")

    pids = [office.tasks.pid.send().unwrap().get(20_000).ok_value for _ in range(8)]

    assert len(set(pids)) >= 4
    assert office.worker.pid not in pids
    assert bool(descendants(office.worker.pid, FORK_SERVER)) == (method != "spawn")
    eventually(lambda: len(descendants(office.worker.pid, CHILD)) == 3, what="two children and a spare")
    assert office.worker.stop() == 0
    eventually(lambda: not any(map(is_alive, pids)), what="all children being gone")


def test_two_workers_may_be_started_in_any_order_with_their_producer(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    before = [tasks.pid.send().unwrap() for _ in range(3)]

    first = workplace.start("--processes=1", ready=False)
    second = workplace.start("--processes=1", ready=False)
    after = [tasks.pid.send().unwrap() for _ in range(3)]

    assert all(handle.get(20_000).is_ok() for handle in before + after)
    for worker in (first, second):
        worker.wait_until_ready()


def test_workers_make_the_schema_when_there_is_none(tmp_path: Path, empty_database_url: str) -> None:
    with Workplace(tmp_path, empty_database_url) as place:
        place.write(URL + APP)
        starting = [place.start("--processes=1", ready=False) for _ in range(3)]

        ready: list[RunningWorker] = [worker.wait_until_ready() for worker in starting]
        result = place.load().pid.send().unwrap().get(20_000)

        assert result.ok_value in set().union(*(children(worker.pid) for worker in ready))
        assert os.getpid() != result.ok_value
