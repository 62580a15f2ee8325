"""Fill a database with a day of history, or with hostile rows."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg

from horsies import PostgresConfig
from horsies.db.connection import connect
from horsies.db.queries.retention import roll_up
from horsies.event_loop import run_sync

HOSTILE_NAME = "<script>window.broken=1</script>\"'&{{7*7}}"
HOSTILE_QUEUE = '"><svg onload=window.broken=2>'
HOSTILE_TEXT = "</pre></script><img src=x onerror=window.broken=3><a href=javascript:window.broken=4>"
HOSTILE_ID = UUID("01900000-0000-7000-8000-00000000beef")
HUGE_ID = UUID("01900000-0000-7000-8000-00000000feed")
BINARY_ID = UUID("01900000-0000-7000-8000-00000000b1b1")

# One day of a shop, busier by day than by night. `n` numbers the tasks, newest first.
_DAY = """
INSERT INTO horsies_tasks (id, task_name, queue_name, live, status, sent_at, enqueued_at, started_at, completed_at,
                           failed_at, terminal_at, kwargs, result, error_code, worker_hostname, worker_pid,
                           claimed_by_worker_id)
SELECT (lpad(to_hex((extract(epoch FROM sent) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
           || substr(md5(n::text), 4, 15))::uuid,
       name, CASE WHEN name = 'send_mail' THEN 'mail' WHEN name = 'render_report' THEN 'reports' ELSE 'orders' END, false,
       CASE WHEN bad THEN 'FAILED' ELSE 'COMPLETED' END, sent, sent, sent + wait, CASE WHEN NOT bad THEN sent + wait + run END,
       CASE WHEN bad THEN sent + wait + run END, sent + wait + run, json_build_object('order', n, 'amount', '9.99'),
       CASE WHEN bad THEN '{"err":{"error_code":"SMTP_DOWN","message":"the mail server does not answer"}}'
            ELSE '{"ok":null}' END,
       CASE WHEN bad THEN 'SMTP_DOWN' END, 'worker-' || n %% 2, 4000 + n %% 4, '00000000-0000-0000-0000-000000000001'
  FROM (SELECT n, (ARRAY['charge_card', 'charge_card', 'charge_card', 'send_mail', 'send_mail', 'check_stock',
                         'render_report'])[1 + n %% 7] AS name,
               n %% 7 IN (3, 4) AND hashint4(n) %% 9 = 0 AS bad,
               now() - make_interval(secs => back) AS sent,
               make_interval(secs => 0.01 + 0.4 * abs(sin(back / 4000.0)) ^ 6) AS wait,
               make_interval(secs => 0.02 + (abs(hashint4(n)) %% 100) / 100.0 * CASE WHEN n %% 7 = 6 THEN 8 ELSE 0.3 END) AS run
          FROM (SELECT n, %(seconds)s * (n + 30 * sin(n / (%(tasks)s / 18.0))) / %(tasks)s AS back
                  FROM generate_series(1, %(tasks)s) AS n) AS spread
         WHERE back > 3) AS drawn"""
_DEPTHS = """
INSERT INTO horsies_depths
SELECT date_trunc('minute', now()) - make_interval(mins => m), queue, greatest(0, 40 + 35 * sin(m / 90.0) + 6 * sin(m))::int, 0,
       greatest(0, 4 + 3 * sin(m / 60.0))::int, 3
  FROM generate_series(0, 1440) AS m CROSS JOIN unnest(ARRAY['orders', 'mail']) AS queue"""
_FAILED = """
INSERT INTO horsies_tasks (id, task_name, queue_name, live, status, started_at, failed_at, terminal_at, kwargs, result,
                           error_code, failed_reason, worker_hostname)
VALUES (%(id)s, %(name)s, %(queue)s, false, 'FAILED', now(), now(), now(), %(kwargs)s, %(result)s, %(code)s, %(text)s, %(text)s)"""


def fill_day(url: str, tasks: int = 4_000, seconds: int = 86_000) -> None:
    """Store a day of history, with the counts that a worker would have written."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_DAY, {"tasks": tasks, "seconds": seconds})
        connection.execute(_DEPTHS)
    run_sync(_count(url))


async def _count(url: str) -> None:
    async with await connect(PostgresConfig(database_url=url)) as connection:
        await roll_up(connection)


def add_hostile_rows(url: str) -> None:
    """Store tasks with markup in every text, a huge one, and one whose result is not JSON."""
    error = {"error_code": HOSTILE_TEXT, "message": HOSTILE_TEXT, "exception": {"traceback": HOSTILE_TEXT}}
    _fail(
        url,
        HOSTILE_ID,
        HOSTILE_NAME,
        json.dumps({"x": HOSTILE_TEXT}),
        json.dumps({"err": error}),
        HOSTILE_TEXT,
    )
    _fail(url, HUGE_ID, "huge", json.dumps({"x": "y" * 200_000}), '{"err": null}', "HUGE")
    _fail(url, BINARY_ID, "binary", "\x01\x02 not JSON \ufffd", "\x01\x7f{\ufffd", "BINARY")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO horsies_tasks (task_name, queue_name, kwargs) VALUES (%s, %s, %s)",
            (HOSTILE_NAME, HOSTILE_QUEUE, HOSTILE_TEXT),
        )


def _fail(url: str, task_id: UUID, name: str, kwargs: str, result: str, code: str) -> None:
    values: dict[str, Any] = {
        "id": task_id, "name": name, "queue": HOSTILE_QUEUE, "kwargs": kwargs, "result": result, "code": code,
        "text": HOSTILE_TEXT,
    }  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FAILED, values)
