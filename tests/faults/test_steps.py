"""The crash matrix of durable functions: every statement on the path of every primitive, and everything that can befall it.

A saga goes through all primitives. At one statement, its reply or the statement itself is lost, and at the same moment a child,
the worker, the server or its sessions are killed, or the worker freezes for longer than its lease; or a process dies or freezes
between two statements. Afterwards the promises hold: the saga ends with the right value, the result of a stored step has never
changed, the effect of a `transact` exists once and is that of the attempt whose step is stored, and each called task was sent once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from horsies import TaskHandle
from horsies.db.urls import with_database
from tests.e2e.observing import Db, children, is_alive
from tests.e2e.office import URL
from tests.faults.scene import OwnServer
from tests.support.proxy import Fault, Proxy
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

APP = """
import uuid
import psycopg

# What a project would write: a lost connection to the database is worth another try.
AGAIN = RetryPolicy.fixed([1] * 5, auto_retry_for=[psycopg.OperationalError], jitter=False)

app = Horsies(AppConfig.for_database_url(
    URL, claim_lease_ms=1_500, recovery=RecoveryConfig(check_interval_ms=1_000),
    resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500, notify_poll_interval_ms=1_000),
))

def note(path, *words):
    with open(path, "a") as file:
        file.write(" ".join(words) + "\\n")

def die_once(path, point):
    \"\"\"Die at the point that a file names, once.\"\"\"
    order = Path(path + ".die")
    if order.exists() and order.read_text().split()[0] == point:
        victim = order.read_text().split()[1]
        order.unlink()
        if victim == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if victim == "child":
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(int(victim), signal.SIGKILL)
        time.sleep(60)

def unlike(path, name):
    \"\"\"A value that is another one in each call.\"\"\"
    note(path, "body", name)
    die_once(path, f"in {name}".replace(" ", "-"))
    return f"{name} {uuid.uuid4()}"

def effect(connection, path, task_id, name):
    value = f"{name} {uuid.uuid4()}"
    connection.execute("INSERT INTO effects (task_id, name, value) VALUES (%s, %s, %s)", [task_id, name, value])
    die_once(path, f"in {name}".replace(" ", "-"))
    return value

@app.task("double", idempotent=True)
def double(n: int) -> int:
    return 2 * n

@app.task("saga", idempotent=True, retry_policy=AGAIN)
def saga(path: str) -> list[str]:
    t = current_task()
    values = []

    def seen(name, value):
        values.append(str(value))
        note(path, "seen", name, str(value).replace(" ", "_"))
        die_once(path, f"after-{name}")

    note(path, "run", str(t.attempt))
    die_once(path, "at-once")
    seen("first", t.step("first", unlike, path, "first"))
    seen("booked", t.transact("booked", effect, path, t.id, "booked"))
    t.sleep("rest", 0.2)
    seen("rest", "rested")
    seen("answer", t.wait_for("answer", str))
    seen("one", t.call("one", double, 4))
    seen("paid", t.transact("paid", effect, path, t.id, "paid"))
    seen("many", t.call_many("many", double, [1, 2, 3]))
    seen("last", t.step("last", unlike, path, "last"))
    return values

@app.task("saga_async", idempotent=True, retry_policy=AGAIN)
async def saga_async(path: str) -> list[str]:
    t = current_async_task()
    values = []

    def seen(name, value):
        values.append(str(value))
        note(path, "seen", name, str(value).replace(" ", "_"))
        die_once(path, f"after-{name}")

    async def effect_async(connection, name):
        value = f"{name} {uuid.uuid4()}"
        await connection.execute("INSERT INTO effects (task_id, name, value) VALUES (%s, %s, %s)", [t.id, name, value])
        die_once(path, f"in-{name}")
        return value

    note(path, "run", str(t.attempt))
    die_once(path, "at-once")
    seen("first", await t.step("first", unlike, path, "first"))
    seen("booked", await t.transact("booked", effect_async, "booked"))
    await t.sleep("rest", 0.2)
    seen("rest", "rested")
    seen("answer", await t.wait_for("answer", str))
    seen("one", await t.call("one", double, 4))
    seen("paid", await t.transact("paid", effect_async, "paid"))
    seen("many", await t.call_many("many", double, [1, 2, 3]))
    seen("last", await t.step("last", unlike, path, "last"))
    return values
"""
CREATE_EFFECTS = "CREATE TABLE effects (task_id text, name text, value text)"

# Where a statement stands on the path: what it contains, and the application of its connection.
STATEMENTS = {
    "store": (
        b"INSERT INTO horsies_steps AS known (task_id, name, kind, claim_seq, attempt, started_at, ended",
        "",
    ),
    "load": (b"AS has_ended, step.result", ""),
    "lock_to_park": (b"ORDER BY id FOR UPDATE", ""),
    "park": (b"CROSS JOIN LATERAL json_to_record(given.step)", ""),
    "commit of park": (b"COMMIT", "horsies-worker"),
    "wake_due": (b"UPDATE horsies_tasks_live AS task SET parked_at = NULL", ""),
    "begin of transact": (b"BEGIN", "horsies-transact"),
    "fence": (b"set_config('idle_in_transaction_session_timeout'", "horsies-transact"),
    "effect": (b"INSERT INTO effects", "horsies-transact"),
    "store_in_transaction": (b"clock_timestamp()", "horsies-transact"),
    "commit of transact": (b"COMMIT", "horsies-transact"),
    # The results with which tasks are settled, as they stand in a parameter.
    "end of a called task": (b'{\\"ok\\":8}', "horsies-worker"),
    "end of the saga": (b'{\\"ok\\":[\\"first', "horsies-worker"),
}
POINTS = [
    "at-once", "in-first", "after-first", "in-booked", "after-booked", "after-rest", "after-answer", "after-one", "in-paid",
    "after-paid", "after-many", "in-last", "after-last",
]  # fmt: skip


class Stage:
    """A workplace with an app whose workers reach the database through a proxy."""

    def __init__(self, place: Workplace, proxy: Proxy, db: Db) -> None:
        self.place, self.proxy, self.db = place, proxy, db
        db.execute(CREATE_EFFECTS.encode())
        place.write(URL + APP)
        self.tasks = place.load()
        self.path = place.folder / "history"

    def reconnect(self) -> None:
        """Open another connection after the server was started again."""
        self.db.close()
        self.db = connected(self.place.database_url)

    def start(self) -> RunningWorker:
        return self.place.start("--processes", "2", "--async-processes", "1")

    def send(self, name: str) -> TaskHandle[Any]:
        handle: TaskHandle[Any] = getattr(self.tasks, name).delay(str(self.path))
        handle.signal("answer", "yes")
        return handle

    @property
    def history(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def check(self, handle: TaskHandle[Any]) -> None:
        """Wait for the end of a saga, and compare all that was seen of it with what is stored."""
        values = handle.result(timeout=40)
        assert [value.partition(" ")[0] for value in values[:2]] == ["first", "booked"]
        assert values[2:5] == ["rested", "yes", "8"]
        assert values[6] == "[2, 4, 6]"
        stored = {step.name: step.result for step in handle.steps()}
        assert [step.name for step in handle.steps() if step.ended_at is None] == []
        assert [stored[name] for name in ("first", "booked", "paid", "last")] == [
            values[0],
            values[1],
            values[5],
            values[7],
        ]
        effects = self.db.execute("SELECT name, value FROM effects WHERE task_id = %s", [handle.task_id])
        found = [(row["name"], row["value"]) for row in effects.fetchall()]
        check_history(self.history, stored, found)
        called = self.db.execute(
            "SELECT parent_step FROM horsies_tasks WHERE parent_id = %s ORDER BY 1", [handle.task_id]
        )
        assert [row["parent_step"] for row in called.fetchall()] == ["many", "many", "many", "one"]


def check_history(
    history: list[list[str]], stored: Mapping[str, object], effects: Sequence[tuple[str, str]]
) -> None:
    """Raise AssertionError if a step's result has changed, or an effect is missing, exists twice or is that of a stale attempt."""
    known: dict[str, str] = {}
    for kind, name, *rest in history:
        if kind == "seen":
            value = known.setdefault(name, rest[0])
            assert value == rest[0], f"step {name} was {value}, and later {rest[0]}"
    for name in ("first", "booked", "paid", "last"):
        if name in known:
            shown = str(stored[name]).replace(" ", "_")
            assert known[name] == shown, f"step {name} was {known[name]}, and {shown} is stored"
    names = sorted(name for name, _ in effects)
    assert names == ["booked", "paid"], f"the effects are {names}"
    for name, value in effects:
        assert value == stored[name], f"the effect of {name} is {value}, and {stored[name]} is stored"


HISTORY = [["run", "1"], ["seen", "booked", "a"], ["run", "2"], ["seen", "booked", "a"]]
STORED = {"first": "f", "booked": "a", "paid": "p", "last": "l"}
EFFECTS = [("booked", "a"), ("paid", "p")]


@pytest.mark.parametrize(
    ("history", "stored", "effects", "problem"),
    [
        ([*HISTORY, ["seen", "booked", "b"]], STORED, EFFECTS, "step booked was a, and later b"),
        (HISTORY, STORED | {"booked": "b"}, EFFECTS, "step booked was a, and b is stored"),
        (HISTORY, STORED, [*EFFECTS, ("paid", "p")], "the effects are .'booked', 'paid', 'paid'."),
        (HISTORY, STORED, EFFECTS[:1], "the effects are .'booked'."),
        (
            HISTORY,
            STORED,
            [("booked", "a"), ("paid", "stale")],
            "the effect of paid is stale, and p is stored",
        ),
    ],
)
def test_the_checker_sees_each_broken_promise(history: Any, stored: Any, effects: Any, problem: str) -> None:
    check_history(HISTORY, STORED, EFFECTS)
    with pytest.raises(AssertionError, match=problem):
        check_history(history, stored, effects)


@pytest.fixture
def stage(workplace: Workplace, db: Db) -> Iterator[Stage]:
    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        yield Stage(workplace, proxy, db)


@pytest.fixture(scope="module")
def crashing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    server = OwnServer(tmp_path_factory.mktemp("server"))
    yield server
    server.remove()


@pytest.fixture
def crashing(crashing_server: OwnServer, tmp_path: Path) -> Iterator[tuple[Stage, OwnServer]]:
    """Yield a stage on a server that may be crashed, and the server."""
    name = f"sagas_{uuid4().hex}"
    with psycopg.connect(crashing_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    url = with_database(crashing_server.url, name)
    with Workplace(tmp_path, url) as place, Proxy(url) as proxy:
        place.env["HORSIES_DATABASE_URL"] = proxy.url
        stage = Stage(place, proxy, connected(url))
        try:
            yield stage, crashing_server
        finally:
            stage.db.close()


def connected(url: str) -> Db:
    return psycopg.Connection[dict[str, Any]].connect(url, autocommit=True, row_factory=dict_row)


def freeze(worker: RunningWorker, seconds: float) -> None:
    """Stop a worker with its children, and let them go on after some time."""
    pids = [worker.pid, *children(worker.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        for pid in reversed(pids):
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)

    threading.Timer(seconds, thaw).start()


def blow(victim: str, worker: RunningWorker, stage: Stage) -> Callable[[], None]:
    """What befalls a process when the statement is there."""

    def strike() -> None:
        match victim:
            case "child":
                for pid in children(worker.pid):
                    os.kill(pid, signal.SIGKILL)
            case "worker":
                os.kill(worker.pid, signal.SIGKILL)
            case "sessions":
                with psycopg.connect(stage.place.database_url, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name IN"
                        " ('horsies-worker', 'horsies-steps', 'horsies-transact', 'horsies-heartbeat')"
                    )
            case "frozen":
                freeze(worker, 3.0)
            case _:
                pass

    return strike


def cases() -> Iterator[Any]:
    for place in STATEMENTS:
        for victim in ("nobody", "child", "worker", "sessions"):
            for fault in ("reply", "statement"):
                yield pytest.param(place, victim, fault, id=f"{place}-{victim}-{fault}".replace(" ", "_"))
        yield pytest.param(place, "frozen", "nothing", id=f"{place}-frozen".replace(" ", "_"))


@pytest.mark.parametrize(("place", "victim", "fault"), list(cases()))
def test_the_promises_hold_whatever_befalls_a_statement(
    stage: Stage, place: str, victim: str, fault: Fault
) -> None:
    worker = stage.start()
    text, application = STATEMENTS[place]
    stage.proxy.trap(blow(victim, worker, stage), fault, text, application)

    handle = stage.send("saga")
    eventually(lambda: stage.proxy.lost == 1, what="the statement")
    if victim in ("worker", "frozen"):
        stage.start()

    stage.check(handle)


@pytest.mark.parametrize("fault", ["reply", "statement"])
@pytest.mark.parametrize("place", list(STATEMENTS))
def test_the_promises_hold_when_the_server_crashes_at_a_statement(
    crashing: tuple[Stage, OwnServer], place: str, fault: Fault
) -> None:
    stage, server = crashing
    text, application = STATEMENTS[place]
    stage.proxy.trap(server.crash, fault, text, application)

    handle = stage.send("saga")
    stage.start()
    eventually(lambda: stage.proxy.lost == 1, what="the statement")
    server.start()
    stage.reconnect()

    stage.check(handle)


@pytest.mark.parametrize("name", ["saga", "saga_async"])
@pytest.mark.parametrize("point", POINTS)
def test_the_promises_hold_wherever_a_process_freezes(stage: Stage, point: str, name: str) -> None:
    worker = stage.start()
    order = Path(f"{stage.path}.die")
    order.write_text(f"{point} frozen")

    handle = stage.send(name)
    eventually(lambda: not order.exists(), what="the process coming to the point")
    freeze(worker, 3.0)
    stage.start()

    stage.check(handle)


@pytest.mark.parametrize("name", ["saga", "saga_async"])
@pytest.mark.parametrize("victim", ["child", "worker"])
@pytest.mark.parametrize("point", POINTS)
def test_the_promises_hold_wherever_a_process_dies(stage: Stage, point: str, victim: str, name: str) -> None:
    worker = stage.start()
    order = Path(f"{stage.path}.die")
    order.write_text(f"{point} {victim if victim == 'child' else worker.pid}")

    handle = stage.send(name)
    eventually(lambda: not order.exists(), what="the process coming to the point")
    if victim == "worker":
        stage.start()

    stage.check(handle)
    bodies = [line[1] for line in stage.history if line[0] == "body"]
    again = {"in-first": "first", "in-last": "last"}.get(point)
    assert bodies.count("first") == 1 + (again == "first")
    assert bodies.count("last") == 1 + (again == "last")


def test_the_promises_hold_while_the_server_crashes_again_and_again(
    own_server: OwnServer, tmp_path: Path
) -> None:
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE sagas")
    url = own_server.url.rpartition("/")[0] + "/sagas"
    with Workplace(tmp_path, url) as place:
        place.write(URL + APP)
        tasks = place.load()
        place.start("--processes", "3", "--async-processes", "1")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(CREATE_EFFECTS.encode())
        paths = [tmp_path / f"history{number}" for number in range(12)]
        handles = [tasks.saga.delay(str(path)) for path in paths]
        for handle in handles:
            handle.signal("answer", "yes")
        for _ in range(3):
            time.sleep(0.15)  # into the midst of the work, wherever that is
            own_server.crash()
            own_server.start()
        values = [handle.result(timeout=60) for handle in handles]
        with psycopg.connect(url, autocommit=True) as db:
            for handle, path in zip(handles, paths, strict=True):
                effects = db.execute("SELECT name, value FROM effects WHERE task_id = %s", [handle.task_id])
                history = [line.split() for line in path.read_text().splitlines()]
                check_history(
                    history, {step.name: step.result for step in handle.steps()}, effects.fetchall()
                )
        assert [value[6] for value in values] == ["[2, 4, 6]"] * len(handles)
