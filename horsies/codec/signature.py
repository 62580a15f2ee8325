"""Encode and decode the arguments of a task by the signature of its function.

A signature is built when the function is decorated, so that a task whose values have no JSON form is rejected at once. A call
with wrong arguments is rejected before it is stored.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from msgspec import UNSET, Raw, defstruct
from msgspec.json import Decoder

from horsies.codec.values import (
    ArgumentError,
    NotEncodable,
    check_nul,
    check_text,
    codec_for,
    decode_foreign,
    encode_value,
    locate,
    type_name,
    why_not_json,
)
from horsies.errors import ErrorCode, TaskDefinitionError
from horsies.result import TaskError, TaskResult

INJECTED = frozenset({"workflow_ctx", "workflow_meta"})
_UNSUPPORTED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "*{}: name each parameter",
    inspect.Parameter.VAR_KEYWORD: "**{}: name each parameter, or take one dict",
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only parameter {}: remove the '/' from the signature",
}
_decode_object = Decoder(dict[str, Raw]).decode
_decode_array = Decoder(list[Raw]).decode


class Signature:
    """The codec of one task's arguments and result, by its annotations.

    >>> def add(a: int, b: int = 0) -> int: ...
    >>> signature = Signature.of(add, task_name="add")
    >>> signature.encode((1,), {"b": 2})
    b'{"a":1,"b":2}'
    >>> signature.decode(None, b'{"a":1}')
    {'a': 1}
    """

    def __init__(
        self,
        *,
        task_name: str,
        value_type: Any,
        parameters: Mapping[str, inspect.Parameter],
        injected: frozenset[str],
        returns_result: bool = False,
    ) -> None:
        """Build the codec; `Signature.of` has checked that every annotation has a JSON form.

        With `returns_result`, the function returns `TaskResult[value_type, TaskError]`; without, the value itself.
        """
        self.task_name = task_name
        self.value_type = value_type
        self.returns_result = returns_result
        self.parameters: Mapping[str, inspect.Parameter] = MappingProxyType(dict(parameters))
        self.injected = injected
        self._codecs = {name: codec_for(parameter.annotation) for name, parameter in parameters.items()}
        self._foreign = tuple(name for name, codec in self._codecs.items() if not codec.native)
        self._required = frozenset(name for name, p in parameters.items() if p.default is p.empty)
        self._positional = tuple(name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY)
        fields: list[Any] = [
            (name, codec.annotation if codec.native else Raw, *(() if name in self._required else (UNSET,)))
            for name, codec in self._codecs.items()
        ]
        arguments = defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        self._decode_struct: Callable[[bytes | str], Any] = Decoder(arguments, dec_hook=decode_foreign).decode

    @classmethod
    def of(cls, fn: Callable[..., Any], *, task_name: str, batch: bool = False) -> "Signature":
        """Return the signature of a task function; raise TaskDefinitionError if an annotation has no JSON form.

        With `batch`, the function takes a list and returns one, and the signature is that of one element.
        """
        hints = _resolve(fn, task_name)
        if batch:
            hints = _of_one_member(fn, hints, task_name)
        value_type, returns_result = _value_type(hints, task_name)
        injected: set[str] = set()
        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(fn).parameters.items():
            if parameter.kind in _UNSUPPORTED_KINDS:
                what, _, remedy = _UNSUPPORTED_KINDS[parameter.kind].format(name).partition(": ")
                _reject(f"task {task_name!r} takes {what}, and arguments travel by name", remedy)
            if name in INJECTED:
                injected.add(name)
                continue
            annotation = hints.get(name, Any)
            _require_json(annotation, f"parameter {name!r} of task {task_name!r}")
            parameters[name] = parameter.replace(annotation=annotation)
        _require_json(value_type, f"the return value of task {task_name!r}")
        return cls(
            task_name=task_name,
            value_type=value_type,
            parameters=parameters,
            injected=frozenset(injected),
            returns_result=returns_result,
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode arguments as a JSON object; ArgumentError names the one that does not match."""
        given = self._bind(args, kwargs)
        return self._encode_whole(given) or self._encode_each(given)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, those with their defaults included; ArgumentError if they do not fit."""
        defaults = {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}
        return defaults | self._bind(args, kwargs)

    def encode_part(self, kwargs: Mapping[str, Any]) -> bytes:
        """Encode some of the arguments as a JSON object; unknown names are left out."""
        return self._encode_each({name: value for name, value in kwargs.items() if name in self._codecs})

    def decode(self, args_json: bytes | str | None, kwargs_json: bytes | str | None) -> dict[str, Any]:
        """Decode the arguments to call the function with; raise ArgumentError if they do not match the signature."""
        data = b"{}" if kwargs_json is None else kwargs_json
        try:
            if args_json is not None:
                data = encode_value(self._bind(tuple(_decode_array(args_json)), _decode_object(data)))
            check_nul(data.encode() if isinstance(data, str) else data)
            return self._arguments(data)
        except ArgumentError:
            raise
        except Exception as error:
            problem, path = locate(error)
            place = f"argument {path.removeprefix('.')!r}" if path else "the arguments"
            raise ArgumentError(f"{place} of task {self.task_name!r} cannot be read: {problem}") from error

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given arguments by name, as a call of the function would bind them."""
        names = self._positional
        if len(args) > len(names):
            raise ArgumentError(
                f"task {self.task_name!r} takes {len(names)} positional arguments, {len(args)} were given"
            )
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs):
            twice = next(name for name in names[: len(args)] if name in kwargs)
            raise ArgumentError(
                f"argument {twice!r} of task {self.task_name!r} is given twice, by position and by name"
            )
        if not given.keys() <= self._codecs.keys():
            unknown = next(name for name in given if name not in self._codecs)
            if unknown in self.injected:
                raise ArgumentError(
                    f"argument {unknown!r} of task {self.task_name!r} is filled in when the task runs; leave it out"
                )
            known = ", ".join(self._codecs) or "no arguments"
            raise ArgumentError(f"task {self.task_name!r} has no argument {unknown!r}; it takes {known}")
        if not self._required <= given.keys():
            missing = ", ".join(repr(name) for name in self._codecs if name in self._required - given.keys())
            raise ArgumentError(f"task {self.task_name!r} is missing {missing}; pass a value for each")
        return given

    def _encode_whole(self, given: dict[str, Any]) -> bytes | None:
        """Encode all arguments at once, which is fast; return None if any of them needs a closer look."""
        try:
            data = encode_value(given)
            check_text(data)
            return data if self._arguments(data) == given else None
        except Exception:  # noqa: BLE001  `_encode_each` meets the same error and can name the argument
            return None

    def _encode_each(self, given: dict[str, Any]) -> bytes:
        encoded: dict[str, Raw] = {}
        for name, value in given.items():
            codec = self._codecs[name]
            try:
                encoded[name] = Raw(codec.encode(value))
            except NotEncodable as error:
                remedy = f"; pass {type_name(codec.annotation)}" if error.is_mismatch else ""
                where = f"argument {name + error.path!r} of task {self.task_name!r}"
                raise ArgumentError(f"{where} {error.problem}{remedy}") from error
        return encode_value(encoded)

    def _arguments(self, data: bytes | str) -> dict[str, Any]:
        arguments = self._decode_struct(data)
        values = {name: value for name in self._codecs if (value := getattr(arguments, name)) is not UNSET}
        for name in self._foreign:
            if name in values:
                values[name] = self._codecs[name].decode(bytes(values[name]))
        return values


def _resolve(fn: Callable[..., Any], task_name: str) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception as error:
        raise TaskDefinitionError(
            f"an annotation of task {task_name!r} cannot be resolved: {error}",
            code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
            help_text="import the type at the top of the module, outside `if TYPE_CHECKING:` and outside functions",
        ) from error


def _value_type(hints: Mapping[str, Any], task_name: str) -> tuple[Any, bool]:
    """Return the type of the task's value, and True if the function returns it in a `TaskResult`."""
    if "return" not in hints:
        raise TaskDefinitionError(
            f"task {task_name!r} does not say what it returns",
            code=ErrorCode.TASK_NO_RETURN_TYPE,
            help_text="annotate it with the type of its value, as in `def add(x: int, y: int) -> int:`; "
            "`-> None` if it returns nothing",
        )
    annotation = _without_alias(hints["return"])
    parts = get_args(annotation)
    if get_origin(annotation) is TaskResult and len(parts) == 2:
        value_type, error_type = parts
        if isinstance(error_type, type) and issubclass(error_type, TaskError):
            return value_type, True
    elif not any(each is TaskResult or get_origin(each) is TaskResult for each in (annotation, *parts)):
        return hints["return"], False
    raise TaskDefinitionError(
        f"task {task_name!r} returns {type_name(annotation)}, not TaskResult[T, TaskError]",
        code=ErrorCode.TASK_INVALID_RETURN_TYPE,
        help_text="annotate it as `-> TaskResult[T, TaskError]`, where T is the type of its value on success; or as `-> T`, "
        "and raise TaskFailure to fail",
    )


def _of_one_member(fn: Callable[..., Any], hints: Mapping[str, Any], task_name: str) -> dict[str, Any]:
    """Return the hints of a batch function as they are for one member: without the lists around them."""
    names = list(inspect.signature(fn).parameters)
    remedy = "a batch is one call for many sends: write it as `def index(docs: list[Doc]) -> list[int]:`"
    if len(names) != 1 or names[0] in INJECTED:
        _reject(f"task {task_name!r} runs in batches and takes {len(names)} parameters, not one list", remedy)
    members: dict[str, Any] = {}
    for name, what in ((names[0], f"takes {names[0]!r}"), ("return", "returns a value")):
        annotation = _without_alias(hints.get(name, Any))
        if get_origin(annotation) is not list:
            _reject(
                f"task {task_name!r} runs in batches and {what} annotated {type_name(annotation)}, not a list[…]",
                remedy,
            )
        (members[name],) = get_args(annotation)
    return members


def _without_alias(annotation: Any) -> Any:
    """Return the value of a `type X = …` alias; anything else unchanged."""
    while True:
        origin = get_origin(annotation)
        if hasattr(annotation, "__value__") and origin is None:
            annotation = annotation.__value__
        elif hasattr(origin, "__value__"):
            annotation = origin.__value__[get_args(annotation)]
        else:
            return annotation


def _require_json(annotation: Any, subject: str) -> None:
    if reason := why_not_json(annotation):
        _reject(
            f"{subject} is annotated {type_name(annotation)}: {reason}",
            "use JSON types, dates, UUID, Decimal, enums, dataclasses, TypedDict, NamedTuple or Pydantic models; "
            "for anything else pass what it takes to build it, such as an id or a path",
        )


def _reject(message: str, help_text: str) -> NoReturn:
    raise TaskDefinitionError(message, code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, help_text=help_text)
