"""The list of tasks: compact, sorted and narrowed down as a viewer likes, still while he reads, and acted on as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from playwright.sync_api import expect

from tests.browser import scene
from tests.browser.viewer import Viewer, browses
from tests.support.waiting import eventually

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]

_FAIL = """
INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, terminal_at, kwargs, result)
SELECT %(name)s, 'mail', false, 'FAILED', 'SMTP_DOWN', now() - interval '1 min', now() - make_interval(secs => n),
       json_build_object('order', n, 'note', repeat('x', 300)),
       json_build_object('err', json_build_object('error_code', 'SMTP_DOWN', 'message', 'no answer for order ' || n))
  FROM generate_series(1, %(count)s) AS n"""


def fail(db: Db, count: int, name: str = "send_mail") -> None:
    db.execute(_FAIL, {"name": name, "count": count})


def wait(db: Db, count: int) -> None:
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs)"
        " SELECT 'charge_card', 'orders', json_build_object('order', n) FROM generate_series(1, %s) AS n",
        (count,),
    )


def acts(db: Db) -> list[tuple[str, int]]:
    rows = db.execute("SELECT action, tasks FROM horsies_actions ORDER BY id").fetchall()
    return [(row["action"], row["tasks"]) for row in rows]


@browses
def test_a_screen_of_900_pixels_shows_25_tasks_with_the_arguments_that_tell(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    scene.fill_day(database_url, 300)
    fail(db, 3)
    page = watch(serve(database_url, enable_actions=True), width=1440).open("/tasks")

    bottoms: list[float] = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().bottom)"
    )
    assert sum(bottom <= 900 for bottom in bottoms) >= 25
    row = page.locator("tr[data-status=COMPLETED]").first
    expect(row.locator(".details")).to_contain_text("order=")
    expect(row.locator(".details")).not_to_contain_text("{")


@browses
def test_failures_show_their_message_and_the_time_at_which_they_failed(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, 2)
    page = watch(serve(database_url)).open("/tasks?status=FAILED")

    expect(page.locator("th")).to_contain_text(["State", "Task", "Queue", "Arguments", "Error", "Failed"])
    row = page.locator("tbody tr").first
    expect(row.locator(".error")).to_have_text("SMTP_DOWN no answer for order 1")
    expect(row.locator("time")).to_contain_text("ago")


@browses
def test_columns_and_orders_are_chosen_and_kept_in_the_address(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 300)
    page = watch(serve(database_url)).open("/tasks")

    page.get_by_role("link", name="Run time").click()
    page.wait_for_url("**sort=-run*")
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Run time")
    expect(page.locator("td.name").first).to_have_text("render_report")
    page.get_by_role("link", name="Run time").click()
    page.wait_for_url("**sort=run*")
    page.locator("#older").click()
    page.wait_for_url("**page=2*")
    expect(page.locator("tbody tr")).to_have_count(50)

    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Priority").check()
    page.wait_for_url("**cols=*")
    expect(page.get_by_role("columnheader", name="Priority")).to_be_visible()
    page.goto(page.url.partition("/tasks")[0] + "/tasks")
    expect(page.get_by_role("columnheader", name="Priority")).to_be_visible()


@browses
def test_a_view_is_saved_under_a_name(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    fail(db, 2)
    page = watch(serve(database_url)).open("/tasks?status=FAILED&name=send_mail&sort=-attempts")
    page.locator("summary", has_text="Views").click()
    page.get_by_label("Name of the view").fill("My failures")
    page.get_by_role("button", name="Save").click()

    page.goto(page.url.partition("/tasks")[0] + "/tasks")
    page.locator("summary", has_text="Views").click()
    page.get_by_role("link", name="My failures").click()

    page.wait_for_url("**status=FAILED&name=send_mail&sort=-attempts")


@browses
def test_keys_walk_select_and_open_rows(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    wait(db, 3)
    page = watch(serve(database_url, enable_actions=True)).open("/tasks")
    for key in ("j", "j", "k", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("tr.marked .pick")).to_be_checked()
    expect(page.locator("tbody tr").nth(1)).to_have_class("marked")
    target = page.locator("tr.marked a").first.get_attribute("href")
    assert target is not None

    page.keyboard.press("Enter")

    page.wait_for_url(f"**{target}")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("select the marked row")


@browses
def test_what_the_reader_looks_at_stays_in_place_and_new_tasks_are_announced(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    wait(db, 60)
    page = watch(serve(database_url)).open("/tasks")
    expect(page.locator(".live.on")).to_be_visible()
    seen = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.row)")
    place = page.locator("tbody tr").nth(10).bounding_box()

    wait(db, 12)
    db.execute("UPDATE horsies_tasks_live SET status = 'RUNNING', started_at = now(), claimed_by_worker_id = %s"
               " WHERE id = %s", (scene.HOSTILE_ID, seen[10]))  # fmt: skip

    expect(page.locator("[data-newer]")).to_have_text("12 new · show")
    expect(page.locator("tbody tr").nth(10).locator(".state")).to_have_text("running")
    assert page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.row)") == seen
    assert place is not None
    page.locator("[data-newer]").click()
    expect(page.locator("[data-newer]")).to_have_count(0)
    expect(page.locator("tbody tr").nth(22)).to_have_attribute("data-row", seen[10])
    db.execute("DELETE FROM horsies_tasks_live WHERE status = 'RUNNING'")


@browses
def test_a_failure_that_somebody_else_retries_stays_in_its_place_as_gone(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, 5)
    page = watch(serve(database_url)).open("/tasks?status=FAILED")
    expect(page.locator(".live.on")).to_be_visible()
    gone = page.locator("tbody tr").nth(2).get_attribute("data-row")

    db.execute("DELETE FROM horsies_tasks WHERE id = %s", (gone,))

    expect(page.locator("tbody tr").nth(2)).to_have_class("gone")
    expect(page.locator("[data-newer]")).to_have_text("1 gone · show")
    expect(page.locator("tbody tr")).to_have_count(5)


@browses
def test_all_tasks_that_match_are_selected_counted_and_named_before_they_are_retried(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, 468)
    fail(db, 10, "other")
    page = watch(serve(database_url, enable_actions=True)).open("/tasks?status=FAILED&name=send_mail")
    page.locator("#all").check()
    expect(page.locator("#chosen")).to_have_text("50 tasks selected")
    expect(page.locator("[data-bulk]")).to_have_text(["Retry 50", "Delete 50"])
    page.get_by_role("button", name="Select all 468 matching").click()
    expect(page.locator("#chosen")).to_have_text("All 468 tasks that match are selected")
    page.get_by_role("button", name="Retry 468").click()

    dialog = page.locator("#ask")
    expect(dialog).to_contain_text("Retry 468 tasks that match?")
    expect(dialog.locator(".asked")).to_have_text("statefailedtasksend_mail")
    expect(dialog.get_by_role("button", name="Go back")).to_be_focused()
    dialog.get_by_role("button", name="Retry tasks").click()

    expect(page.locator("#toast")).to_contain_text("468 tasks of 468 wait again.")
    assert acts(db) == [("requeue", 468)]
    assert db.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'FAILED'").fetchone() == {
        "count": 10
    }


@browses
def test_only_what_is_possible_is_offered(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    wait(db, 2)
    fail(db, 1)
    db.execute("UPDATE horsies_tasks SET workflow_id = gen_random_uuid() WHERE status = 'FAILED'")
    page = watch(serve(database_url, enable_actions=True)).open("/tasks")

    page.locator("tr[data-status=PENDING] .pick").first.check()
    expect(page.locator("[data-bulk]")).to_have_text(["Cancel 1"])
    page.locator("tr[data-status=PENDING] .pick").first.uncheck()
    expect(page.locator("#bulk")).to_be_hidden()
    page.locator("tr[data-status=FAILED] .pick").check()
    expect(page.locator("[data-bulk]")).to_have_count(0)
    expect(page.locator("#bulk")).to_contain_text("act on the workflow")
    db.execute("DELETE FROM horsies_tasks WHERE workflow_id IS NOT NULL")


@browses
def test_a_cancel_of_waiting_tasks_is_undone(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    wait(db, 7)
    page = watch(serve(database_url, enable_actions=True)).open("/tasks?status=PENDING")
    page.locator("#all").check()
    page.get_by_role("button", name="Cancel 7").click()
    expect(page.locator("#ask").get_by_role("button", name="Keep them")).to_be_focused()
    page.get_by_role("button", name="Cancel tasks").click()
    expect(page.locator("#toast")).to_contain_text("7 tasks of 7 cancelled.")
    expect(page.locator("main")).to_contain_text("No matching tasks.")

    page.get_by_role("button", name="Undo").click()

    expect(page.locator("#toast")).to_contain_text("7 tasks were sent again.")
    expect(page.locator("tr[data-status=PENDING]")).to_have_count(7)
    assert acts(db) == [("cancel", 7), ("undo cancel", 7)]


@browses
def test_a_long_action_shows_its_progress_and_can_be_stopped(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    wait(db, 30_000)
    page = watch(serve(database_url, enable_actions=True)).open("/tasks?name=charge_card")
    page.locator("#all").check()
    page.get_by_role("button", name="Select all 30,000 matching").click()
    page.get_by_role("button", name="Cancel 30,000").click()
    page.get_by_role("button", name="Cancel tasks").click()
    expect(page.locator("#ask progress")).to_be_visible()
    expect(page.locator("#ask")).to_contain_text("of 30,000 tasks so far")

    page.get_by_role("button", name="Stop here").click()

    expect(page.locator("#toast")).to_contain_text("cancelled; stopped.")
    eventually(lambda: acts(db), what="the record of the action")
    done = db.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'CANCELLED'").fetchone()
    assert done is not None
    assert 0 < done["count"] < 30_000
    assert acts(db) == [("cancel", done["count"])]
