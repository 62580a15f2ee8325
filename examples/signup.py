"""A web app that sends mail in the background: the customer and the mail are stored in one transaction.

$ python examples/signup.py            signs one person up, and shows the mail
$ uvicorn --app-dir examples signup:web   serves it; run `horsies dev examples/signup.py:app` beside it
"""

from __future__ import annotations

import asyncio
import json
import os
import smtplib
import tempfile
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import psycopg
from running import worker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, embedded

app = Horsies()
MAILS = "EXAMPLE_MAIL_FOLDER"  # if set, mail is written to this folder instead of being sent


@app.task(
    "signup.welcome",
    exception_mapper={ConnectionRefusedError: "MAIL_SERVER_DOWN"},
    retry_policy=RetryPolicy.exponential(10, max_retries=5, auto_retry_for=["MAIL_SERVER_DOWN"]),
)
def welcome(address: str) -> TaskResult[str, TaskError]:
    mail = EmailMessage()
    mail["To"], mail["From"], mail["Subject"] = address, "shop@example.org", "Welcome"
    mail.set_content("Good to have you.")
    if MAILS in os.environ:
        Path(os.environ[MAILS], f"{address}.eml").write_bytes(mail.as_bytes())
    else:
        with smtplib.SMTP("localhost", timeout=10) as server:
            server.send_message(mail)
    return TaskResult(ok=address)


def database() -> psycopg.Connection[tuple[str]]:
    """Connect to the shop's database, which also holds the tasks."""
    return psycopg.connect(os.environ.get("HORSIES_DATABASE_URL") or embedded.ensure().url)


def sign_up(request: Request) -> JSONResponse:
    """Store the customer and send the task in one transaction."""
    with database() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS customers (address text PRIMARY KEY)")
        connection.execute("INSERT INTO customers VALUES (%s)", (request.query_params["address"],))
        sent = welcome.with_options(conn=connection).send(request.query_params["address"])
    return JSONResponse({"task": sent.unwrap().task_id}, status_code=202)


web = Starlette(routes=[Route("/signup", sign_up, methods=["POST"])])


async def post(path: str, query: str) -> Any:
    """Call the web app without a server, and return its status and body."""
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": []}
    await web(scope, receive, send)
    return messages[0]["status"], json.loads(messages[1]["body"])


def main() -> None:
    with tempfile.TemporaryDirectory() as mails:
        os.environ[MAILS] = mails
        with worker(__file__):
            # The tables must exist before the first send; in a deployment, run `horsies migrate`.
            asyncio.run(app.get_broker().ensure_schema_initialized()).unwrap()
            status, answer = asyncio.run(post("/signup", "address=ann@example.org"))
            print(status, app.handle(answer["task"], welcome).get(timeout_ms=60_000).unwrap())
        print(Path(mails, "ann@example.org.eml").read_text().strip().splitlines()[-1])


if __name__ == "__main__":
    main()
