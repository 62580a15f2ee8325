"""Say which annotations have a JSON form.

msgspec knows most of them. Pydantic is asked for the rest (unions of models, constraints written as
Pydantic fields), and only then imported: a user without Pydantic types never pays for it.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from msgspec import inspect as shapes
from msgspec.json import Decoder

from horsies.results import TaskResult

_OLDEST_PYDANTIC = (2, 11)  # the first that can read a model by its field names, whatever its aliases
_MODULES = re.compile(r"""(?<![\w'"])(?:(?:\w+|<locals>)\.)+""")
_PYDANTIC_METADATA = {"pydantic", "annotated_types"}
_KEY_SHAPES = (
    shapes.AnyType,
    shapes.StrType,
    shapes.IntType,
    shapes.FloatType,
    shapes.DecimalType,
    shapes.UUIDType,
    shapes.EnumType,
    shapes.LiteralType,
    shapes.DateType,
    shapes.DateTimeType,
    shapes.TimeType,
    shapes.TimeDeltaType,
    shapes.BytesType,
)


class HydrationError(ValueError):
    """Pydantic refused the data."""


def unfit(annotation: Any) -> str | None:
    """Why values of this annotation cannot travel as JSON; None when they can.

    >>> unfit(dict[str, list[int]])
    >>> unfit(complex)
    'complex has no JSON form'
    """
    try:
        shape = shapes.type_info(annotation)
    except Exception as error:  # noqa: BLE001  reported below, unless Pydantic knows better
        refusal: Exception | None = error
    else:
        refusal = None
        if reason := _unfit_shape(shape, set()):
            return reason
    for part in _parts(annotation):
        if reason := unfit(part):
            return reason
    return _unfit_for_pydantic(annotation, refusal) if refusal or _is_constrained(annotation) else None


def is_native(annotation: Any) -> bool:
    """Whether msgspec alone reads values of this annotation, and heeds all that it says."""
    try:
        Decoder(annotation, dec_hook=lambda _type, value: value)
    except Exception:  # noqa: BLE001  `unfit` has told the user; here it only picks the reader
        return False
    return not _is_constrained(annotation)


def adapter(annotation: Any) -> Any:
    """Pydantic's reader and writer for an annotation that msgspec cannot handle."""
    # Imported here because only users with such annotations need Pydantic.
    pydantic = importlib.import_module("pydantic")
    version = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
    if version < _OLDEST_PYDANTIC:
        raise ImportError(f"it needs Pydantic 2.11 or later, and {pydantic.VERSION} is installed")
    return pydantic.TypeAdapter(annotation)


class_adapter = cache(adapter)  # for classes, which unlike other annotations can always be hashed


def hydrate(reader: Any, data: bytes) -> Any:
    """Read JSON by an adapter's rules; HydrationError when they refuse it."""
    try:
        return reader.validate_json(data, by_alias=True, by_name=True)
    except sys.modules["pydantic"].ValidationError as error:
        problems = error.errors(include_url=False)
        text = "; ".join(
            ": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems[:3]
        )
        raise HydrationError(text) from None


def dump(value: Any) -> bytes:
    """Write a value whose class brings a Pydantic schema; names, not aliases, so that `hydrate` reads it."""
    return class_adapter(cast(Any, type(value))).dump_json(
        value, round_trip=True, by_alias=False, warnings="error"
    )


def has_pydantic_schema(cls: Any) -> bool:
    """Whether the class brings a Pydantic schema, as every model does."""
    return hasattr(cls, "__get_pydantic_core_schema__")


def type_name(annotation: Any) -> str:
    """The annotation as a person would write it."""
    is_class = isinstance(annotation, type) and not get_args(annotation)
    return _MODULES.sub("", annotation.__qualname__ if is_class else str(annotation))


def _parts(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Literal:
        return []
    parts = get_args(annotation)
    if origin is Annotated or origin is TaskResult:
        return [parts[0]] if parts else []
    return [part for part in parts if part is not Ellipsis]


def _is_constrained(annotation: Any) -> bool:
    """Whether it holds constraints that msgspec would pass over in silence."""
    metadata = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    ours = any(type(item).__module__.partition(".")[0] in _PYDANTIC_METADATA for item in metadata)
    return ours or any(_is_constrained(part) for part in _parts(annotation))


def _unfit_for_pydantic(annotation: Any, refusal: Exception | None) -> str | None:
    if isinstance(refusal, NameError):
        return f"a field of it cannot be resolved: {refusal}"
    try:
        adapter(annotation)
    except ModuleNotFoundError:
        return f"{refusal or type_name(annotation)} (Pydantic could, and is not installed)"
    except Exception as error:  # noqa: BLE001  becomes the reason in the error that the user sees
        first_line = str(error).partition("\n")[0]
        return f"{type_name(annotation)} has no JSON form: {first_line}"
    return None


def _unfit_shape(shape: shapes.Type, seen: set[int]) -> str | None:
    """Look through a shape, and the shapes of its fields, for something that JSON cannot carry."""
    if id(shape) in seen:
        return None
    seen.add(id(shape))  # shapes of recursive types contain themselves
    if isinstance(shape, shapes.CustomType):
        known = shape.cls in (object, TaskResult) or has_pydantic_schema(shape.cls)
        return None if known else f"{type_name(shape.cls)} has no JSON form"
    if isinstance(shape, shapes.DictType) and not isinstance(shape.key_type, _KEY_SHAPES):
        return "a dict with such keys has no JSON form (keys are text, numbers, UUIDs, dates or enums)"
    return next((reason for inner in _inner_shapes(shape) if (reason := _unfit_shape(inner, seen))), None)


def _inner_shapes(shape: shapes.Type) -> Iterator[shapes.Type]:
    for name in shape.__struct_fields__:
        held = getattr(shape, name)
        for item in cast(tuple[Any, ...], held if isinstance(held, tuple) else (held,)):
            inner = item.type if isinstance(item, shapes.Field) else item
            if isinstance(inner, shapes.Type):
                yield inner
