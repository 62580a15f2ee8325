"""One value, one annotation: the JSON text, and the value back.

`Codec.encode` reads its own text back before it lets it go, so that a value either comes out equal on
the other side or is refused here. JSON has its own opinions on a few things, and they are the rule: a
tuple in free JSON comes out as a list, and a value may be given in its JSON form (a UUID as text, a
dataclass as a dict). Nothing else changes on the way.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from math import isfinite
from typing import Any, cast, get_args, get_origin

from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError, to_builtins
from msgspec.json import Decoder, Encoder

from horsies.codec.failures import error_document, error_from, render
from horsies.codec.schema import (
    adapter,
    class_adapter,
    dump,
    has_pydantic_schema,
    hydrate,
    is_native,
    type_name,
)
from horsies.results import TaskError, TaskResult

MAX_DEPTH = 200  # far below what any interpreter's recursion limit lets a reader take
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
    """A value cannot be sent to a task, or what was sent cannot be read; the message says which and why."""


class Unfit(ValueError):
    """A value that cannot be written; `mismatch` when it is only not of the annotated type."""

    def __init__(self, problem: str, path: str = "", *, mismatch: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.mismatch = mismatch


def _write_foreign(value: Any) -> Any:
    """The JSON form of what msgspec does not know."""
    if isinstance(value, TaskResult):
        return result_document(cast(TaskResult[Any, Any], value))
    if has_pydantic_schema(type(value)):
        return Raw(dump(value))
    for base, convert in _PLAIN_BASES:
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"{type_name(type(value))} has no JSON form")


def read_foreign(annotation: Any, form: Any) -> Any:
    """The value of an annotation that msgspec does not know, from its JSON form."""
    if annotation is object:
        return form
    if annotation is TaskResult or get_origin(annotation) is TaskResult:
        return read_result(write(form), (*get_args(annotation), Any)[0])
    return hydrate(class_adapter(annotation), write(form))


# Bound once: a task that patches msgspec or json in its process does not reach these.
write = Encoder(enc_hook=_write_foreign).encode
read_free: Callable[[bytes | str], Any] = Decoder().decode


def json_form(value: Any) -> Any:
    """The value as plain JSON values: dates as text, dataclasses as dicts."""
    return to_builtins(value, str_keys=True, enc_hook=lambda foreign: read_free(write(foreign)))


def result_document(result: TaskResult[Any, Any]) -> dict[str, Any]:
    """The result as it is stored: `{"ok": …}` or `{"err": …}`."""
    if result.is_ok():
        return {"ok": result.ok}
    if not isinstance(result.err, TaskError):
        raise Unfit(f"holds {_a(result.err)} as its error, not a TaskError", mismatch=True)
    return {"err": error_document(result.err, _error_data)}


def _error_data(data: Any) -> Raw:
    """What goes with an error is for people to read, so any value with a JSON form will do."""
    try:
        form = json_form(data)
    except Exception as error:
        raise Unfit(_why_unwritable(error)) from error
    return Raw(codec_for(Any).encode(form))


class _StoredResult(Struct):
    ok: Raw | UnsetType = UNSET
    err: dict[str, Any] | UnsetType = UNSET


_read_stored = Decoder(_StoredResult).decode


def read_result(data: bytes | str, value_type: Any) -> TaskResult[Any, TaskError]:
    """The result in a stored text; an exception when there is none in it."""
    stored = _read_stored(data)
    if stored.ok is not UNSET and stored.err is UNSET:
        return TaskResult(ok=codec_for(value_type).read(bytes(stored.ok)))
    if stored.err is not UNSET and stored.ok is UNSET:
        return TaskResult(err=error_from(stored.err))
    raise ValueError('a task result is {"ok": …} or {"err": {…}}')


def check_nul(data: bytes) -> None:
    """Refuse JSON that holds the one character PostgreSQL has no place for."""
    if b"\\u0000" in data and _NUL.search(data):
        raise Unfit("contains the NUL character, which PostgreSQL cannot store; remove it")


def check_text(data: bytes) -> None:
    """Refuse JSON that PostgreSQL or a reader could not take."""
    check_nul(data)
    if len(data) > 2 * MAX_DEPTH and is_too_deep(data):
        raise Unfit(f"is nested more than {MAX_DEPTH} levels deep; flatten it")


def is_too_deep(data: bytes) -> bool:
    """Whether containers nest beyond `MAX_DEPTH`, found without recursion."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(_BRACKETS, _OTHERS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # takes away the innermost level
        if not brackets:
            return False
    return True


class Codec:
    """Writes and reads the values of one annotation.

    >>> codec_for(list[int]).encode([1, 2])
    b'[1,2]'
    """

    __slots__ = ("annotation", "is_free", "native", "read")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.is_free = annotation is Any or annotation is object
        self.native = is_native(annotation)
        self.read: Callable[[bytes | str], Any]
        if self.native:
            self.read = Decoder(annotation, dec_hook=read_foreign).decode
        else:
            reader = adapter(annotation)
            self.read = lambda data: hydrate(reader, data.encode() if isinstance(data, str) else data)

    def encode(self, value: Any, limit: int | None = None) -> bytes:
        """The JSON text of the value; Unfit when it would not come back equal."""
        try:
            data = write(value)
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(_why_unwritable(error)) from error
        if limit is not None and len(data) > limit:
            raise Unfit(f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")
        check_text(data)
        try:
            fault = find_loss(value, self.read(data))
        except Exception as error:
            raise self._misfit(value, data, error) from error
        if fault:
            fault.mismatch = fault.mismatch and not self.is_free
            raise fault
        return data

    def _misfit(self, value: Any, data: bytes, error: Exception) -> Unfit:
        """Why the text of a value does not fit the annotation."""
        try:
            # msgspec writes nan as null; that, not the missing number, is the problem.
            fault = find_loss(json_form(value), read_free(data))
        except Exception as reason:  # noqa: BLE001  becomes the reason: not even the JSON form can be read
            return Unfit(_why_unwritable(reason))
        if fault:
            return fault
        problem, path = locate(error)
        return Unfit(f"is {_a(value)}: {problem}", path, mismatch=True)


_codecs: dict[Any, Codec] = {}


def codec_for(annotation: Any) -> Codec:
    """The codec of an annotation, built once."""
    try:
        return _codecs[annotation]
    except KeyError:
        codec = _codecs[annotation] = Codec(annotation)
        return codec
    except TypeError:  # metadata in Annotated need not be hashable
        return Codec(annotation)


def encode_json(value: Any) -> bytes:
    """The JSON text of plain JSON values; ArgumentError for anything that would not come back equal.

    >>> encode_json({"a": [1, None]})
    b'{"a":[1,null]}'
    """
    try:
        return codec_for(Any).encode(value)
    except Unfit as fault:
        raise ArgumentError(f"{'value' + fault.path} {fault.problem}") from fault


def decode_json(data: bytes | str) -> Any:
    """The values of a JSON text; ArgumentError when it is none, or holds NUL."""
    try:
        check_nul(data.encode() if isinstance(data, str) else data)
        return read_free(data)
    except (Unfit, ValueError, RecursionError) as error:
        raise ArgumentError(f"not usable as JSON: {render(error)}") from error


def locate(error: Exception) -> tuple[str, str]:
    """What a reader found wrong, and where, as a path such as `.lines[0]`."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", ""
    problem, _, path = render(error).partition(" - at `$")
    problem = problem[:1].lower() + problem[1:] if isinstance(error, ValidationError) else problem
    return problem or type(error).__name__, path.removesuffix("`")


def find_loss(given: Any, back: Any, path: str = "") -> Unfit | None:
    """The first place where `back`, read from the JSON of `given`, is something else."""
    if _equal(given, back):
        return None
    pairs = _pairs(given, back, path)
    if pairs is not None:
        return next(filter(None, (find_loss(*pair) for pair in pairs)), None)
    if type(back) not in _JSON_TYPES and _is_json(given):
        return None  # given in its JSON form
    if isinstance(given, float) and not isfinite(given):
        return Unfit(f"is {given}, which JSON has no form for; use None or text", path)
    change = "another value" if type(given) is type(back) else _a(back)
    return Unfit(f"is {_a(given)} and would come back as {change}", path, mismatch=True)


def _pairs(given: Any, back: Any, path: str) -> Iterator[tuple[Any, Any, str]] | None:
    """What two containers of one kind hold, side by side; None for anything else."""
    if _both(TaskResult, given, back):
        # Errors are written as text on purpose; only the value has to come back as it was.
        return iter([(given.ok, back.ok, f"{path}.ok")])
    if _both((list, tuple), given, back) and len(given) == len(back):
        return ((a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(given, back, strict=True)))
    if _both(dict, given, back) and len(given) == len(back):
        return _dict_pairs(given, back, path)
    names = _field_names(given) if type(given) is type(back) else ()
    return ((getattr(given, n), getattr(back, n), f"{path}.{n}") for n in names) if names else None


def _both(kind: Any, given: Any, back: Any) -> bool:
    return isinstance(given, kind) and isinstance(back, kind)


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


def _equal(given: Any, back: Any) -> bool:
    try:
        return bool(given == back)
    except Exception:  # noqa: BLE001  a failing __eq__ proves nothing; the parts are compared instead
        return False


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return all(type(key) is str and _is_json(item) for key, item in items)
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, cast(list[Any], value)))
    return type(value) in _JSON_TYPES and (type(value) is not float or isfinite(value))


def _why_unwritable(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"contains itself, or is nested more than {MAX_DEPTH} levels deep"
    if isinstance(error, UnicodeEncodeError):
        return "contains a lone surrogate, which is not text; encode it as bytes or replace it"
    return f"cannot be written as JSON: {render(error) or type(error).__name__}"


def _a(value: Any) -> str:
    return type_name(type(value))
