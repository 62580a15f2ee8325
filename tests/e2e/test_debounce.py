"""A debounced task runs once more after the run that has begun, in a worker that is told and does not poll."""

from __future__ import annotations

import psycopg

from tests.e2e.observing import lines
from tests.e2e.office import URL
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000),
))

@app.task("index", unique=lambda document, text: str(document), on_conflict="last")
def index(document: int, text: str) -> str:
    with open("began", "a") as began:
        began.write(text + "\\n")
    while text == "slow" and not Path("go").exists():
        time.sleep(0.01)
    return text
"""


def test_the_newest_text_is_indexed_after_the_run_that_has_begun(workplace: Workplace) -> None:
    workplace.write(URL + APP)
    index = workplace.load().index
    workplace.start("--processes=2")
    began, go = workplace.folder / "began", workplace.folder / "go"
    first = index.delay(7, "slow")
    eventually(lambda: began.exists() and lines(began) == ["slow"], what="the first run")

    followers = [index.delay(7, text) for text in ("a", "ab", "abc")]
    assert index.delay(8, "other").result(timeout=20) == "other"
    go.touch()

    assert first.result(timeout=20) == "slow"
    assert followers[0].result(timeout=20) == "abc"
    assert {follower.task_id for follower in followers} == {followers[0].task_id}
    assert lines(began) == ["slow", "other", "abc"]


def test_a_run_that_a_slow_transaction_has_asked_for_begins_with_its_commit(
    workplace: Workplace, database_url: str
) -> None:
    workplace.write(URL + APP)
    index = workplace.load().index
    workplace.start("--processes=1")
    began, go = workplace.folder / "began", workplace.folder / "go"
    first = index.delay(7, "slow")
    eventually(lambda: began.exists() and lines(began) == ["slow"], what="the first run")

    with psycopg.connect(database_url) as connection:
        second = index.with_options(conn=connection).delay(7, "new")
        go.touch()
        assert first.result(timeout=20) == "slow"  # the open transaction does not keep the run from ending
        connection.commit()

    assert second.result(timeout=20) == "new"
