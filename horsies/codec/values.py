"""Encode Python values as JSON and decode them by their annotations.

The first part decides which annotations have a JSON form; the second encodes and decodes values. Encoding fails, with the path
of the value, if decoding would not return an equal value.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, to_builtins
from msgspec import inspect as shapes
from msgspec.json import Decoder, Encoder

from horsies.codec.failures import error_document, error_from, render
from horsies.result import TaskError, TaskResult

_OLDEST_PYDANTIC = (2, 11)  # the first that can validate a model by its field names as well as its aliases
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
    """Pydantic has rejected the data."""


def why_not_json(annotation: Any) -> str | None:
    """Return the reason why values of this annotation have no JSON form; None if they have one.

    >>> why_not_json(dict[str, list[int]])
    >>> why_not_json(complex)
    'complex has no JSON form'
    """
    try:
        shape = shapes.type_info(annotation)
    except Exception as error:  # noqa: BLE001  reported below, unless Pydantic can handle the annotation
        msgspec_error: Exception | None = error
    else:
        msgspec_error = None
        if reason := _shape_problem(shape, set()):
            return reason
    for part in _parts(annotation):
        if reason := why_not_json(part):
            return reason
    return (
        _pydantic_problem(annotation, msgspec_error) if msgspec_error or _is_constrained(annotation) else None
    )


def adapter(annotation: Any) -> Any:
    """Return Pydantic's TypeAdapter for an annotation that msgspec cannot handle."""
    # Imported here because only users with such annotations need Pydantic.
    pydantic = importlib.import_module("pydantic")
    version = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
    if version < _OLDEST_PYDANTIC:
        raise ImportError(f"it needs Pydantic 2.11 or later, and {pydantic.VERSION} is installed")
    return pydantic.TypeAdapter(annotation)


class_adapter = cache(adapter)  # for classes: other annotations may not be hashable


def hydrate(reader: Any, data: bytes) -> Any:
    """Decode JSON with a TypeAdapter; raise HydrationError if it rejects the data."""
    try:
        return reader.validate_json(data, by_alias=True, by_name=True)
    except sys.modules["pydantic"].ValidationError as error:
        problems = error.errors(include_url=False)
        text = "; ".join(
            ": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems[:3]
        )
        raise HydrationError(text) from None


def has_pydantic_schema(cls: Any) -> bool:
    """Return True if the class has a Pydantic schema, as every model does."""
    return hasattr(cls, "__get_pydantic_core_schema__")


def type_name(annotation: Any) -> str:
    """Return the annotation as a person would write it."""
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
    """Return True if the annotation has constraints that msgspec would ignore."""
    metadata = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    has_constraints = any(type(item).__module__.partition(".")[0] in _PYDANTIC_METADATA for item in metadata)
    return has_constraints or any(_is_constrained(part) for part in _parts(annotation))


def _pydantic_problem(annotation: Any, msgspec_error: Exception | None) -> str | None:
    if isinstance(msgspec_error, NameError):
        return f"a field of it cannot be resolved: {msgspec_error}"
    try:
        adapter(annotation)
    except ModuleNotFoundError:
        return f"{msgspec_error or type_name(annotation)} (Pydantic could, and is not installed)"
    except Exception as error:  # noqa: BLE001  becomes the reason in the user's error
        first_line = str(error).partition("\n")[0]
        return f"{type_name(annotation)} has no JSON form: {first_line}"
    return None


def _shape_problem(shape: shapes.Type, seen: set[int]) -> str | None:
    """Return the first reason why a shape, or the shape of one of its fields, has no JSON form."""
    if id(shape) in seen:
        return None
    seen.add(id(shape))  # shapes of recursive types contain themselves
    if isinstance(shape, shapes.CustomType):
        known = shape.cls in (object, TaskResult) or has_pydantic_schema(shape.cls)
        return None if known else f"{type_name(shape.cls)} has no JSON form"
    if isinstance(shape, shapes.DictType) and not isinstance(shape.key_type, _KEY_SHAPES):
        return "a dict with such keys has no JSON form (keys are text, numbers, UUIDs, dates or enums)"
    for name in shape.__struct_fields__:
        held = getattr(shape, name)
        for item in cast(tuple[Any, ...], held if isinstance(held, tuple) else (held,)):
            inner = item.type if isinstance(item, shapes.Field) else item
            if isinstance(inner, shapes.Type) and (reason := _shape_problem(inner, seen)):
                return reason
    return None


MAX_DEPTH = 200  # far below the recursion limit of any interpreter
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # not one whose backslash is itself escaped
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_JSON_TYPES = frozenset({str, int, float, bool, type(None), list, tuple, dict})
_PLAIN_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


class ArgumentError(ValueError):
    """An argument cannot be encoded or decoded; the message names it and the reason."""


class NotEncodable(ValueError):
    """A value cannot be encoded; with `is_mismatch`, because it does not have the annotated type."""

    def __init__(self, problem: str, path: str = "", *, is_mismatch: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.is_mismatch = is_mismatch


def _encode_foreign(value: Any) -> Any:
    """Return the JSON form of a value that msgspec does not know."""
    if isinstance(value, TaskResult):
        return result_document(cast(TaskResult[Any, Any], value))
    if has_pydantic_schema(type(value)):
        # By field names and not aliases, so that `hydrate` can decode it.
        pydantic = class_adapter(cast(Any, type(value)))
        return Raw(pydantic.dump_json(value, round_trip=True, by_alias=False, warnings="error"))
    for base, convert in _PLAIN_BASES:
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"{type_name(type(value))} has no JSON form")


def decode_foreign(annotation: Any, form: Any) -> Any:
    """Return the value of an annotation that msgspec does not know, from its JSON form."""
    if annotation is object:
        return form
    if annotation is TaskResult or get_origin(annotation) is TaskResult:
        return decode_stored_result(encode_value(form), (*get_args(annotation), Any)[0])
    return hydrate(class_adapter(annotation), encode_value(form))


# Bound once, so that a task that patches msgspec or json in its process cannot affect these.
encode_value = Encoder(enc_hook=_encode_foreign).encode
decode_any: Callable[[bytes | str], Any] = Decoder().decode


def json_form(value: Any) -> Any:
    """Return the value as plain JSON values: dates as text, dataclasses as dicts."""
    return to_builtins(value, str_keys=True, enc_hook=lambda foreign: decode_any(encode_value(foreign)))


def result_document(result: TaskResult[Any, Any]) -> dict[str, Any]:
    """Return the result in its stored form: `{"ok": …}` or `{"err": …}`."""
    if result.is_ok():
        return {"ok": result.ok}
    if not isinstance(result.err, TaskError):
        raise NotEncodable(f"holds {_type_of(result.err)} as its error, not a TaskError", is_mismatch=True)
    return {"err": error_document(result.err, _error_data)}


def _error_data(data: Any) -> Raw:
    """Encode the data of an error, which only people read: any value with a JSON form is accepted."""
    try:
        form = json_form(data)
    except Exception as error:
        raise NotEncodable(_encoding_problem(error)) from error
    return Raw(codec_for(Any).encode(form))


class _StoredResult(Struct):
    ok: Raw | UnsetType = UNSET
    err: dict[str, Any] | UnsetType = UNSET


_decode_stored = Decoder(_StoredResult).decode


def decode_stored_result(data: bytes | str, value_type: Any) -> TaskResult[Any, TaskError]:
    """Decode a stored result; raise an exception if it is not valid."""
    stored = _decode_stored(data)
    if stored.ok is not UNSET and stored.err is UNSET:
        return TaskResult(ok=codec_for(value_type).decode(bytes(stored.ok)))
    if stored.err is not UNSET and stored.ok is UNSET:
        return TaskResult(err=error_from(stored.err))
    raise ValueError('a task result is {"ok": …} or {"err": {…}}')


def check_nul(data: bytes) -> None:
    """Raise NotEncodable for JSON with a NUL character, which PostgreSQL cannot store."""
    if b"\\u0000" in data and _NUL.search(data):
        raise NotEncodable("contains the NUL character, which PostgreSQL cannot store; remove it")


def check_text(data: bytes) -> None:
    """Raise NotEncodable for JSON that PostgreSQL cannot store or that is nested too deeply to decode."""
    check_nul(data)
    if len(data) > 2 * MAX_DEPTH and is_too_deep(data):
        raise NotEncodable(f"is nested more than {MAX_DEPTH} levels deep; flatten it")


def is_too_deep(data: bytes) -> bool:
    """Return True if containers nest deeper than `MAX_DEPTH`, without recursion."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(_BRACKETS, _OTHERS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
        if not brackets:
            return False
    return True


class Codec:
    """Encode and decode the values of one annotation; `native` if msgspec alone can, with all of its constraints.

    >>> codec_for(list[int]).encode([1, 2])
    b'[1,2]'
    """

    __slots__ = ("annotation", "decode", "is_any", "native")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.is_any = annotation is Any or annotation is object
        self.decode: Callable[[bytes | str], Any]
        try:
            self.decode = Decoder(annotation, dec_hook=decode_foreign).decode
            self.native = not _is_constrained(annotation)
        except Exception:  # noqa: BLE001  `why_not_json` has reported it; here it only selects the decoder
            self.native = False
        if not self.native:
            type_adapter = adapter(annotation)
            self.decode = lambda data: hydrate(type_adapter, data.encode() if isinstance(data, str) else data)

    def encode(self, value: Any, limit: int | None = None) -> bytes:
        """Encode a value; raise NotEncodable if it would not be decoded to an equal value."""
        try:
            data = encode_value(value)
        except NotEncodable:
            raise
        except Exception as error:
            raise NotEncodable(_encoding_problem(error)) from error
        if limit is not None and len(data) > limit:
            raise NotEncodable(f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")
        check_text(data)
        try:
            fault = find_difference(value, self.decode(data))
        except Exception as error:
            raise self._mismatch(value, data, error) from error
        if fault:
            fault.is_mismatch = fault.is_mismatch and not self.is_any
            raise fault
        return data

    def _mismatch(self, value: Any, data: bytes, error: Exception) -> NotEncodable:
        """Return the error for a value whose JSON does not match the annotation."""
        try:
            # msgspec encodes nan as null: report the nan, not the missing number.
            fault = find_difference(json_form(value), decode_any(data))
        except Exception as reason:  # noqa: BLE001  becomes the reason: the value has no JSON form at all
            return NotEncodable(_encoding_problem(reason))
        if fault:
            return fault
        problem, path = locate(error)
        # The path leads to a part of the value, whose type the problem names.
        what = "does not fit" if path else f"is {_type_of(value)}"
        return NotEncodable(f"{what}: {problem}", path, is_mismatch=True)


_codecs: dict[Any, Codec] = {}


def codec_for(annotation: Any) -> Codec:
    """Return the codec of an annotation; it is built once."""
    try:
        return _codecs[annotation]
    except KeyError:
        codec = _codecs[annotation] = Codec(annotation)
        return codec
    except TypeError:  # metadata in Annotated need not be hashable
        return Codec(annotation)


def encode_json(value: Any) -> bytes:
    """Encode plain JSON values; raise ArgumentError if they would not be decoded to equal values.

    >>> encode_json({"a": [1, None]})
    b'{"a":[1,null]}'
    """
    try:
        return codec_for(Any).encode(value)
    except NotEncodable as fault:
        raise ArgumentError(f"{'value' + fault.path} {fault.problem}") from fault


def decode_json(data: bytes | str) -> Any:
    """Decode JSON; raise ArgumentError if it is invalid or contains NUL."""
    try:
        check_nul(data.encode() if isinstance(data, str) else data)
        return decode_any(data)
    except (NotEncodable, ValueError, RecursionError) as error:
        raise ArgumentError(f"not usable as JSON: {render(error)}") from error


def locate(error: Exception) -> tuple[str, str]:
    """Return the message of a decoding error, and the place of the value as a path such as `.lines[0]`."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", ""
    problem, _, path = render(error).partition(" - at `$")
    problem = problem[:1].lower() + problem[1:] if isinstance(error, ValidationError) else problem
    return problem or type(error).__name__, path.removesuffix("`")


def find_difference(given: Any, back: Any, path: str = "") -> NotEncodable | None:
    """Return the error for the first place where `back`, decoded from the JSON of `given`, differs from it."""
    with suppress(Exception):  # a failing __eq__ proves nothing; the fields are compared instead
        if given == back:
            return None
    pairs = _pairs(given, back, path)
    if pairs is not None:
        return next(filter(None, (find_difference(*pair) for pair in pairs)), None)
    if type(back) not in _JSON_TYPES and _is_json(given):
        return None  # passed in its JSON form
    if extra := _extra_key(given, back):
        return NotEncodable(f"has the extra key {extra}", path, is_mismatch=True)
    if isinstance(given, float) and not isfinite(given):
        return NotEncodable(f"is {given}, which JSON has no form for; use None or text", path)
    change = "another value" if type(given) is type(back) else _type_of(back)
    return NotEncodable(f"is {_type_of(given)} and would come back as {change}", path, is_mismatch=True)


def _pairs(given: Any, back: Any, path: str) -> Iterator[tuple[Any, Any, str]] | None:
    """Return the items of two containers of one kind as pairs; None for anything else."""

    def both(kind: Any) -> bool:
        return isinstance(given, kind) and isinstance(back, kind)

    if both(TaskResult):
        # Errors are encoded as text on purpose; only the value must be decoded unchanged.
        return iter([(given.ok, back.ok, f"{path}.ok")])
    if both((list, tuple)) and len(given) == len(back):
        return ((a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(given, back, strict=True)))
    if both(dict) and len(given) == len(back):
        return _dict_pairs(given, back, path)
    names = _field_names(given) if type(given) is type(back) else ()
    return ((getattr(given, n), getattr(back, n), f"{path}.{n}") for n in names) if names else None


def _extra_key(given: object, back: object) -> str | None:
    """Return the first key that decoding leaves out, because the TypedDict does not have it."""
    if not (isinstance(given, dict) and isinstance(back, dict)):
        return None
    keys = cast("dict[Any, Any]", given)
    return next((repr(key) for key in keys if isinstance(key, str) and key not in back), None)


def _dict_pairs(given: dict[Any, Any], back: dict[Any, Any], path: str) -> Iterator[tuple[Any, Any, str]]:
    for (key, value), (back_key, back_value) in zip(given.items(), back.items(), strict=True):
        place = f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[…]"
        yield key, back_key, f"{place} (the key)"
        yield value, back_value, place


def _field_names(value: Any) -> tuple[str, ...]:
    if is_dataclass(value):
        return tuple(field.name for field in dataclass_fields(cast(Any, value)))
    if isinstance(value, Struct):
        return value.__struct_fields__
    if hasattr(cast(Any, type(value)), "__pydantic_fields__"):
        return tuple(cast(dict[str, Any], vars(value)))
    return ()


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return all(type(key) is str and _is_json(item) for key, item in items)
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, cast(list[Any], value)))
    return type(value) in _JSON_TYPES and (type(value) is not float or isfinite(value))


def _encoding_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"contains itself, or is nested more than {MAX_DEPTH} levels deep"
    if isinstance(error, UnicodeEncodeError):
        return "contains a lone surrogate, which is not text; encode it as bytes or replace it"
    return f"cannot be written as JSON: {render(error) or type(error).__name__}"


def _type_of(value: Any) -> str:
    return type_name(type(value))
