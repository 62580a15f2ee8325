"""The command `horsies web`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request

import click

from horsies.cli.services import web
from tests.cli.conftest import refused
from tests.docs.pages import ROOT, tables
from tests.support.workers import Workplace


def test_the_dashboard_starts_answers_and_stops_while_somebody_follows(workplace: Workplace) -> None:
    workplace.write("app = Horsies()")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [sys.executable, "-m", "horsies", "web", "app:app", "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=workplace.folder,
        env=workplace.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
        base = f"http://127.0.0.1:{port}"
        stream = _once_it_answers(f"{base}/events", process)
        with urllib.request.urlopen(f"{base}/queues") as page:
            assert b"There are no queues yet." in page.read()
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        stream.close()
        assert process.wait(10) == 0
    assert said == ""


def _once_it_answers(url: str, process: subprocess.Popen[str]) -> object:
    while True:
        assert process.poll() is None
        try:
            return urllib.request.urlopen(url)
        except OSError:
            continue


def test_every_flag_is_listed() -> None:
    options = [each for each in web.params if isinstance(each, click.Option) and not each.hidden]
    flags = {flag for option in options for flag in option.opts}

    rows = tables(ROOT / "docs" / "dashboard.md")["Dashboard"]

    assert {flag for row in rows for flag in row[0].split(", ")} == flags


def test_a_dashboard_open_to_everybody_is_refused(workplace: Workplace) -> None:
    result = workplace.run("web", "--host", "0.0.0.0")

    refused(result, "HRS-230", "--token", "0.0.0.0")
