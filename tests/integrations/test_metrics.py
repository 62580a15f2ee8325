"""OpenTelemetry collects the figures of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.integrations.opentelemetry import measure


def collected(app: Horsies) -> dict[str, dict[tuple[str, ...], float]]:
    """Every figure by its name and the values of its labels."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    measure(app, provider)
    found = reader.get_metrics_data()
    provider.shutdown()
    if found is None:
        return {}
    return {
        metric.name: {
            tuple(map(str, (point.attributes or {}).values())): point.value
            for point in metric.data.data_points  # type: ignore[union-attr]
        }
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def app(database_url: str) -> Iterator[Horsies]:
    app = Horsies(AppConfig.for_database_url(database_url))
    yield app
    asyncio.run(app.get_broker().close_async())


def test_what_waits_and_what_has_ended_is_collected(app: Horsies, db: Any) -> None:
    @app.task("add")
    def add(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    add.send_many([(number,) for number in range(3)]).unwrap()
    db.execute(
        "INSERT INTO horsies_totals (queue_name, task_name, completed, failed, cancelled, expired, wait_ms, run_ms,"
        " waits, runs) VALUES ('default', 'add', 7, 2, 0, 1, 0, 0, '{}', '{}')"
    )

    figures = collected(app)

    assert figures["horsies.queue.pending"] == {("default",): 3}
    assert figures["horsies.queue.oldest"][("default",)] > 0
    assert figures["horsies.tasks"][("default", "add", "completed")] == 7
    assert figures["horsies.tasks"][("default", "add", "failed")] == 2


def test_a_database_that_is_away_costs_the_figures_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    figures = collected(Horsies(AppConfig.for_database_url("postgresql://ann:s3cret@127.0.0.1:9/none")))

    assert figures == {}
    assert "metrics cannot be read" in caplog.text
    assert "s3cret" not in caplog.text
