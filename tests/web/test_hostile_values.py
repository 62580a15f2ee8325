"""Reading a row never fails, whatever it contains: on pages, in the API, in commands, in `horsies top`, in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx2 as httpx
import psycopg
import pytest

from horsies import AppConfig, Horsies, PostgresConfig, RetentionConfig, TaskHandle
from horsies.db.connection import connect
from horsies.db.queries.retention import roll_up
from horsies.durations import EARLIEST, LATEST
from horsies.worker.retention import sweep
from tests.support.hostile import DEEP_LIST, LONG, fill
from tests.support.reading import troubles
from tests.web.conftest import get, post

Db = psycopg.Connection[dict[str, Any]]
Call = Callable[..., list[httpx.Response]]


@pytest.fixture
def handle_of(database_url: str) -> Iterator[Callable[[str], TaskHandle[Any]]]:
    """Return a function that makes handles to tasks of this test's database."""
    broker = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url))).get_broker()
    yield lambda task_id: TaskHandle[Any](task_id, broker, Any)
    asyncio.run(broker.close_async())


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_that_stands_in_a_row_makes_reading_it_fail(database_url: str, seed: int) -> None:
    filled = fill(database_url, seed)

    assert min(filled.changed.values()) > 0, filled.changed
    assert troubles(database_url, filled) == [], f"seed {seed}"


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("seed", [4, 5])
def test_counting_and_sweeping_come_to_an_end_whatever_stands_in_a_row(database_url: str, seed: int) -> None:
    fill(database_url, seed)

    async def work() -> None:
        async with await connect(PostgresConfig(database_url=database_url), session=True) as connection:
            await roll_up(connection)
            await sweep(connection, RetentionConfig())

    asyncio.run(asyncio.wait_for(work(), 60))


def _insert(db: Db, **values: Any) -> str:
    """Store a failed task with these values."""
    known = {
        "task_name": "t",
        "live": False,
        "status": "FAILED",
        "terminal_at": "now",
        "started_at": "now",
        **values,
    }
    columns = ", ".join(known)
    row = db.execute(
        f"INSERT INTO horsies_tasks ({columns}) VALUES ({', '.join(['%s'] * len(known))}) RETURNING id".encode(),
        list(known.values()),
    ).fetchone()
    assert row is not None
    return str(row["id"])


@pytest.mark.parametrize(
    ("stored", "read", "shown"),
    [
        ("infinity", LATEST, "infinity"),
        ("294276-12-31 00:00:00+00", LATEST, "infinity"),
        ("-infinity", EARLIEST, "-infinity"),
        ("0044-03-15 00:00:00+00 BC", EARLIEST, "-infinity"),
    ],
)
def test_a_time_that_python_cannot_hold_is_the_nearest_that_it_can(
    db: Db, handle_of: Callable[[str], TaskHandle[Any]], call: Call, stored: str, read: object, shown: str
) -> None:
    task_id = _insert(db, sent_at=stored, started_at=stored, terminal_at="now", completed_at=stored)

    page, listed, one = call(get(f"/tasks/{task_id}"), get("/api/tasks"), get(f"/api/tasks/{task_id}"))

    assert [page.status_code, listed.status_code, one.status_code] == [200, 200, 200]
    assert f">{shown}<" in page.text
    assert one.json()["sent_at"] == listed.json()["tasks"][0]["sent_at"] == _json(read)
    info = handle_of(task_id).info(include_attempts=True).unwrap()
    assert info is not None
    assert (info.sent_at, info.started_at, info.completed_at) == (read, read, read)


def _json(moment: Any) -> str:
    return moment.isoformat().replace("+00:00", "Z")


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(("seconds", "held_until"), [(1e308, "-infinity"), (1, "infinity")])
def test_a_rate_limit_without_an_end_is_shown(db: Db, call: Call, seconds: float, held_until: str) -> None:
    db.execute(
        "INSERT INTO horsies_rates (rate_key, seconds, burst, spent_until, held_until) VALUES ('endless', %s, 1, now(), %s)",
        (seconds, held_until),
    )

    page, api = call(get("/queues"), get("/api/queues"))

    assert (page.status_code, api.status_code) == (200, 200)
    assert "endless" in page.text


def test_failed_tasks_of_all_times_are_each_on_one_page(db: Db, call: Call) -> None:
    times = ("infinity", "294276-12-31", "294000-01-01", "now", "0044-03-15 BC", "4713-01-01 BC", "-infinity")
    stored = [_insert(db, terminal_at=time) for time in times for _ in range(2)]

    seen: list[str] = []
    place: dict[str, str] | None = {}
    while place is not None and len(seen) <= len(stored):
        (answer,) = call(
            get("/api/tasks", params={"status": "FAILED", "since": "36500d", "limit": "1", **place})
        )
        seen += [task["task_id"] for task in answer.json()["tasks"]]
        place = answer.json()["next"]

    late = stored[:8]
    assert sorted(seen) == sorted(late)  # the others failed before `since`
    for ended in ("-infinity", "0044-03-15T00:00:00+00:00 BC", "294276-12-31T00:00:00+00:00"):
        (answer,) = call(get("/api/tasks", params={"status": "FAILED", "ended": ended}))
        assert answer.status_code == 200


def test_finished_tasks_of_all_times_can_be_deleted(db: Db, call: Call) -> None:
    for time in ("infinity", "294276-12-31", "now", "0044-03-15 BC", "-infinity"):
        _insert(db, terminal_at=time)

    (answer,) = call(post("/api/tasks/delete", {"filter": {"status": "FAILED"}}))

    assert (answer.status_code, answer.json()["done"]) == (200, 5)


def test_a_stored_text_that_is_nested_too_deeply_is_shown_cut_and_flagged(db: Db, call: Call) -> None:
    deep = f'{{"ok":{DEEP_LIST}}}'
    task_id = _insert(db, status="COMPLETED", kwargs=deep, result=deep)

    page, whole = call(get(f"/tasks/{task_id}"), get(f"/api/tasks/{task_id}/result"))

    assert page.text.count("cannot be decoded: it is nested too deeply") == 2
    assert len(page.text) < 100_000
    assert whole.text == deep


def test_a_result_that_cannot_be_decoded_is_an_error_result(
    db: Db, handle_of: Callable[[str], TaskHandle[Any]]
) -> None:
    task_id = _insert(db, status="COMPLETED", result=f'{{"ok":{DEEP_LIST}}}')

    error = handle_of(task_id).get(timeout_ms=0).err_value

    assert error.error_code == "RESULT_DESERIALIZATION_ERROR"
    assert "nested too deeply" in str(error.message)


def test_the_message_of_an_error_is_found_in_a_result_of_any_length(db: Db, call: Call) -> None:
    long = f'{{"err":{{"error_code":"X","message":"no \\"card\\"","data":"{LONG}","exception":null}}}}'
    task_id = _insert(db, error_code="X", result=long)

    (page,) = call(get(f"/tasks/{task_id}"))

    assert "no &#34;card&#34;" in page.text


def test_a_name_of_a_megabyte_does_not_make_lists_as_long(db: Db, call: Call) -> None:
    for _ in range(20):
        _insert(db, error_code=LONG)
    db.execute("UPDATE horsies_tasks SET task_name = %s, queue_name = %s", (LONG, LONG))

    paths = ("/tasks?status=FAILED", "/tasks", "/api/tasks", "/api/tasks?status=FAILED", "/api/tasks/facets")
    answers = call(*map(get, paths))

    assert [answer.status_code for answer in answers] == [200] * len(paths)
    assert max(len(answer.content) for answer in answers) < 500_000


REFUSED_SPANS = (
    "800000d",
    "99999999999h",
    "9" * 400 + "s",
    "-5m",
    "5",
    "m",
    "5 m",
    "\u0665m",
    "1e3s",
    "5m5m",
    "\uff15m",
)


@pytest.mark.parametrize("given", REFUSED_SPANS)
@pytest.mark.parametrize("path", ["/tasks", "/api/tasks", "/api/tasks?status=FAILED"])
def test_a_time_span_that_makes_no_sense_is_refused(quiet_call: Call, path: str, given: str) -> None:
    (answer,) = quiet_call(
        get(path, params={"since": given, **({"status": "FAILED"} if "?" in path else {})})
    )

    assert answer.status_code == 400
    assert "30s, 15m, 12h or 7d" in answer.text


@pytest.mark.parametrize("given", ["36525d", "0s", "1s", "7d"])
def test_every_time_span_up_to_a_century_is_taken(quiet_call: Call, given: str) -> None:
    answers = quiet_call(
        get("/api/tasks", params={"since": given}), get("/tasks", params={"since": given, "status": "FAILED"})
    )

    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("limit", ["0", "501", "-1", "1.5", "\u0665", "9" * 400, "000000001999999"])
def test_a_page_of_no_length_is_refused(quiet_call: Call, limit: str) -> None:
    (answer,) = quiet_call(get("/api/tasks", params={"limit": limit}))

    assert answer.status_code == 400


def _unfit_requests() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in ("name", "queue", "code", "q"):
        yield get("/api/tasks", params={name: "a\0b"})
    yield get("/api/schedules", params={"after": "a\0b"})
    yield get("/api/workflows", params={"name": "a\0b"})
    yield post("/api/tasks/cancel", {"filter": {"queue": "a\0b"}})
    yield post("/api/tasks/retry", {"filter": {"name": "a\0b"}})
    yield post("/api/queues/pause", {"queue": "a\0b"})
    yield post("/api/schedules/pause", {"name": "a\0b"})
    deep = b'{"kwargs":{"a":' + DEEP_LIST.encode() + b"}}"
    headers = {"X-Horsies-Intent": "action"}
    yield "POST", f"/api/tasks/{UUID(int=1)}/resend", {"content": deep, "headers": headers}
    yield "POST", "/api/queues/pause", {"content": b'{"queue":"\\ud800"}', "headers": headers}


@pytest.mark.parametrize(
    "request_", list(_unfit_requests()), ids=lambda request: f"{request[0]} {request[1]}"
)
def test_what_postgresql_has_no_text_for_is_refused(quiet_call: Call, request_: Any) -> None:
    (answer,) = quiet_call(request_)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/tasks/a%00b", "/api/tasks/%00", "/api/workflows/%00", "/%00", "/api/tasks/%ED%A0%80"]
)
def test_a_path_with_a_nul_leads_nowhere(quiet_call: Call, path: str) -> None:
    (answer,) = quiet_call(get(path))

    assert answer.status_code in (400, 404)
