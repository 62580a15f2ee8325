"""The API returns the stored data, refuses invalid requests, and carries out each action once."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import time
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx2 as httpx
import psycopg
import pytest

from horsies import DailySchedule, PostgresConfig, TaskSchedule
from horsies.db.connection import connect
from horsies.db.queries.retention import roll_up
from horsies.event_loop import run_sync
from horsies.schedule.model import encode_definition
from tests.docs.pages import ROOT, tables
from tests.web.conftest import get, post

Call = Callable[..., list[httpx.Response]]
Db = psycopg.Connection[dict[str, Any]]

NOBODY = UUID(int=7)
FAILED = """
    INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, terminal_at, kwargs)
    SELECT %(name)s, %(queue)s, false, 'FAILED', 'BROKEN', now() - interval '3 minutes', now() - interval '2 minutes', '{"x": 1}'
      FROM generate_series(1, %(count)s) RETURNING id"""


def fail(db: Db, name: str = "add", queue: str = "default", count: int = 1) -> list[UUID]:
    return [
        row["id"] for row in db.execute(FAILED, {"name": name, "queue": queue, "count": count}).fetchall()
    ]


STORE = """
    INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, terminal_at, kwargs,
                               claimed_by_worker_id)
    SELECT %(name)s, %(queue)s, live, %(status)s, %(code)s, now(), CASE WHEN NOT live THEN now() END, '{}',
           CASE WHEN %(status)s = 'RUNNING' THEN gen_random_uuid() END
      FROM (SELECT %(status)s IN ('PENDING', 'RUNNING') AS live) AS kind RETURNING id"""
BULK = ("retry", "cancel", "delete")


def store(db: Db, *, status: str, queue: str, name: str, code: str) -> UUID:
    """Store one task, live or ended."""
    row = db.execute(STORE, {"status": status, "queue": queue, "name": name, "code": code}).fetchone()
    assert row is not None
    return row["id"]


def wait(db: Db, count: int) -> None:
    for _ in range(count):
        db.execute(
            "INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs) VALUES ('add', 'default', '{}')"
        )


def statuses(db: Db) -> list[str]:
    return [
        row["status"] for row in db.execute("SELECT status FROM horsies_tasks ORDER BY status").fetchall()
    ]


SENSELESS = [
    ("/api/tasks/none", 404),
    (f"/api/tasks/{NOBODY}", 404),
    (f"/api/tasks/{NOBODY}/kwargs", 404),
    (f"/api/tasks/{NOBODY}/password", 404),
    (f"/api/workflows/{NOBODY}", 404),
    ("/api/tasks?status=LOST", 400),
    ("/api/tasks?since=yesterday", 400),
    ("/api/tasks?before=x", 400),
    ("/api/tasks?ended=x&status=FAILED", 400),
    ("/api/tasks?limit=0", 400),
    ("/api/tasks?sort=color", 400),
    ("/api/tasks?sort=run&page=0", 400),
    ("/api/tasks?sort=run&page=9999", 400),
    ("/api/tasks?from=yesterday", 400),
    ("/api/tasks?from=2026-07-02T00:00:00Z&until=2026-07-01T00:00:00Z", 400),
    ("/api/tasks/count", 400),
    ("/api/tasks/count?from=x", 400),
    ("/api/overview?by=color", 400),
    ("/api/failures?range=1y", 400),
    (f"/api/workers/{NOBODY}", 404),
    ("/api/workers/none", 404),
    ("/api/tasks?limit=1e9", 400),
    ("/api/tasks?limit=501", 400),
    ("/api/tasks?limit=000000001000000", 400),
    ("/api/tasks?limit=0000000050", 400),
    ("/api/tasks?limit=%2B5", 400),
    ("/api/tasks?limit=+5", 400),
    ("/api/tasks?limit=-5", 400),
    ("/api/tasks?limit=1_0", 400),
    ("/api/tasks?limit=5%0A", 400),
    ("/api/tasks?limit=%EF%BC%95", 400),
    ("/api/tasks?limit=", 400),
    ("/api/workflows?limit=000000001000000", 400),
    ("/api/actions?limit=000000001000000", 400),
    ("/api/tasks?q=%00", 400),
    (f"/api/tasks?q={'x' * 501}", 400),
    ("/api/overview?range=1y", 400),
    ("/api/workflows?status=LOST", 400),
    ("/api/nothing", 404),
]


def test_what_makes_no_sense_is_refused_with_the_reason(quiet_call: Call) -> None:
    answers = quiet_call(*(get(path) for path, _ in SENSELESS))

    for (path, status), answer in zip(SENSELESS, answers, strict=True):
        assert (path, answer.status_code) == (path, status)
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize("act", BULK)
def test_a_bulk_action_that_does_not_say_which_tasks_is_refused(quiet_call: Call, act: str) -> None:
    vague = [
        {},
        {"ids": ["x"]},
        {"ids": []},
        {"ids": [], "filter": {}},
        {"filter": {"sql": "1=1"}},
        {"filter": {"text": "x"}},
        {"filter": {"since": "yesterday"}},
        {"filter": {"status": "LOST"}},
        {"filter": {"status": "PENDING" if act != "cancel" else "COMPLETED"}},
        [],
    ]

    answers = quiet_call(*(post(f"/api/tasks/{act}", body) for body in vague))

    assert [answer.status_code for answer in answers] == [400] * len(vague)


@pytest.mark.parametrize("act", BULK)
def test_an_empty_filter_is_refused_with_the_remedy_and_touches_no_task(call: Call, db: Db, act: str) -> None:
    fail(db, count=2)
    wait(db, count=2)
    empty = [{}, {"code": None}, {"status": None, "queue": None, "name": None, "code": None}]

    answers = call(
        *(
            post(f"/api/tasks/{act}", {"filter": each, "dry_run": dry})
            for each in empty
            for dry in (True, False)
        )
    )

    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "The filter is empty, so it would match every task."
        assert "status, queue, name and code" in answer.json()["error"]["help"]
    assert statuses(db) == ["FAILED", "FAILED", "PENDING", "PENDING"]


FIELDS = {"queue": "mail", "name": "send", "code": "TIMEOUT"}


@pytest.mark.parametrize("field", [*FIELDS, "status"])
@pytest.mark.parametrize("act", BULK)
def test_a_bulk_action_leaves_tasks_alone_that_do_not_match(call: Call, db: Db, act: str, field: str) -> None:
    status = {"retry": "FAILED", "cancel": "PENDING", "delete": "FAILED"}[act]
    other = {"retry": "COMPLETED", "cancel": "RUNNING", "delete": "COMPLETED"}[act]
    filter_ = {"status": status, **FIELDS}
    meant = store(db, **filter_)
    spared = store(db, **{**filter_, field: other if field == "status" else "another"})
    which = {"filter": {field: filter_[field]}}

    counted, done = call(
        post(f"/api/tasks/{act}", {**which, "dry_run": True}), post(f"/api/tasks/{act}", which)
    )

    assert (counted.json()["found"], done.json()["done"]) == (1, 1)
    left = {row["id"]: row for row in db.execute("SELECT * FROM horsies_tasks").fetchall()}
    assert left[spared]["status"] == (other if field == "status" else status)
    assert left[spared]["cancel_asked_at"] is None
    match act:
        case "delete":
            assert meant not in left
        case "retry":
            assert left[meant]["status"] == "PENDING"
        case _:
            assert left[meant]["status"] == "CANCELLED"
    (record,) = db.execute("SELECT subject, tasks FROM horsies_actions").fetchall()
    assert record == {"subject": f"{field} {filter_[field]!r}", "tasks": 1}
    db.execute("DELETE FROM horsies_tasks")  # one of them is in the name of a worker that never was


def test_a_list_goes_on_where_the_page_before_it_ended(call: Call, db: Db) -> None:
    ids = {str(each) for each in fail(db, count=5)}

    for query in ("?limit=2", "?limit=2&status=FAILED"):
        seen: list[str] = []
        following = ""
        while True:
            (answer,) = call(get(f"/api/tasks{query}{following}"))
            page = answer.json()
            seen += [task["task_id"] for task in page["tasks"]]
            if page["next"] is None:
                break
            following = f"&before={page['next']['before']}&ended={page['next']['ended'].replace('+', '%2B')}"
        assert len(seen) == 5
        assert set(seen) == ids


def test_schedules_come_in_pages_and_can_be_looked_for(call: Call, db: Db) -> None:
    names = [*(f"backup-{number}" for number in range(3)), "report-0 ", "report-1", "report-2"]
    schedules = [
        TaskSchedule(name=name, task_name="add", pattern=DailySchedule(time=time(3))) for name in names
    ]
    with db.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash) VALUES (%s, %s, '')",
            [(schedule.name, encode_definition(schedule, b"{}")) for schedule in schedules],
        )

    seen: list[list[str]] = []
    following = ""
    while True:
        (answer,) = call(get(f"/api/schedules?limit=4{following}"))
        seen.append([schedule["name"] for schedule in answer.json()["schedules"]])
        if answer.json()["next"] is None:
            break
        following = f"&after={quote(answer.json()['next']['after'])}"
    first, last, some, none, odd = call(
        get("/schedules?limit=4"),
        get("/schedules?limit=4&after=report-0+"),
        get("/schedules?q=REPORT"),
        get("/schedules?q=nothing"),
        get("/schedules?limit=0"),
    )

    assert seen == [names[:4], names[4:]]
    assert "report-0" in first.text
    assert "report-1" not in first.text
    assert 'href="?limit=4&amp;after=report-0+"' in first.text
    assert "report-1" in last.text
    assert "report-0" not in last.text
    assert "after=" not in last.text
    assert "backup" not in some.text
    assert "report-2" in some.text
    assert "No matching schedules." in none.text
    assert odd.status_code == 400


def test_of_two_who_retry_the_same_task_one_is_told_that_he_is_late(call: Call, db: Db) -> None:
    (task_id,) = fail(db)
    path = f"/api/tasks/{task_id}"

    answers = call(
        post(f"{path}/retry"), post(f"{path}/retry"), post(f"{path}/delete"), post(f"{path}/cancel")
    )

    assert [answer.status_code for answer in answers] == [200, 409, 409, 200]
    assert db.execute("SELECT status FROM horsies_tasks").fetchall() == [{"status": "CANCELLED"}]
    told = call(post("/api/queues/pause", {"queue": "a"}), post("/api/queues/pause", {"queue": "a"}))
    assert [answer.status_code for answer in told] == [200, 409]
    (unknown,) = call(post(f"/api/tasks/{NOBODY}/retry"))
    assert unknown.status_code == 404


def test_keys_are_listed_paused_and_measured(call: Call, db: Db) -> None:
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, rate_key, enqueued_at)"
        " VALUES ('add', 'key=acme/1', now() - interval '5 minutes'), ('add', 'key=b', now())"
    )
    name = "acme/1"

    listed, one, of_key = call(
        get("/api/keys"), get(f"/api/keys?key={quote(name)}"), get(f"/api/tasks?key={quote(name)}")
    )
    told = call(*[post("/api/keys/pause", {"key": name})] * 2, post("/api/keys/pause", {"key": "x" * 201}))
    (paused,) = call(get(f"/api/keys?key={quote(name)}&limit=2"))
    (metrics,) = call(get("/metrics"))
    page, one_page = call(get("/keys"), get(f"/keys?key={quote(name)}"))
    resumed = call(*[post("/api/keys/resume", {"key": name})] * 2)

    assert [key["key"] for key in listed.json()["keys"]] == [name, "b"]
    assert one.json()["keys"][0]["waiting"] == 1
    assert [task["task_name"] for task in of_key.json()["tasks"]] == ["add"]
    assert [answer.status_code for answer in told] == [200, 409, 400]
    assert "201 characters" in told[2].text
    assert paused.json()["keys"][0]["paused_by"] is not None
    assert "horsies_keys_paused 1" in metrics.text
    assert "acme" not in metrics.text
    assert page.text.count("data-row=") == 2
    assert "/api/keys/resume" in page.text
    assert "Key acme/1" in one_page.text
    assert one_page.text.count("data-row=") == 2  # the key and its task
    assert [answer.status_code for answer in resumed] == [200, 409]
    assert db.execute("SELECT action FROM horsies_actions ORDER BY id").fetchall() == [
        {"action": "pause key"},
        {"action": "resume key"},
    ]


def test_many_tasks_are_counted_first_and_then_acted_on(call: Call, db: Db) -> None:
    fail(db, "add", "mail", 3)
    fail(db, "add", "other", 2)
    which = {"filter": {"queue": "mail"}}

    counted, retried = call(
        post("/api/tasks/retry", {**which, "dry_run": True}), post("/api/tasks/retry", which)
    )
    cancelled, deleted = call(
        post("/api/tasks/cancel", which), post("/api/tasks/delete", {"filter": {"name": "add"}})
    )

    numbers = [
        (answer.json()["done"], answer.json()["found"]) for answer in (counted, retried, cancelled, deleted)
    ]
    assert numbers == [(0, 3), (3, 3), (3, 3), (5, 5)]
    assert db.execute("SELECT count(*) FROM horsies_tasks").fetchone() == {"count": 0}


def test_every_act_is_on_record_with_who_did_it(call: Call, db: Db) -> None:
    (task_id,) = fail(db)
    headers = {"X-Horsies-Intent": "action", "X-User": "ann@example.com"}

    call(
        post(f"/api/tasks/{task_id}/retry", headers=headers),
        post("/api/queues/pause", {"queue": None}, headers=headers),
        trusted_header="X-User",
    )

    rows = db.execute("SELECT actor, action, subject, tasks FROM horsies_actions ORDER BY id").fetchall()
    assert [tuple(row.values()) for row in rows] == [
        ("web:ann@example.com", "requeue", str(task_id), 1),
        ("web:ann@example.com", "suspend", "", 0),
    ]


def test_counters_only_grow_whatever_is_deleted(call: Call, db: Db, database_url: str) -> None:
    fail(db, 'mail "x"\n', "default", 2)
    run_sync(_count(database_url))
    (before,) = call(get("/metrics"))
    call(post("/api/tasks/delete", {"filter": {"queue": "default"}}))
    db.execute("DELETE FROM horsies_rollups")
    (after,) = call(get("/metrics"))

    for answer in (before, after):
        assert 'horsies_tasks_total{queue="default",task="mail \\"x\\"\\n",status="failed"} 2' in answer.text
        assert (
            'horsies_task_run_seconds_bucket{queue="default",task="mail \\"x\\"\\n",le="+Inf"} 2'
            in answer.text
        )
        assert 'horsies_task_run_seconds_sum{queue="default",task="mail \\"x\\"\\n"} 120' in answer.text


@pytest.mark.parametrize("span", ["5m", "1h", "24h"])
def test_the_percentiles_of_one_run_are_its_run_time(
    call: Call, db: Db, database_url: str, span: str
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, enqueued_at, started_at, terminal_at) SELECT 'add', false,"
        " 'COMPLETED', at - interval '15 s', at - interval '12 s', at"
        "   FROM (SELECT now() - make_interval(secs => %s) AS at) AS ended",
        ({"5m": 60, "1h": 300, "24h": 3_600}[span],),
    )
    run_sync(_count(database_url))

    (answer,) = call(get(f"/api/overview?range={span}"))

    found = answer.json()
    assert [round(found["runs"][name], 2) for name in ("p50", "p95", "p99")] == [12, 12, 12]
    assert [round(found["waits"][name], 2) for name in ("p50", "p95", "p99")] == [3, 3, 3]
    drawn = [(each["run_p50"], each["run_p95"]) for each in found["points"] if each["completed"]]
    assert [tuple(round(value, 2) for value in pair) for pair in drawn] == [(12, 12)]


@pytest.mark.parametrize(
    "traceback", [None, "Traceback (most recent call last):\nLookupError: no box"], ids=str
)
def test_a_page_has_built_in_codes_as_text_and_the_api_as_they_are_stored(
    call: Call, db: Db, traceback: str | None
) -> None:
    error = {
        "error_code": {"__builtin_task_code__": "TASK_CANCELLED"},
        "message": "it was cancelled",
        "data": 'a text: "error_code":{"__builtin_task_code__":"OWN"}',
        "exception": {"traceback": traceback} if traceback else None,
    }
    stored = json.dumps({"err": error})
    row = db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, error_code, terminal_at, result)"
        " VALUES ('send', false, 'CANCELLED', 'TASK_CANCELLED', now(), %s) RETURNING id",
        (stored,),
    ).fetchone()
    assert row is not None
    task_id = row["id"]

    page, payload = call(get(f"/tasks/{task_id}"), get(f"/api/tasks/{task_id}/result"))

    shown = html.unescape(re.sub(r"<[^>]+>", "", page.text))
    assert '"error_code": "TASK_CANCELLED"' in shown
    assert shown.count("__builtin_task_code__") == 1  # in the data, which is the user's own
    assert payload.text == stored


def test_the_page_on_metrics_lists_those_that_there_are(quiet_call: Call) -> None:
    (answer,) = quiet_call(get("/metrics"))
    told = re.findall(r"# TYPE (\w+) (\w+)", answer.text)

    assert sorted((row[0], row[1]) for row in tables(ROOT / "docs" / "metrics.md")["Metrics"]) == sorted(told)
    drawn = (ROOT / "examples" / "grafana" / "horsies.json").read_text()
    used = {re.sub(r"_bucket$", "", name) for name in re.findall(r"horsies_\w+", drawn)}
    assert used <= {name for name, _ in told}


async def _count(url: str) -> None:
    async with await connect(PostgresConfig(database_url=url)) as connection:
        await roll_up(connection)


def test_the_description_of_the_api_names_every_call(quiet_call: Call) -> None:
    (answer,) = quiet_call(get("/api/openapi.json"))

    document = answer.json()
    assert document["openapi"].startswith("3.1")
    assert "409" in document["paths"]["/api/tasks/{task_id}/retry"]["post"]["responses"]
    assert json.dumps(document["paths"]["/api/tasks"]["get"]["parameters"]).count('"in": "query"') == 15
