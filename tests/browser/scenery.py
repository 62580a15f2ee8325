"""An app whose database has something to show on every screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from tests.browser.shop import SOURCE
from tests.pg.hands import Hands
from tests.support.workers import Workplace

SCREENS = (
    "/", "/tasks", "/tasks?status=FAILED", "/failures", "/queues", "/queues/mail?range=24h", "/names/send_mail?range=24h", "/keys", "/workers", "/workflows", "/waiting", "/schedules", "/health", "/api",
)  # fmt: skip
# A workflow that waits for an answer, and one with edges that cross columns.
FLOWS = """
@dataclass
class Approval:
    approved: bool
    amount: Decimal
    reason: str = ""
    level: Literal["team", "head", "board"] = "team"


@app.task("draft", queue_name="orders")
def draft(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("decide", queue_name="orders")
def decide(approval: Approval) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{approval.approved} {approval.amount} {approval.level}")


def reserve(order: int) -> str:
    time.sleep(0.05)
    return f"order {order} is reserved"


@app.task("return_goods", queue_name="orders", idempotent=True)
def return_goods(order: int) -> list[str]:
    t = current_task()
    reserved = t.step("reserve", reserve, order)
    by = t.wait_for("accepted by", str, timeout=86400)
    return [reserved, f"accepted by {by}"]


def refund(name: str = "refund"):
    ask = signal_node("approval", timeout_seconds=86400, waits_for=[first := draft.node(node_id="draft")(n=1)])
    out = decide.node(node_id="decide")(approval=from_node(ask))
    return app.workflow(name, [first, ask, out], output=out, definition_key="shop.refund.v1")


def close(rows: int = 6, columns: int = 5):
    nodes, before = [], []
    for column in range(columns):
        now = [
            draft.node(node_id=f"column-{column}-reconciliation-of-customer-{row}",
                       waits_for=[before[row], before[(row * 2 + 1) % rows], nodes[row]][:3 if column > 1 else 2] if before else [])(n=row)
            for row in range(rows)
        ]
        nodes, before = nodes + now, now
    last = draft.node(node_id="finish", waits_for=[*before, nodes[0]])(n=0)
    return app.workflow("quarterly close", [*nodes, last], output=last, definition_key="shop.close.v1")
"""
HEAD = """
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal
from horsies import signal_node
"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/.venv/lib/python3.12/site-packages/horsies/executor/runner.py", line 210, in call
    return function(**arguments)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/orders/mail.py", line 41, in send_mail
    deliver(to, subject)
  File "/srv/shop/orders/smtp.py", line 7, in deliver
    server.connect(host)
  File "/usr/lib/python3.12/smtplib.py", line 341, in connect
    self.sock = self._get_socket(host, port, self.timeout)
ConnectionRefusedError: [Errno 111] the mail server does not answer
"""
FAILED_ID = UUID("01900000-0000-7000-8000-00000000fa11")
_FAILED = """
INSERT INTO horsies_tasks (id, task_name, queue_name, live, status, sent_at, enqueued_at, started_at, failed_at, terminal_at, kwargs,
                           result, error_code, worker_hostname, worker_pid, earlier_attempts)
VALUES (%(id)s, 'send_mail', 'mail', false, 'FAILED', now() - interval '100 s', now() - interval '100 s', now() - interval '40 s',
        now() - interval '39 s', now() - interval '39 s', %(kwargs)s, %(result)s, 'UNHANDLED_EXCEPTION', 'vm', 7, 1)"""
_EARLIER = """
INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at, error_code, error_message)
VALUES (%(id)s, 1, 1, 'FAILED', now() - interval '90 s', now() - interval '60 s', 'UNHANDLED_EXCEPTION', 'no answer')"""


@dataclass
class Shop:
    """The app, its module, and the addresses of a failed task and of two workflows."""

    app: Any
    module: Any
    place: Workplace
    failed: str
    refund: str
    close: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.failed, self.refund, f"{self.refund}?node=1", f"{self.close}?node=3")


def shop_of(folder: Path, url: str) -> Iterator[Shop]:
    with Workplace(folder, url) as place:
        place.write(HEAD + SOURCE + FLOWS)
        module = place.load()
        refund, close = module.refund().start().unwrap(), module.close().start().unwrap()
        hands = Hands(url)
        hands.register("orders", waiting=False)
        hands.settle(hands.run_next("orders"))  # the first nodes, as a worker would
        hands.close()
        _store_failure(url)
        yield Shop(
            module.app,
            module,
            place,
            f"/tasks/{FAILED_ID}",
            f"/workflows/{refund.workflow_id}",
            f"/workflows/{close.workflow_id}",
        )


def _store_failure(url: str) -> None:
    exception = {"type": "ConnectionRefusedError", "message": "no answer", "traceback": TRACEBACK}
    error = {
        "error_code": "UNHANDLED_EXCEPTION",
        "message": "ConnectionRefusedError: the mail server does not answer",
        "data": None,
        "exception": exception,
    }
    arguments = {
        "to": "ann@shop.invalid",
        "order": 12345678901234567890,
        "lines": [{"sku": f"A-{n}", "count": n} for n in range(30)],
    }
    values = {"id": FAILED_ID, "kwargs": json.dumps(arguments), "result": json.dumps({"err": error})}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FAILED, values)
        connection.execute(_EARLIER, values)
