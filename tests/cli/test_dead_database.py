"""A database that is away: every command says where it looked, why it failed and what to do, without the password."""

from __future__ import annotations

import pytest

from tests.cli.conftest import refused

ID = "01900000-0000-7000-8000-000000000001"
COMMANDS = [
    ["info"], ["info", "-W"], ["info", "--watch"], ["tasks"], ["failed"], ["show", ID], ["why", ID], ["events"], ["top"],
    ["health"], ["doctor"], ["retry", "--all"], ["retry", ID], ["cancel", ID], ["pause"], ["resume"],
    ["purge", "--older-than=1d"], ["schedules", "list"], ["schedules", "next", "x"], ["schedules", "pause", "x"],
    ["schedules", "resume", "x"], ["schedules", "delete", "x"], ["workflows", "list"], ["workflows", "show", ID],
    ["workflows", "pause", ID], ["workflows", "resume", ID], ["workflows", "cancel", ID], ["workflows", "retry", ID],
    ["migrate"], ["migrate", "--check"], ["migrate", "--sql"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_that_the_database_is_away(workplace, deaf_port, words):
    result = workplace.run(*words, "--database-url", f"postgresql://ann:s3cret@127.0.0.1:{deaf_port}/app")

    refused(result, "HRS-413", f"ann:***@127.0.0.1:{deaf_port}", "Connection refused", "start the server")
    assert "s3cret" not in result.stderr
    assert "\t" not in result.stderr
    assert result.stdout == ""


def test_each_of_several_hosts_is_named_with_its_reason(workplace, deaf_port):
    hosts = f"127.0.0.1:{deaf_port},127.0.0.2:{deaf_port}"

    result = workplace.run("tasks", "--database-url", f"postgresql://ann:s3cret@{hosts}/app")

    reasons = [
        f'connection to server at "{host}", port {deaf_port} failed: Connection refused'
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    refused(result, "HRS-413", f"ann:***@{hosts}/app: {'; '.join(reasons)}\n")
