"""What the pages say of arguments and types is what the codec does."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.codec import ArgumentError
from horsies.codec.signature import Signature

NOWHERE = PostgresConfig(database_url="postgresql://nobody@127.0.0.1:1/nowhere")


def signature_of(annotation: Any) -> Signature:
    def take(value: Any) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    take.__annotations__["value"] = annotation
    return Horsies(AppConfig(broker=NOWHERE)).task("take")(take).definition.signature


@pytest.mark.parametrize(
    ("annotation", "given", "received"),
    [
        (tuple[int, ...], (1, 2), (1, 2)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (list[int], (1, 2), [1, 2]),
        (Any, (1, 2), [1, 2]),
        (set[int], [1, 1], {1}),
        (Decimal, Decimal("9.50"), Decimal("9.50")),
        (Decimal, "9.50", Decimal("9.50")),
        (Decimal, 9.5, Decimal("9.5")),
        (float, 1, 1.0),
        (date, "2026-11-18", date(2026, 11, 18)),
    ],
)
def test_a_value_arrives_as_its_annotation_says(annotation: Any, given: Any, received: Any) -> None:
    signature = signature_of(annotation)

    arrived = signature.decode(None, signature.encode((given,), {}))["value"]

    assert (type(arrived), repr(arrived)) == (type(received), repr(received))


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (Any, Decimal("9.50")),
        (Any, date(2026, 11, 18)),
        (Any, {1, 2}),
        (Any, {1: "one"}),
        (float, Decimal("9.50")),
        (int, True),
        (int, 1.0),
        (float, float("nan")),
    ],
)
def test_a_value_that_would_arrive_as_another_is_refused(annotation: Any, given: Any) -> None:
    with pytest.raises(ArgumentError, match="argument 'value"):
        signature_of(annotation).encode((given,), {})
