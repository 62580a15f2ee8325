"""`horsies events`, as a person, a file and Elasticsearch get them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.cli.conftest import refused
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Workplace

LIFE = (
    "INSERT INTO horsies_tasks (task_name) VALUES ('send')",
    """UPDATE horsies_tasks SET status = 'RUNNING', started_at = now(), claimed_by_worker_id = gen_random_uuid()
        WHERE live AND status = 'PENDING'""",
    """UPDATE horsies_tasks SET live = false, status = 'FAILED', terminal_at = now(), error_code = 'BOUNCED',
              result = '{"err":{"error_code":"BOUNCED","message":"no such box","data":null,"exception":null}}'
        WHERE live""",
)


class Elastic(ThreadingHTTPServer):
    """Enough of Elasticsearch: keeps documents by their id, and says what it is told to say first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Bulk)
        self.documents: dict[str, Any] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.answers: list[int] = []  # status codes to give before anything is accepted
        self.dislikes = ""  # a kind that is refused item by item

    @property
    def url(self) -> str:
        return f"http://ann:s3cret@127.0.0.1:{self.server_port}"


class _Bulk(BaseHTTPRequestHandler):
    server: Elastic

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.path, self.headers["Authorization"]))
        if self.server.answers:
            self._answer(self.server.answers.pop(0), {})
            return
        lines = [json.loads(line) for line in body.splitlines()]
        items: list[dict[str, Any]] = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            if document["kind"] == self.server.dislikes:
                items.append({"index": {"status": 400, "error": {"reason": "no such field"}}})
            else:
                self.server.documents[action["index"]["_id"]] = document
                items.append({"index": {"status": 201}})
        self._answer(200, {"errors": any("error" in item["index"] for item in items), "items": items})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quietly."""


@pytest.fixture
def elastic() -> Iterator[Elastic]:
    with Elastic() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fail_one(db: psycopg.Connection[Any]) -> None:
    for step in LIFE:
        db.execute(step)
    db.execute("SELECT pg_sleep(0.25)")  # the last fifth of a second is not told yet


def test_events_are_lines_for_people_and_objects_for_programs(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    fail_one(db)

    said = workplace.run("events")
    programs = workplace.run("events", "--json", "--since=1h", "--kind=failed", "--name=send")

    assert (said.returncode, said.stderr) == (0, "")
    queued, processing, failed = said.stdout.splitlines()
    assert [line.split()[2] for line in (queued, processing, failed)] == ["queued", "processing", "failed"]
    assert failed.endswith("send  [default]  BOUNCED: no such box")
    assert "\x1b" not in said.stdout
    (event,) = map(json.loads, programs.stdout.splitlines())
    assert {event[key] for key in ("kind", "task_name", "error_code")} == {"failed", "send", "BOUNCED"}
    assert event["id"].startswith(event["task_id"])


def test_a_follower_outlives_the_connection_and_ends_quietly(
    workplace: Workplace, db: psycopg.Connection[Any]
) -> None:
    def lines(name: str = "out") -> list[str]:
        return (workplace.folder / name).read_text().splitlines()

    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        command = [sys.executable, "-m", "horsies", "events", "--follow", "--json", "--since=1m"]
        with open(workplace.folder / "out", "w+b") as out, open(workplace.folder / "err", "w+b") as err:
            follower = subprocess.Popen(
                command, cwd=workplace.folder, env=workplace.env, stdout=out, stderr=err
            )
        try:
            fail_one(db)
            eventually(lambda: len(lines()) == 3, what="the first events")
            proxy.refusing = True
            proxy.cut()
            eventually(lambda: "waiting for it" in "".join(lines("err")), what="a word about the loss")
            fail_one(db)
            proxy.refusing = False
            eventually(lambda: len(lines()) == 6, what="the events since then")
            follower.send_signal(signal.SIGINT)
            code = follower.wait(10)
        finally:
            follower.kill()
            follower.wait()

    assert code == 0
    assert "Traceback" not in "".join(lines("err"))
    assert "the database is back; going on from" in "".join(lines("err"))
    assert len({json.loads(line)["id"] for line in lines()}) == 6


def test_elasticsearch_gets_each_event_once_however_it_stumbles(
    workplace: Workplace, db: psycopg.Connection[Any], elastic: Elastic
) -> None:
    fail_one(db)
    elastic.answers = [429, 503]
    elastic.dislikes = "processing"

    first = workplace.run("events", "--since=1m", f"--to={elastic.url}", "--index=jobs")
    stored = dict(elastic.documents)
    db.execute("UPDATE horsies_event_cursors SET position = position - interval '1 minute'")
    again = workplace.run("events", f"--to={elastic.url}", "--index=jobs")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "it answered 429; 3 events wait" in first.stderr
    assert "1 events refused: no such field" in first.stderr
    assert {document["kind"] for document in stored.values()} == {"queued", "failed"}
    assert elastic.documents == stored
    assert {path for path, _ in elastic.requests} == {"/_bulk"}
    assert {login for _, login in elastic.requests} == {"Basic YW5uOnMzY3JldA=="}
    assert "s3cret" not in first.stdout + first.stderr
    rows = db.execute("SELECT sink FROM horsies_event_cursors").fetchall()
    assert [row["sink"] for row in rows] == [f"http://127.0.0.1:{urlsplit(elastic.url).port}/jobs"]


def test_what_was_not_accepted_is_not_passed_over(
    workplace: Workplace, db: psycopg.Connection[Any], elastic: Elastic
) -> None:
    fail_one(db)
    elastic.answers = [403]

    result = workplace.run("events", "--since=1m", f"--to={elastic.url}", "--index=jobs", "--sink=logs")

    refused(result, "HRS-420", "403", "HORSIES_EVENTS_API_KEY")
    assert "s3cret" not in result.stderr
    assert db.execute("SELECT FROM horsies_event_cursors").fetchall() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to=http://es"], ["--index"]),
        (["--to=ftp://ann:s3cret@es", "--index=jobs"], ["ftp://", "https://"]),
        (["--sink=logs"], ["--to"]),
        (["--since=soon"], ["'soon' is no duration"]),
    ],
)
def test_what_cannot_be_understood_is_said(arguments: list[str], words: list[str]) -> None:
    from click.testing import CliRunner

    from horsies.cli import horsies

    result = CliRunner().invoke(horsies, ["events", *arguments])

    assert result.exit_code == 2
    assert "s3cret" not in result.output
    for word in words:
        assert word in result.output
