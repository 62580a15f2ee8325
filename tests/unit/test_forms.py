"""A form for a value is made of its type."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pydantic
import pytest

from horsies import TaskError, TaskResult
from horsies.web import forms
from horsies.web.forms import ANY_JSON, form_of, value_type


class Level(Enum):
    TEAM = "team"
    BOARD = "board"


class Odd:
    def __init__(self, other: Any) -> None: ...


@dataclass
class Approval:
    approved: bool
    amount: Decimal
    on: date
    at: datetime
    count: int | None = None
    level: Level = Level.TEAM
    extra: dict[str, int] | None = None


class Model(pydantic.BaseModel):
    approved: bool
    rate: float = 0.5
    at: datetime | None = None


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        (bool, ["boolean"]),
        (int, ["integer"]),
        (str, ["text"]),
        (float | None, ["number"]),
        (Literal["a", "b"], ["choice"]),
        (Approval, ["boolean", "decimal", "date", "text", "integer", "choice", "json"]),
        (Model, ["boolean", "number", "datetime-local"]),
        (list[int], ["json"]),
        (Any, ["json"]),
        (dict[str, int], ["json"]),
    ],
)
def test_each_type_has_the_fields_that_fit(annotation: Any, kinds: list[str]) -> None:
    assert [field.kind for field in form_of(annotation)] == kinds


def test_fields_have_labels_defaults_and_choices() -> None:
    fields = {field.name: field for field in form_of(Approval)}

    assert (fields["approved"].label, fields["approved"].required) == ("Approved", True)
    assert (fields["level"].required, fields["level"].default) == (False, "team")
    assert {value for value, _ in fields["level"].choices} == {"team", "board"}
    assert form_of(Model)[1].default == "0.5"


def test_a_type_without_a_schema_is_written_as_json() -> None:
    assert form_of(Odd) == ANY_JSON
    assert form_of(None)[0].kind == "json"


def test_the_value_in_a_result_counts() -> None:
    assert value_type(TaskResult[int, TaskError]) is int
    assert value_type(int) is int
    assert doctest.testmod(forms).failed == 0
