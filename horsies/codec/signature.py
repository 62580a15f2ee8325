"""What a task function takes and returns, made into a codec once.

Built when the function is decorated, so that a task whose values could not travel is refused before
anything is sent, and a call that does not fit is refused before it is stored.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from msgspec import UNSET, Raw, defstruct
from msgspec.json import Decoder

from horsies.codec.schema import type_name, unfit
from horsies.codec.values import (
    ArgumentError,
    Unfit,
    check_nul,
    check_text,
    codec_for,
    locate,
    read_foreign,
    write,
)
from horsies.errors import ErrorCode, TaskDefinitionError
from horsies.results import TaskError, TaskResult

INJECTED = frozenset({"workflow_ctx", "workflow_meta"})
_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "*{}: name each parameter",
    inspect.Parameter.VAR_KEYWORD: "**{}: name each parameter, or take one dict",
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only parameter {}: remove the '/' from the signature",
}
_read_object = Decoder(dict[str, Raw]).decode
_read_array = Decoder(list[Raw]).decode


class Signature:
    """The arguments and the result of one task, by its annotations.

    >>> def add(a: int, b: int = 0) -> TaskResult[int, TaskError]: ...
    >>> signature = Signature.of(add, task_name="add")
    >>> signature.encode((1,), {"b": 2})
    b'{"a":1,"b":2}'
    >>> signature.decode(None, b'{"a":1}')
    {'a': 1}
    """

    __slots__ = (
        "_codecs",
        "_foreign",
        "_positional",
        "_read",
        "_required",
        "injected",
        "parameters",
        "task_name",
        "value_type",
    )

    def __init__(
        self,
        *,
        task_name: str,
        value_type: Any,
        parameters: Mapping[str, inspect.Parameter],
        injected: frozenset[str],
    ) -> None:
        """Use `Signature.of`; here every parameter's annotation is a type with a JSON form."""
        self.task_name = task_name
        self.value_type = value_type
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
        self._read: Callable[[bytes | str], Any] = Decoder(arguments, dec_hook=read_foreign).decode

    @classmethod
    def of(cls, fn: Callable[..., Any], *, task_name: str) -> "Signature":
        """Read the signature of a task function; TaskDefinitionError when its values could not travel."""
        hints = _resolve(fn, task_name)
        value_type = _value_type(hints, task_name)
        injected: set[str] = set()
        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(fn).parameters.items():
            if parameter.kind in _REFUSED_KINDS:
                what, _, remedy = _REFUSED_KINDS[parameter.kind].format(name).partition(": ")
                _refuse(f"task {task_name!r} takes {what}, and arguments travel by name", remedy)
            if name in INJECTED:
                injected.add(name)
                continue
            annotation = hints.get(name, Any)
            _require_json(annotation, f"parameter {name!r} of task {task_name!r}")
            parameters[name] = parameter.replace(annotation=annotation)
        _require_json(value_type, f"the return value of task {task_name!r}")
        return cls(
            task_name=task_name, value_type=value_type, parameters=parameters, injected=frozenset(injected)
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The JSON object of the given arguments; ArgumentError names the one that does not fit."""
        given = self._bind(args, kwargs)
        return self._encode_whole(given) or self._encode_each(given)

    def encode_part(self, kwargs: Mapping[str, Any]) -> bytes:
        """The JSON object of some arguments by name, where the others come later; names that are unknown are left out."""
        return self._encode_each({name: value for name, value in kwargs.items() if name in self._codecs})

    def decode(self, args_json: bytes | str | None, kwargs_json: bytes | str | None) -> dict[str, Any]:
        """The arguments to call the function with; ArgumentError for anything that is not such."""
        data = b"{}" if kwargs_json is None else kwargs_json
        try:
            if args_json is not None:
                data = write(self._bind(tuple(_read_array(args_json)), _read_object(data)))
            check_nul(data.encode() if isinstance(data, str) else data)
            return self._arguments(data)
        except ArgumentError:
            raise
        except Exception as error:
            problem, path = locate(error)
            place = f"argument {path.removeprefix('.')!r}" if path else "the arguments"
            raise ArgumentError(f"{place} of task {self.task_name!r} cannot be read: {problem}") from error

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The given arguments by name, like a call of the function would bind them."""
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
            raise ArgumentError(self._unknown(next(name for name in given if name not in self._codecs)))
        if not self._required <= given.keys():
            missing = ", ".join(repr(name) for name in self._codecs if name in self._required - given.keys())
            raise ArgumentError(f"task {self.task_name!r} is missing {missing}; pass a value for each")
        return given

    def _unknown(self, name: str) -> str:
        if name in self.injected:
            return (
                f"argument {name!r} of task {self.task_name!r} is filled in when the task runs; leave it out"
            )
        known = ", ".join(self._codecs) or "no arguments"
        return f"task {self.task_name!r} has no argument {name!r}; it takes {known}"

    def _encode_whole(self, given: dict[str, Any]) -> bytes | None:
        """All arguments in one go; None when anything at all is out of the ordinary."""
        try:
            data = write(given)
            check_text(data)
            return data if self._arguments(data) == given else None
        except Exception:  # noqa: BLE001  `_encode_each` finds it again, and can name the argument
            return None

    def _encode_each(self, given: dict[str, Any]) -> bytes:
        return write({name: Raw(self._encode_one(name, value)) for name, value in given.items()})

    def _encode_one(self, name: str, value: Any) -> bytes:
        codec = self._codecs[name]
        try:
            return codec.encode(value)
        except Unfit as fault:
            remedy = f"; pass {type_name(codec.annotation)}" if fault.mismatch else ""
            where = f"argument {name + fault.path!r} of task {self.task_name!r}"
            raise ArgumentError(f"{where} {fault.problem}{remedy}") from fault

    def _arguments(self, data: bytes | str) -> dict[str, Any]:
        arguments = self._read(data)
        values = {name: value for name in self._codecs if (value := getattr(arguments, name)) is not UNSET}
        for name in self._foreign:
            if name in values:
                values[name] = self._codecs[name].read(bytes(values[name]))
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


def _value_type(hints: Mapping[str, Any], task_name: str) -> Any:
    help_text = "annotate it as `-> TaskResult[T, TaskError]`, where T is what the task gives on success"
    if "return" not in hints:
        raise TaskDefinitionError(
            f"task {task_name!r} does not say what it returns",
            code=ErrorCode.TASK_NO_RETURN_TYPE,
            help_text=help_text,
        )
    annotation = _without_alias(hints["return"])
    parts = get_args(annotation)
    if get_origin(annotation) is TaskResult and len(parts) == 2 and _is_task_error(parts[1]):
        return parts[0]
    raise TaskDefinitionError(
        f"task {task_name!r} returns {type_name(annotation)}, not TaskResult[T, TaskError]",
        code=ErrorCode.TASK_INVALID_RETURN_TYPE,
        help_text=help_text,
    )


def _without_alias(annotation: Any) -> Any:
    """What a `type X = …` statement stands for; anything else as it is."""
    while True:
        origin = get_origin(annotation)
        if hasattr(annotation, "__value__") and origin is None:
            annotation = annotation.__value__
        elif hasattr(origin, "__value__"):
            annotation = origin.__value__[get_args(annotation)]
        else:
            return annotation


def _is_task_error(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, TaskError)


def _require_json(annotation: Any, subject: str) -> None:
    if reason := unfit(annotation):
        _refuse(
            f"{subject} is annotated {type_name(annotation)}: {reason}",
            "use JSON types, dates, UUID, Decimal, enums, dataclasses, TypedDict, NamedTuple or Pydantic models; "
            "for anything else pass what it takes to build it, such as an id or a path",
        )


def _refuse(message: str, help_text: str) -> NoReturn:
    raise TaskDefinitionError(message, code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, help_text=help_text)
