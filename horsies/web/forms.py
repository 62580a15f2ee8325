"""Make a form for a value from its type, for the signals that people answer. Pure functions.

The JSON schema of the type decides: a flag, a number, a text, a date or a choice gets a field of its own, an object of these
gets a field for each, and anything else is written as JSON. What is sent is checked against the type itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_args

import msgspec

from horsies.codec.values import adapter
from horsies.workflow.types import takes_result


class Field(NamedTuple):
    """A field of a form. `kind` is boolean, integer, number, text, date, datetime-local, choice or json."""

    name: str  # empty if the value has this field only
    label: str
    kind: str
    required: bool
    default: str
    choices: tuple[tuple[str, str], ...] = ()  # values and their labels


YES_NO = (("true", "Yes"), ("false", "No"))
ANY_JSON = (Field("", "Value", "json", True, ""),)


def value_type(annotation: Any) -> Any:
    """Return the type of a value that a parameter takes: T for `TaskResult[T, TaskError]`, and for T itself."""
    parts = get_args(annotation)
    return (parts[0] if parts else Any) if takes_result(annotation) else annotation


def form_of(annotation: Any) -> tuple[Field, ...]:
    """Return the fields of a form for a value of this type.

    >>> [(field.label, field.kind) for field in form_of(bool)]
    [('Value', 'boolean')]
    """
    schema = _schema(annotation)
    if schema is None:
        return ANY_JSON
    definitions: dict[str, Any] = schema.get("$defs", {})
    whole = _resolved(schema, definitions)
    properties: Any = whole.get("properties")
    if whole.get("type") != "object" or not isinstance(properties, dict) or not properties:
        return (_field("", "Value", whole, definitions, required=True),)
    required: list[str] = whole.get("required", [])
    return tuple(
        _field(name, _label(name), each, definitions, required=name in required)
        for name, each in cast("dict[str, Any]", properties).items()
    )


def _schema(annotation: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a type; None if neither msgspec nor Pydantic can make one."""
    try:
        return msgspec.json.schema(annotation)
    except Exception:  # noqa: BLE001  Pydantic knows types that msgspec does not
        return _pydantic_schema(annotation)


def _pydantic_schema(annotation: Any) -> dict[str, Any] | None:
    try:
        return adapter(annotation).json_schema()
    except Exception:  # noqa: BLE001  it raises errors of its own for types that it does not know
        return None


def _field(
    name: str, label: str, schema: Mapping[str, Any], definitions: Mapping[str, Any], *, required: bool
) -> Field:
    default = schema.get("default")
    written = "" if default is None else default if isinstance(default, str) else _json(default)
    shape = _resolved(schema, definitions)
    choices = shape.get("enum")
    if isinstance(choices, list) and all(isinstance(each, str) for each in cast("list[Any]", choices)):
        pairs = tuple((each, each) for each in cast("list[str]", choices))
        return Field(name, label, "choice", required, written, pairs)
    kind = {"boolean": "boolean", "integer": "integer", "number": "number"}.get(str(shape.get("type")))
    if shape.get("type") == "string":
        kind = {"date": "date", "date-time": "datetime-local", "decimal": "decimal"}.get(
            str(shape.get("format")), "text"
        )
    if kind is None:
        return Field(name, label, "json", required, "" if default is None else _json(default))
    return Field(name, label, kind, required, written, YES_NO if kind == "boolean" else ())


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference followed, and of an optional value that of the value."""
    found = dict(schema)
    for _ in range(10):
        reference = found.get("$ref")
        branches = [each for each in found.get("anyOf", []) if each.get("type") != "null"]
        if isinstance(reference, str):
            found = dict(definitions.get(reference.rpartition("/")[2], {}))
        elif len(branches) == 1:
            found = dict(branches[0])
        else:
            break
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _label(name: str) -> str:
    """Return the name of a field in words.

    >>> _label("approved_by")
    'Approved by'
    """
    words = name.replace("_", " ").strip() or name
    return words[:1].upper() + words[1:]
