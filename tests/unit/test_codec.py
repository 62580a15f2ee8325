"""Arguments and results travel as JSON, come out as they went in, or are refused with a reason."""

from __future__ import annotations

import enum
import json
import math
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import IO, Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from horsies.codec import (
    ArgumentError,
    Signature,
    decode_json,
    decode_result,
    describe_exception,
    encode_json,
    encode_result,
)
from horsies.errors import ErrorCode, TaskDefinitionError
from horsies.result import (
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    SubWorkflowError,
    TaskError,
    TaskResult,
)

T = TypeVar("T")
ANY_ID = UUID("6f4e2c1a-9d3b-4c55-8a77-0123456789ab")
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    NUMBER = 1
    TEXT = "one"


@dataclass
class Line:
    sku: str
    amount: Decimal = Decimal("1.50")


@dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime | None = None


@dataclass
class Box(Generic[T]):
    item: T
    inner: Box[T] | None = None


@dataclass(eq=False)
class Incomparable:
    note: str
    score: float | None = None


@dataclass(eq=False)
class Jealous:
    error: str = "RuntimeError"

    def __eq__(self, other: object) -> bool:
        raise {"RuntimeError": RuntimeError, "SystemExit": SystemExit}[self.error]


class Point(NamedTuple):
    x: int
    y: int = 0


class Settings(TypedDict, total=False):
    retries: int
    owner: UUID


class Cat(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["cat"] = "cat"
    born: date
    lives: int = pydantic.Field(default=9, alias="livesLeft")

    @pydantic.computed_field
    def name(self) -> str:
        return "Tom"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    tags: set[str] = set()
    weight: Decimal = Decimal("3.2")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime
    id: UUID


class Node(pydantic.BaseModel):
    children: list[Node] = []


class Loose(pydantic.BaseModel):
    ratio: float | None = None
    meta: Any = None


class ConstantNan(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    ratio: float


@dataclass
class Kennel:
    guest: Cat | Dog
    keeper: Dog | None = None


class Packet(msgspec.Struct):
    body: bytes


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise KeyError("negative")


TOM = Cat(born=date(2020, 1, 1), livesLeft=3)
REX = Dog(tags={"a", "b"})
Pair = TypeAliasType("Pair", tuple[int, int])
Outcome = TypeAliasType("Outcome", TaskResult[T, TaskError], type_params=(T,))


def signature_of(annotation: Any) -> Signature:
    def task(x: annotation) -> TaskResult[Any, TaskError]: ...

    task.__annotations__ = {"x": annotation, "return": TaskResult[annotation, TaskError]}
    return Signature.of(task, task_name="demo")


def round_trip(annotation: Any, value: Any) -> Any:
    signature = signature_of(annotation)
    return signature.decode(None, signature.encode((value,), {}))["x"]


def refusal(annotation: Any, value: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        signature_of(annotation).encode((value,), {})
    return str(caught.value)


def stored(result: Any, value_type: Any, limit: int | None = None) -> TaskResult[Any, TaskError]:
    data = encode_result(result, value_type, limit)
    assert json.loads(data).keys() <= {"ok", "err"}
    return decode_result(data, value_type)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


TYPED_VALUES: list[tuple[Any, Any]] = [
    (bool, True),
    (int, -7),
    (int, 2**63),
    (int, -(10**40)),
    (float, 0.1),
    (float, 1e308),
    (str, 'quote " back\\slash \\u0000 é 🐎'),
    (None, None),
    (datetime, NOON),
    (datetime, NOON.replace(tzinfo=None)),
    (datetime, NOON.replace(tzinfo=timezone(timedelta(hours=-5, minutes=-30)))),
    (date, date(1, 1, 1)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (UUID, ANY_ID),
    (Decimal, Decimal("12345678901234567890.010")),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (Mixed, Mixed.TEXT),
    (Literal["a", 1], 1),
    (Line, Line("x")),
    (Order, Order(ANY_ID, [Line("a"), Line("b", Decimal(2))], NOON)),
    (Box[int], Box(1, Box(2))),
    (Box[Order], Box(Order(ANY_ID, []))),
    (Point, Point(1, 2)),
    (Settings, {"owner": ANY_ID}),
    (Packet, Packet(b"\x00\xff")),
    (list[date], [date(2024, 1, 1)]),
    (dict[str, Line], {"a": Line("b")}),
    (tuple[int, str], (1, "a")),
    (tuple[UUID, ...], (ANY_ID, ANY_ID)),
    (set[date], {date(2024, 1, 1), date(2024, 1, 2)}),
    (frozenset[int], frozenset({1, 2})),
    (bytes, b"\x00\xff\x80"),
    (bytearray, bytearray(b"\x00")),
    (int | None, None),
    (int | str, 5),
    (int | str, "5"),
    (UUID | None, ANY_ID),
    (float | int, 3),
    (Line | Order, Order(ANY_ID, [])),
    (datetime | date, date(2024, 1, 1)),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[UUID, int], {ANY_ID: 1}),
    (dict[Color, int], {Color.BLUE: 1}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[date, int], {date(2024, 1, 1): 1}),
    (Sequence[int], [1, 2]),
    (Mapping[str, int], {"a": 1}),
    (Cat, TOM),
    (Cat | Dog, REX),
    (Cat | None, TOM),
    (Dog | int, 3),
    (list[Cat | Dog], [TOM, REX]),
    (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], TOM),
    (Kennel, Kennel(TOM)),
    (dict[str, list[Kennel]], {"a": [Kennel(REX, REX)]}),
    (Strict, Strict(at=NOON, id=ANY_ID)),
    (Node, Node(children=[Node(), Node(children=[Node()])])),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.org/a")),
    (pydantic.PositiveInt, 4),
    (dict[str, pydantic.JsonValue], {"a": [1, None, {"b": "c"}]}),
    (Pair, (1, 2)),
    (Any, {"a": [1, 2.5, None, True, "x"], "b": {}}),
    (object, [1, "a"]),
    (list[object], [1, {"a": None}]),
    (list, [1, "a"]),
    (dict, {"a": 1}),
    (TaskResult[Order, TaskError], TaskResult(ok=Order(ANY_ID, [Line("a")]))),
    (TaskResult[int, TaskError], TaskResult(err=TaskError(error_code=OutcomeCode.TASK_TIMEOUT))),
    (TaskResult[None, TaskError] | None, TaskResult(ok=None)),
    (list[TaskResult[date, TaskError]], [TaskResult(ok=date(2024, 1, 1))]),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED_VALUES, ids=[str(row[0]) for row in TYPED_VALUES])
def test_a_value_comes_out_equal_and_of_its_class_as_argument_and_as_result(
    annotation: Any, value: Any
) -> None:
    back = round_trip(annotation, value)
    result = stored(TaskResult(ok=value), annotation)

    assert back == value
    assert type(back) is type(value)
    assert result.unwrap() == value
    assert type(result.unwrap()) is type(value)


def test_types_made_inside_functions_travel_because_nothing_is_looked_up_by_name() -> None:
    @dataclass
    class Local:
        n: int

    assert round_trip(list[Local], [Local(1)]) == [Local(1)]


def test_objects_that_do_not_compare_are_checked_field_by_field() -> None:
    assert round_trip(Incomparable, Incomparable("a", 1.5)).score == 1.5
    assert round_trip(Jealous, Jealous()).error == "RuntimeError"
    assert "x.score" in refusal(Incomparable, Incomparable("a", math.nan))
    assert "x.ratio" in refusal(Loose, Loose(ratio=math.nan))
    assert "x.meta" in refusal(Loose, Loose(meta=b"raw"))


def test_subclasses_of_plain_types_travel_as_the_plain_type() -> None:
    class Safe(str):
        __slots__ = ()

    back = round_trip(str, Safe("<b>"))

    assert back == "<b>"
    assert type(back) is str


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_free_json_comes_out_equal(value: Any) -> None:
    assert decode_json(encode_json(value)) == value
    assert round_trip(Any, value) == value
    assert json.loads(encode_json(value)) == value


orders = st.builds(
    Order,
    id=st.uuids(),
    lines=st.lists(st.builds(Line, sku=st.text("abc\\u0\"'é"), amount=st.decimals(allow_nan=False, allow_infinity=False))),
    placed=st.none() | st.datetimes(timezones=st.just(UTC) | st.none()),
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {
            "orders": st.lists(orders, max_size=3),
            "waits": st.dictionaries(st.integers(-(2**70), 2**70), st.timedeltas(), max_size=3),
            "data": st.binary(),
            "day": st.dates() | st.none(),
            "clock": st.times(),
            "colors": st.sets(st.sampled_from(Color)),
        }
    )
)
@settings(deadline=None)
def test_typed_arguments_come_out_equal(arguments: dict[str, Any]) -> None:
    def task(
        orders: list[Order],
        waits: dict[int, timedelta],
        data: bytes,
        day: date | None,
        clock: time,
        colors: set[Color],
    ) -> TaskResult[None, TaskError]: ...

    signature = Signature.of(task, task_name="demo")

    assert signature.decode(None, signature.encode((), arguments)) == arguments


@given(st.text() | st.floats() | st.binary() | st.integers() | st.complex_numbers() | st.sets(st.integers()))
def test_whatever_is_sent_comes_out_equal_or_is_refused(value: Any) -> None:
    try:
        data = encode_json({"a": [value]})
    except ArgumentError:
        return

    assert decode_json(data) == {"a": [value]}


def add(a: int, b: int = 0, *, label: str = "") -> TaskResult[int, TaskError]: ...


ADD = Signature.of(add, task_name="add")


def test_arguments_are_bound_to_their_names_and_defaults_left_out() -> None:
    assert ADD.encode((1,), {"label": "x"}) == b'{"a":1,"label":"x"}'
    assert ADD.encode((), {"b": 2, "a": 1}) == b'{"b":2,"a":1}'
    assert ADD.decode(None, b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 2, 3), {}, "takes 2 positional arguments, 3 were given"),
        ((1,), {"a": 2}, "argument 'a' of task 'add' is given twice"),
        ((1,), {"c": 2}, "task 'add' has no argument 'c'; it takes a, b, label"),
        ((), {"b": 2}, "task 'add' is missing 'a'"),
    ],
)
def test_a_call_that_does_not_bind_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        ADD.encode(args, kwargs)


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@dataclass
class BigLine(Line):
    extra: int = 0


REFUSED_VALUES: list[tuple[Any, Any, str]] = [
    (int, "5", "argument 'x' of task 'demo' is str: expected `int`, got `str`; pass int"),
    (int, True, "expected `int`, got `bool`"),
    (int, 1.0, "expected `int`, got `float`"),
    (float, 2**53 + 1, "argument 'x' of task 'demo' is int and would come back as float"),
    (str, ANY_ID, "argument 'x' of task 'demo' is UUID and would come back as str; pass str"),
    (str, NOON, "is datetime and would come back as str"),
    (list[int], [1, "a"], "argument 'x[1]'"),
    (list[int], {1, 2}, "is set and would come back as list"),
    (dict[str, list[int]], {"k": [0, None]}, "argument 'x[...][1]'"),
    (Order, Order(ANY_ID, [Line(5)]), "argument 'x.lines[0].sku'"),  # type: ignore[arg-type]
    (Line, BigLine("a"), "is BigLine and would come back as Line"),
    (UUID, "nonsense", "invalid UUID"),
    (Color, "green", "argument 'x' of task 'demo'"),
    (Settings, {"retries": 1, "colour": "red"}, "argument 'x' of task 'demo' has the extra key 'colour'; pass Settings"),
    (list[Settings], [{"retries": 1}, {"colour": "red"}], "argument 'x[1]' of task 'demo' has the extra key 'colour'"),
    (pydantic.PositiveInt, -1, "greater than 0"),
    (Dog, {"kind": "cat"}, "kind: Input should be 'dog'"),
    (list[Cat | Dog], [3], "argument 'x' of task 'demo'"),
    (pydantic.SecretStr, pydantic.SecretStr("hush"), "is SecretStr and would come back as another value"),
    (float, math.nan, "argument 'x' of task 'demo' is nan, which JSON has no form for"),
    (float | None, math.inf, "is inf, which JSON has no form for"),
    (Any, {"a": [1.0, -math.inf]}, "argument \"x['a'][1]\" of task 'demo' is -inf"),
    (list[Box[float]], [Box(math.nan)], "is nan"),
    (Decimal, Decimal("NaN"), "argument 'x' of task 'demo' is Decimal"),
    (Decimal, Decimal("sNaN"), "argument 'x' of task 'demo' is Decimal"),
    (datetime, NOON.replace(tzinfo=timezone(timedelta(seconds=61))), "argument 'x' of task 'demo' is datetime"),
    (str, "a\0b", "argument 'x' of task 'demo' contains the NUL character"),
    (Any, {"a": {"\0": 1}}, "contains the NUL character"),
    (str, "\\\0", "contains the NUL character"),
    (Loose, Loose(meta="\0"), "contains the NUL character"),
    (str, "\ud800", "argument 'x' of task 'demo' contains a lone surrogate"),
    (Any, [{"\udfff": 1}], "contains a lone surrogate"),
    (int, 10**5000, "argument 'x' of task 'demo' cannot be written as JSON: Exceeds the limit"),
    (Any, nested(201), "is nested more than 200 levels deep"),
    (Any, nested(5000), "nested more than 200 levels deep"),
    (Any, cyclic(), "contains itself"),
    (Any, {1}, "is set and would come back as list"),
    (Any, b"raw", "is bytes and would come back as str"),
    (Any, [NOON], "argument 'x[0]' of task 'demo' is datetime and would come back as str"),
    (Any, Line("a"), "is Line and would come back as dict"),
    (Any, {1: 2}, "argument 'x[1] (the key)' of task 'demo' is int and would come back as str"),
    (Any, {1: 2, "1": 3}, "argument 'x' of task 'demo' is dict"),
    (Any, {(1, 2): 3}, "argument 'x' of task 'demo' cannot be written as JSON"),
    (Any, object(), "object has no JSON form"),
    (Any, 1j, "complex has no JSON form"),
    (dict[int, int], {"5": 1}, "argument"),
    (TaskResult[int, TaskError], TaskResult(ok="x"), "argument 'x' of task 'demo' is TaskResult"),
    (TaskResult[Any, TaskError], TaskResult(ok=NOON), "argument 'x.ok'"),
    (TaskResult[int, TaskError], TaskResult(err="boom"), "holds str as its error, not a TaskError"),
    (Positive, {"n": -1}, "negative"),
    (ConstantNan, ConstantNan(ratio=math.nan), "argument 'x' of task 'demo' cannot be written as JSON"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    REFUSED_VALUES,
    ids=[str(row[0]) for row in REFUSED_VALUES],
)
def test_what_would_not_come_out_equal_is_refused_by_name(annotation: Any, value: Any, words: str) -> None:
    assert words in refusal(annotation, value)


def test_a_refusal_does_not_quote_the_value() -> None:
    assert "hunter2" not in refusal(int, "hunter2")
    assert "hunter2" not in refusal(Cat, {"born": "hunter2"})


def test_nesting_up_to_the_limit_travels() -> None:
    assert round_trip(Any, nested(200)) == nested(200)
    assert round_trip(Any, [[]] * 1000) == [[]] * 1000
    assert round_trip(Any, "[" * 1000) == "[" * 1000


@pytest.mark.parametrize(
    ("annotation", "form", "value"),
    [
        (UUID, str(ANY_ID), ANY_ID),
        (datetime, "2024-02-29T12:00:00.123456Z", NOON),
        (Decimal, 0.1, Decimal("0.1")),
        (Color, "red", Color.RED),
        (float, 1, 1.0),
        (set[int], [1, 2], {1, 2}),
        (tuple[int, int], [1, 2], (1, 2)),
        (dict[UUID, Line], {str(ANY_ID): {"sku": "a"}}, {ANY_ID: Line("a")}),
        (Cat, {"born": "2020-01-01", "livesLeft": 3}, TOM),
        (Any, (1, (2,)), [1, [2]]),
    ],
)
def test_a_value_may_be_given_in_its_json_form(annotation: Any, form: Any, value: Any) -> None:
    assert round_trip(annotation, form) == value


@pytest.mark.parametrize(
    ("args_json", "kwargs_json", "expected"),
    [
        (None, None, None),
        (b"[1, 2]", None, {"a": 1, "b": 2}),
        ("[1]", '{"label": "x"}', {"a": 1, "label": "x"}),
        (b"[]", b'{"a": 1}', {"a": 1}),
    ],
)
def test_rows_made_by_hand_may_use_positional_arguments(
    args_json: Any, kwargs_json: Any, expected: Any
) -> None:
    if expected is None:
        with pytest.raises(ArgumentError, match="missing required field `a`"):
            ADD.decode(args_json, kwargs_json)
    else:
        assert ADD.decode(args_json, kwargs_json) == expected


@pytest.mark.parametrize(
    ("args_json", "kwargs_json", "words"),
    [
        (None, b"nonsense", "malformed"),
        (None, b"", "truncated"),
        (None, b"\xff\xfe", "cannot be read"),
        (None, "\ud800", "cannot be read"),
        (None, b"null", "expected `object`, got `null`"),
        (None, b"[1]", "expected `object`, got `array`"),
        (None, b'{"a": 1, "z": 2}', "unknown field `z`"),
        (None, b'{"a": "1"}', "argument 'a' of task 'add' cannot be read: expected `int`, got `str`"),
        (None, b'{"a": 1, "label": "\\u0000"}', "NUL"),
        (None, b'{"a": ' + b"[" * 100_000, "expected `int`, got `array`"),
        (b"{}", None, "expected `array`, got `object`"),
        (b"[1, 2, 3]", None, "takes 2 positional"),
        (b"[1]", b'{"a": 1}', "given twice"),
        (b"[1]", b'{"z": 1}', "no argument 'z'"),
    ],
)
def test_a_payload_that_is_not_the_arguments_is_refused(args_json: Any, kwargs_json: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ADD.decode(args_json, kwargs_json)


def test_a_payload_too_deep_to_read_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of task 'demo' cannot be read: it is nested too deeply"):
        signature_of(Any).decode(None, b'{"x": ' + b"[" * 100_000)


def test_a_user_exception_while_reading_is_refused_as_an_argument() -> None:
    with pytest.raises(ArgumentError, match="negative"):
        signature_of(Positive).decode(None, b'{"x": {"n": -1}}')


def test_injected_parameters_are_no_part_of_the_payload() -> None:
    def task(
        n: int, workflow_ctx: socket.socket, *, workflow_meta: Any = None
    ) -> TaskResult[int, TaskError]: ...

    signature = Signature.of(task, task_name="demo")

    assert signature.injected == {"workflow_ctx", "workflow_meta"}
    assert list(signature.parameters) == ["n"]
    assert signature.encode((1,), {}) == b'{"n":1}'
    with pytest.raises(ArgumentError, match="'workflow_ctx' of task 'demo' is filled in"):
        signature.encode((1,), {"workflow_ctx": None})


def test_string_annotations_and_unannotated_parameters_are_understood() -> None:
    def task(order: Order, extra, *, color: Color = Color.RED) -> Outcome[list[Order]]: ...  # type: ignore[no-untyped-def]

    signature = Signature.of(task, task_name="demo")
    arguments = {"order": Order(ANY_ID, []), "extra": {"a": 1}, "color": Color.BLUE}

    assert signature.value_type == list[Order]
    assert signature.parameters["order"].annotation is Order
    assert signature.decode(None, signature.encode((), arguments)) == arguments


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with 3.12")
def test_type_statements_are_understood() -> None:
    names: dict[str, Any] = {"Line": Line, "TaskResult": TaskResult, "TaskError": TaskError}
    exec(
        "type Lines = list[Line]\ntype Res[T] = TaskResult[T, TaskError]\ndef f(x: Lines) -> Res[Lines]: ...",
        names,
    )

    signature = Signature.of(names["f"], task_name="f")

    assert signature.decode(None, signature.encode(([Line("a")],), {})) == {"x": [Line("a")]}
    assert stored(TaskResult(ok=[Line("a")]), signature.value_type).unwrap() == [Line("a")]


def no_return(a: int): ...  # type: ignore[no-untyped-def]
def maybe_result(a: int) -> TaskResult[int, TaskError] | None: ...
def gives_complex_plainly() -> complex: ...
def bare_return(a: int) -> TaskResult: ...  # type: ignore[type-arg]
def wrong_error(a: int) -> TaskResult[int, str]: ...
def own_error(a: int) -> TaskResult[int, SubWorkflowError]: ...
def star(*rest: int) -> TaskResult[int, TaskError]: ...
def stars(**rest: int) -> TaskResult[int, TaskError]: ...
def positional_only(a: int, /) -> TaskResult[int, TaskError]: ...
def gives_complex() -> TaskResult[complex, TaskError]: ...
def unresolvable(a: NoSuchType) -> TaskResult[int, TaskError]: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("fn", "code", "words"),
    [
        (no_return, ErrorCode.TASK_NO_RETURN_TYPE, "task 'demo' does not say what it returns"),
        (maybe_result, ErrorCode.TASK_INVALID_RETURN_TYPE, "not TaskResult"),
        (
            gives_complex_plainly,
            ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
            "the return value of task 'demo'.*complex",
        ),
        (bare_return, ErrorCode.TASK_INVALID_RETURN_TYPE, "returns TaskResult, not"),
        (wrong_error, ErrorCode.TASK_INVALID_RETURN_TYPE, r"TaskResult\[int, str\]"),
        (star, ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, r"takes \*rest"),
        (stars, ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, r"takes \*\*rest"),
        (positional_only, ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "positional-only parameter a"),
        (
            gives_complex,
            ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
            "the return value of task 'demo'.*complex",
        ),
        (unresolvable, ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "'NoSuchType' is not defined"),
    ],
)
def test_a_signature_that_cannot_be_a_task_is_refused(fn: Any, code: ErrorCode, words: str) -> None:
    with pytest.raises(TaskDefinitionError, match=words) as caught:
        Signature.of(fn, task_name="demo")

    assert caught.value.code is code
    assert caught.value.help_text


@dataclass
class Dangling:
    target: NoSuchType  # type: ignore[name-defined] # noqa: F821


@dataclass
class Holder:
    inner: Box[complex] | None = None


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Callable[[int], int], "Callable has no JSON form"),
        (list[socket.socket | None], "socket has no JSON form"),
        (int | complex, "complex has no JSON form"),
        (IO[bytes], "IO has no JSON form"),
        (Path, "Path has no JSON form"),
        (Iterator[int], "Iterator has no JSON form"),
        (dict[tuple[int, int], str], "a dict with such keys"),
        (TaskResult[complex, TaskError], "complex has no JSON form"),
        (Holder, "complex has no JSON form"),
        (Dangling, "'NoSuchType' is not defined"),
    ],
)
def test_a_parameter_without_a_json_form_is_refused_at_definition(annotation: Any, words: str) -> None:
    with pytest.raises(TaskDefinitionError, match=f"parameter 'x' of task 'demo' .*{words}") as caught:
        signature_of(annotation)

    assert caught.value.code is ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION
    assert "pass what it takes to build it" in str(caught.value.help_text)


def test_a_subclass_of_task_error_may_be_promised() -> None:
    assert Signature.of(own_error, task_name="demo").value_type is int


def test_without_pydantic_only_what_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)

    assert round_trip(list[Line], [Line("a")]) == [Line("a")]
    with pytest.raises(TaskDefinitionError, match=r"'x'.*Pydantic could, and is not installed"):
        signature_of(Line | Point | Positive)


def test_pydantic_is_not_imported_for_tasks_that_do_not_use_it() -> None:
    program = """
import sys, uuid
from horsies.codec import *
from horsies.result import TaskError, TaskResult
def task(a: uuid.UUID, b: dict[str, list[int]]) -> TaskResult[set[int], TaskError]: ...
s = Signature.of(task, task_name="t")
s.decode(None, s.encode((uuid.uuid4(), {"a": [1]}), {}))
decode_result(encode_result(TaskResult(ok={1}), set[int], None), set[int])
print("pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_patching_json_or_msgspec_does_not_reach_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in [(json, "dumps"), (json, "loads"), (msgspec.json, "encode"), (msgspec.json, "Decoder"), (msgspec, "to_builtins"), (msgspec, "Raw")]:  # fmt: skip
        monkeypatch.setattr(owner, name, None)

    assert ADD.decode(b"[1]", ADD.encode((), {"a": 2})[:0] or None) == {"a": 1}
    assert encode_result(TaskResult(ok=1), int, None) == b'{"ok":1}'
    assert b'"data":{"a":1}' in encode_result(TaskResult(err=TaskError(data={"a": 1})), int, None)


# --- results ---


def test_an_error_is_stored_with_its_code_message_data_and_exception() -> None:
    error = TaskError(
        error_code="CARD_DECLINED",
        message="no",
        data={"at": NOON, "lines": [Line("a")]},
        exception=KeyError("k"),
    )

    document = json.loads(encode_result(TaskResult(err=error), int, None))["err"]
    back = decode_result(encode_result(TaskResult(err=error), int, None), int).unwrap_err()

    assert document["error_code"] == "CARD_DECLINED"
    assert document["data"] == {
        "at": "2024-02-29T12:00:00.123456Z",
        "lines": [{"sku": "a", "amount": "1.50"}],
    }
    assert document["exception"]["type"] == "KeyError"
    assert document["exception"]["module"] == "builtins"
    assert (back.error_code, back.message, back.data) == ("CARD_DECLINED", "no", document["data"])
    assert stored(TaskResult(err=back), int).unwrap_err() == back


def test_built_in_codes_are_stored_apart_from_the_users() -> None:
    error = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED)

    document = json.loads(encode_result(TaskResult(err=error), int, None))["err"]

    assert document == {
        "error_code": {"__builtin_task_code__": "WORKER_CRASHED"},
        "message": None,
        "data": None,
        "exception": None,
    }
    assert stored(TaskResult(err=error), int).unwrap_err().error_code is OperationalErrorCode.WORKER_CRASHED


def test_codes_of_later_versions_and_plain_built_in_names_are_read() -> None:
    later = decode_result(b'{"err":{"error_code":{"__builtin_task_code__":"NEW"},"added":1}}', int)
    plain = decode_result(b'{"err":{"error_code":"WORKER_CRASHED"}}', int)

    assert later.unwrap_err().error_code == "NEW"
    assert plain.unwrap_err().error_code is OperationalErrorCode.WORKER_CRASHED


def test_the_failure_of_a_sub_workflow_keeps_its_summary() -> None:
    error = SubWorkflowError(
        error_code=OutcomeCode.SUBWORKFLOW_FAILED, sub_workflow_id="w1", sub_workflow_summary={"done": 2}
    )

    assert stored(TaskResult(err=error), int).unwrap_err() == error


@pytest.mark.parametrize(
    ("value", "annotation", "words"),
    [
        ("5", int, "the task's return value is str: expected `int`, got `str`; the task promises int"),
        (None, int, "got `null`"),
        ([1, "a"], list[int], r"return value\[1\]"),
        (ANY_ID, str, "is UUID and would come back as str"),
        (BigLine("a"), Line, "is BigLine and would come back as Line"),
        ({"kind": "cat"}, Dog, "kind: Input should be 'dog'"),
    ],
)
def test_a_return_value_of_another_type_is_a_return_type_mismatch(
    value: Any, annotation: Any, words: str
) -> None:
    error = stored(TaskResult(ok=value), annotation).unwrap_err()

    assert error.error_code is ContractCode.RETURN_TYPE_MISMATCH
    assert error.message is not None
    assert words.replace("\\", "") in error.message


def test_an_extra_key_of_a_result_is_named() -> None:
    error = stored(TaskResult(ok={"retries": 1, "colour": "red"}), Settings).err_value

    assert error.error_code is ContractCode.RETURN_TYPE_MISMATCH
    assert error.message == "the task's return value has the extra key 'colour'; the task promises Settings"


def test_anything_but_a_task_result_is_a_return_type_mismatch() -> None:
    for wrong in (None, 5, TaskResult(err="boom")):
        assert stored(wrong, int).unwrap_err().error_code is ContractCode.RETURN_TYPE_MISMATCH


class Hostile:
    """Raises whatever it is told to from everything the codec might call."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _fail(self, *_: object) -> Any:
        raise self.error("hostile")

    __str__ = __repr__ = __eq__ = __len__ = __iter__ = _fail
    __hash__ = None  # type: ignore[assignment]


class Explosive(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    fuse: int = 0

    @pydantic.field_serializer("fuse")
    def burn(self, fuse: int) -> int:
        raise SystemExit(fuse)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (object(), Any),
        (Hostile(RuntimeError), Any),
        (Hostile(RecursionError), Any),
        (Hostile(MemoryError), int),
        (math.nan, float),
        ([math.inf], list[float | None]),
        (math.nan, Any),
        (ConstantNan(ratio=math.nan), ConstantNan),
        ("\0", str),
        ("\ud800", str),
        (nested(201), Any),
        (nested(5000), Any),
        (cyclic(), Any),
        ({(1, 2): 3}, Any),
        ({1: 2}, Any),
        ({1}, Any),
        (Explosive(), Explosive),
        (Jealous("SystemExit"), Jealous),
        (10**5000, int),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_value_json_cannot_carry_is_a_serialization_error(value: Any, annotation: Any) -> None:
    error = stored(TaskResult(ok=value), annotation).unwrap_err()

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert error.message


@pytest.mark.parametrize("data", [object(), math.nan, "\0", "\ud800", nested(5000), cyclic(), Hostile(RuntimeError)], ids=lambda v: type(v).__name__)  # fmt: skip
def test_error_data_json_cannot_carry_is_a_serialization_error_that_names_the_code(data: Any) -> None:
    error = stored(TaskResult(err=TaskError(error_code="NO_STOCK", data={"d": data})), int).unwrap_err()

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert error.message is not None
    assert "NO_STOCK" in error.message


def test_a_result_over_the_limit_is_a_serialization_error() -> None:
    huge = "x" * 100_000_000

    error = stored(TaskResult(ok=huge), str, 1_000_000).unwrap_err()
    with_data = stored(TaskResult(err=TaskError(error_code="E", data=huge[:2000])), str, 1000).unwrap_err()

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert (
        error.message == "the task's return value takes 100,000,002 bytes as JSON, and the limit is 1,000,000"
    )
    assert with_data.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert stored(TaskResult(ok="x" * 998), str, 1000).unwrap() == "x" * 998


def test_a_result_is_stored_even_when_the_reason_cannot_be_told() -> None:
    class Drained(TaskResult[Any, Any]):
        def is_ok(self) -> bool:
            raise MemoryError

        is_err = is_ok

    error = stored(Drained(ok=1), int).unwrap_err()

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR


@pytest.mark.parametrize(
    ("data", "annotation", "code"),
    [
        (b"nonsense", int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b"", int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b"\xff", int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        ("\ud800", int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b"{}", int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"ok":1,"err":{}}', int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"ok":"1"}', int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"err":5}', int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"err":{"error_code":5}}', int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"ok":' + b"[" * 100_000, Any, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"ok":{"n":-1}}', Positive, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (None, int, OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (b'{"ok":{"kind":"cow"}}', Dog, ContractCode.PYDANTIC_HYDRATION_ERROR),
        (b'{"ok":[{"kind":"cow"}]}', list[Cat | Dog], ContractCode.PYDANTIC_HYDRATION_ERROR),
        (b'{"ok":{"guest":{"kind":"cow"}}}', Kennel, ContractCode.PYDANTIC_HYDRATION_ERROR),
    ],
)
def test_a_text_that_is_no_result_comes_back_as_an_error(data: Any, annotation: Any, code: Any) -> None:
    error = decode_result(data, annotation).unwrap_err()

    assert error.error_code is code
    assert error.message


def test_json_text_with_nul_or_none_at_all_is_refused() -> None:
    for text in ('"\\u0000"', "nonsense", "\ud800", "[" * 100_000, "NaN"):
        with pytest.raises(ArgumentError):
            decode_json(text)
    assert decode_json('"\\\\u0000"') == "\\u0000"


# --- exceptions ---


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


class Unspeakable(Exception):
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__


def test_an_exception_is_described_with_its_cause_and_place() -> None:
    try:
        try:
            _ = {}["colour"]
        except KeyError as cause:
            raise ValueError("no such paint") from cause
    except ValueError as error:
        text = describe_exception(error)

    assert text.keys() == {"type", "module", "message", "repr", "traceback"}
    assert (text["type"], text["message"], text["repr"]) == (
        "ValueError",
        "no such paint",
        "ValueError('no such paint')",
    )
    assert "KeyError: 'colour'" in text["traceback"]
    assert "test_codec.py" in text["traceback"]


@pytest.mark.parametrize("inner", [RuntimeError, RecursionError, MemoryError, SystemExit, KeyboardInterrupt])
def test_an_exception_that_cannot_speak_is_still_described(inner: type[BaseException]) -> None:
    error = raised(Unspeakable(inner))

    text = describe_exception(error)
    back = stored(TaskResult(err=TaskError(error_code="E", exception=error)), int).unwrap_err()

    assert text["type"] == "Unspeakable"
    assert text["message"] == f"<unprintable: {inner.__name__}>"
    assert back.exception == text


def test_error_text_is_bounded_and_storable() -> None:
    bomb = raised(ValueError("\0\ud800é" * 3_000_000))

    text = describe_exception(bomb)
    back = stored(
        TaskResult(err=TaskError(error_code="E", message="é\0" * 100_000, exception=bomb)), int
    ).unwrap_err()

    assert all(len(part.encode()) <= 8192 for part in text.values())
    assert text["message"].endswith("…")
    assert text["traceback"].startswith("…")
    assert back.message is not None
    assert len(back.message.encode()) <= 8192
    assert back.exception == text


@given(st.text(st.characters(categories=["L", "Cs", "Cc", "So"]), max_size=40), st.integers(1, 900))
def test_any_error_message_can_be_stored(text: str, times: int) -> None:
    error = TaskError(error_code="E", message=text * times)

    message = stored(TaskResult(err=error), int).unwrap_err().message

    assert message is not None
    assert len(message.encode()) <= 8192
    assert "\0" not in message


def test_endless_recursion_is_described() -> None:
    def down() -> None:
        down()

    with pytest.raises(RecursionError) as caught:
        down()

    assert "maximum recursion depth" in describe_exception(caught.value)["message"]
