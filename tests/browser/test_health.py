"""Health: the worst first, a sentence and a command for each, and a paused queue is not a stuck one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from playwright.sync_api import expect

from horsies.db.queries.doctor import CHECKS
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@pytest.mark.breaks_invariants
@browses
def test_the_worst_comes_first_and_each_finding_has_a_sentence_and_a_command(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, queue_name, enqueued_at) VALUES ('add', 'odd name', now() - interval '1 h')"
    )
    db.execute("INSERT INTO horsies_tasks_live (task_name, queue_name) VALUES ('add', 'held')")
    db.execute(
        "UPDATE horsies_tasks_live SET status = 'RUNNING', claimed_by_worker_id = gen_random_uuid(),"
        " claimed_at = now() - interval '1 h', started_at = now() - interval '1 h' WHERE queue_name = 'held'"
    )
    page = watch(serve(database_url)).open("/health")

    findings = page.locator(".finding")
    expect(findings.first.locator(".pill")).to_have_text("broken", timeout=20_000)
    expect(findings.locator("h2")).to_contain_text(
        ["held by a worker that has been gone", "no worker to serve them"]
    )
    expect(findings.locator(".command code")).to_contain_text(
        ["horsies info --workers", "horsies worker --queues 'odd name'"]
    )
    assert "`" not in page.locator("main").inner_text()


@browses
def test_a_paused_queue_is_told_apart_from_a_stuck_one(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, queue_name, enqueued_at) VALUES ('add', 'mail', now() - interval '1 h')"
    )
    db.execute("INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES ('mail', 'ann')")
    page = watch(serve(database_url)).open("/health")

    known = page.locator(".finding.known")
    expect(known.locator("h2")).to_contain_text("The queue mail is paused by ann: 1 task waits.")
    expect(known.locator("code")).to_have_text("horsies resume --queue mail")
    expect(page.locator(".checked summary")).to_contain_text("checks passed", timeout=20_000)
    expect(page.locator(".finding", has_text="due for more than")).to_have_count(0)


@browses
def test_the_page_lists_the_largest_tables_and_what_operators_did(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    db.execute("INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, 500)")
    db.execute("ANALYZE horsies_tasks_live")
    db.execute(
        "INSERT INTO horsies_actions (actor, action, subject, tasks) VALUES ('web:ann', 'suspend', 'mail', 0)"
    )
    page = watch(serve(database_url)).open("/health")

    row = page.locator("tr", has_text="horsies_tasks_live")
    expect(row).to_contain_text("≈ 500")
    expect(row).to_contain_text(re.compile("[kM]B"))
    expect(page.locator("tr", has_text="web:ann")).to_contain_text("pause")
    page.locator(".checked summary").click(timeout=20_000)
    expect(page.locator(".checks li").first).to_be_visible()
    assert page.locator(".checks li").all_inner_texts() == [check.title for check in CHECKS]
