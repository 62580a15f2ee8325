"""`horsies web`: it says that it listens when it does, and an address that it cannot have is an error."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.cli.conftest import misused, refused


def test_the_line_with_the_address_comes_when_the_address_answers(workplace):
    with subprocess.Popen(
        [sys.executable, "-m", "horsies", "web", "--port=0"],
        cwd=workplace.folder, env=workplace.env, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as web:  # fmt: skip
        try:
            assert web.stdout is not None
            found = re.match(r"dashboard at (http://127\.0\.0\.1:[1-9]\d*/)", web.stdout.readline())
            assert found is not None
            # at once, without a second try
            with urllib.request.urlopen(found[1]) as answer:
                assert answer.status == 200
            web.send_signal(signal.SIGINT)
            assert web.wait(20) == 0
        finally:
            web.kill()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_an_error_and_no_address_is_printed(workplace, host):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        result = workplace.run("web", f"--host={host}", f"--port={port}")

    refused(result, "HRS-231", str(port), "another process listens there", "--port")
    assert result.stdout == ""


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_the_machine_does_not_have_is_an_error(workplace, host):
    result = workplace.run("web", f"--host={host}", "--token=a-token-that-is-long-enough", "--port=0")

    refused(result, "HRS-231", host, "no address of this machine", "--host")
    assert result.stdout == ""


def test_a_port_that_is_no_port_is_refused(workplace):
    misused(workplace.run("web", "--port=99999"), "--port", "99999")
