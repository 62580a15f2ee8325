"""A person logs in with the token and out with a button, on a read-only dashboard."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.viewer import Viewer, browses

TOKEN = "a-token-that-is-long-enough"


@browses
def test_a_browser_logs_in_and_out_and_going_back_shows_nothing(
    serve: Callable[..., str], watch: Callable[..., Viewer], database_url: str
) -> None:
    viewer = watch(serve(database_url, token=TOKEN), tolerates="403")
    page = viewer.open("/queues")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("The token is wrong.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Queues")
    expect(page.locator(".live.on")).to_be_visible()  # the scripts of the page run
    (cookie,) = page.context.cookies()

    page.get_by_role("button", name="Log out").click()

    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []
    page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": viewer.base}])
    viewer.open("/queues")
    expect(page.get_by_label("Token")).to_be_visible()


@browses
def test_the_button_is_there_on_a_phone_too(
    serve: Callable[..., str], watch: Callable[..., Viewer], database_url: str
) -> None:
    viewer = watch(serve(database_url, token=TOKEN), width=390)
    page = viewer.open("/")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    assert not viewer.is_too_wide()
