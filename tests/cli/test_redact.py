"""`--redact`, HORSIES_REDACT and the app's setting hide values in whatever a command prints."""

from __future__ import annotations

import json

import pytest

SECRET = "4111-2222"
STORE = """
    WITH task AS (
        INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, failed_at, terminal_at, args,
                                   kwargs, result)
        VALUES ('charge', 'default', false, 'FAILED', 'DECLINED', now(), now(), now(), %(args)s, %(kwargs)s, %(result)s)
        RETURNING id
    ), logged AS (
        INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)
        SELECT id, 0, 0, 1, now(), 'INFO', 'shop', 'charging ' || %(secret)s FROM task
    ), tried AS (
        INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at, error_message)
        SELECT id, 0, 1, 'FAILED', now(), now(), 'declined ' || %(secret)s FROM task
    )
    SELECT id::text FROM task
"""
APP = """
    from horsies import AppConfig, TaskError, TaskResult

    app = Horsies(AppConfig(redact=["card"]))

    @app.task("charge")
    def charge(order: int, card: str) -> TaskResult[int, TaskError]:
        return TaskResult(ok=order)
"""


@pytest.fixture
def failed(db):
    """The id of a task that failed with an error that quotes an argument."""
    values = {
        "args": json.dumps([7]),
        "kwargs": json.dumps({"payer": {"Card": SECRET, "name": "Ann"}}),
        "result": json.dumps(
            {"err": {"error_code": "DECLINED", "message": f"no money on {SECRET}", "data": {"card": SECRET}}}
        ),
        "secret": SECRET,
    }
    return db.execute(STORE, values).fetchone()["id"]


def commands(task_id):
    """Whatever prints arguments, results, or messages that may quote them."""
    events = ["events", "--since=1h"]
    return [
        ["show", task_id], ["show", task_id, "--json"], ["failed"], ["failed", "--json"], ["tasks", "--json"], events,
        [*events, "--json"],
    ]  # fmt: skip


def test_no_command_prints_a_redacted_value(workplace, failed):
    for command in commands(failed):
        before, after = (
            workplace.run(*command),
            workplace.run(*command, "--redact", "password", "--redact", "CARD"),
        )
        assert (before.returncode, after.returncode) == (0, 0), after.stderr
        assert SECRET in before.stdout, command
        assert SECRET not in after.stdout, command
        assert "[redacted]" in after.stdout, command


def test_what_show_prints_as_json_stays_json(workplace, failed):
    document = json.loads(workplace.run("show", failed, "--json", "--redact", "card").stdout)

    assert document["kwargs"] == {"payer": {"Card": "[redacted]", "name": "Ann"}}
    assert document["result"]["err"]["data"] == {"card": "[redacted]"}
    assert document["message"] == "no money on [redacted]"


def test_the_environment_names_what_to_hide(workplace, failed):
    workplace.env["HORSIES_REDACT"] = "password,card"

    for command in commands(failed):
        assert SECRET not in workplace.run(*command).stdout, command


def test_the_app_names_what_to_hide_also_by_position(workplace, db, failed):
    workplace.write(APP)
    db.execute("UPDATE horsies_tasks SET args = %s, kwargs = NULL", (json.dumps([7, SECRET]),))

    for command in commands(failed):
        done = workplace.run(*command, "--app", "app:app")
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout, command
    assert '[7, "[redacted]"]' in workplace.run("show", failed, "--app", "app:app").stdout


def test_workflows_hide_values_in_results_and_errors(workplace, db):
    workplace.write(
        """
        from horsies import TaskError, TaskResult

        app = Horsies()

        @app.task("charge")
        def charge(order: int) -> TaskResult[dict[str, str], TaskError]:
            return TaskResult(ok={"card": "4111-2222"})

        def flow():
            return app.workflow("pay", [charge.node()(order=1)], definition_key="pay.v1")
        """
    )
    shop = workplace.load()
    workplace.start()
    flow = shop.flow().start().unwrap()
    flow.get(timeout_ms=20_000)
    db.execute(
        "UPDATE horsies_workflows SET error = %s", (json.dumps({"message": "m", "data": {"card": SECRET}}),)
    )

    command = ["workflows", "show", flow.workflow_id, "--json"]
    assert workplace.run(*command).stdout.count(SECRET) == 2
    after = workplace.run(*command, "--redact", "card")
    assert after.returncode == 0, after.stderr
    assert SECRET not in after.stdout
    assert after.stdout.count("[redacted]") == 2
