"""Values of certain names are hidden in whatever is shown, however deep they are and wherever the text is cut off."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from horsies import AppConfig, Event, Horsies, TaskError, TaskNode, TaskResult
from horsies.codec.values import encode_value
from horsies.db.queries.tasks import Claimed, Failure
from horsies.errors import ConfigurationError, HorsiesError
from horsies.executor.protocol import Call
from horsies.executor.runner import prepare
from horsies.redaction import REDACTED, NothingToRestore, Redactor
from horsies.worker.event_hooks import EventHooks

redactor = Redactor(["card", "Password"])
SECRET = "4111-1111"


@dataclass
class Payer:
    name: str
    card: str


class Login(BaseModel):
    user: str
    password: str


class Stored(msgspec.Struct):
    card: str
    order: int


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"card": SECRET}, {"card": REDACTED}),
        ({"CARD": SECRET, "PassWord": 7}, {"CARD": REDACTED, "PassWord": REDACTED}),
        ({"a": {"b": [{"card": SECRET}, {"c": 1}]}}, {"a": {"b": [{"card": REDACTED}, {"c": 1}]}}),
        ({"card": {"number": SECRET, "x": [1, "}", "]"]}, "z": 1}, {"card": REDACTED, "z": 1}),
        ({"card": [SECRET, [SECRET]], "z": "ok"}, {"card": REDACTED, "z": "ok"}),
        ({"card": None, "password": True, "n": 1}, {"card": REDACTED, "password": REDACTED, "n": 1}),
        ({"card": -1.5e7, "n": 1}, {"card": REDACTED, "n": 1}),
        ({"cards": "x", "my_card": "y", "other": "card"}, {"cards": "x", "my_card": "y", "other": "card"}),
        ({"card": 'a"b\\', "n": '{"card": "y"}'}, {"card": REDACTED, "n": '{"card": "y"}'}),
        ([{"card": SECRET}, "card", 5], [{"card": REDACTED}, "card", 5]),
        ({"ok": {"card": SECRET}}, {"ok": {"card": REDACTED}}),
    ],
)
def test_values_are_hidden_by_name_at_any_depth_and_nothing_else_changes(
    given: object, shown: object
) -> None:
    for text in (json.dumps(given), json.dumps(given, indent=3), msgspec.json.encode(given).decode()):
        hidden = redactor.json(text)
        assert hidden is not None
        assert json.loads(hidden) == shown
        assert SECRET not in hidden


def test_the_json_of_dataclasses_structs_and_models_is_hidden_by_their_field_names() -> None:
    for value in (Payer("Ann", SECRET), Login(user="ann", password=SECRET), Stored(SECRET, 7)):
        text = encode_value({"given": [value]}).decode()
        assert SECRET in text
        hidden = redactor.json(text)
        assert hidden is not None
        assert SECRET not in hidden
        assert REDACTED in hidden


def test_a_name_that_is_written_with_escapes_is_the_same_name() -> None:
    assert redactor.json('{"c\\u0061rd": "4111", "x": 1}') == '{"c\\u0061rd": "[redacted]", "x": 1}'


def test_arguments_by_position_are_hidden_by_the_names_of_the_parameters() -> None:
    text = json.dumps([7, SECRET, {"card": SECRET}, [1, 2]])

    assert redactor.json(text, ["order", "card", "more", "password"]) == json.dumps(
        [7, REDACTED, {"card": REDACTED}, REDACTED]
    )
    assert redactor.json(text, ["order"]) == json.dumps([7, SECRET, {"card": REDACTED}, [1, 2]])
    assert redactor.json("[]", ["card"]) == "[]"
    assert redactor.json("[", ["card"]) == "["


def test_wherever_a_text_is_cut_off_it_shows_nothing_of_a_hidden_value() -> None:
    text = json.dumps({"a": 1, "card": SECRET, "b": [{"password": {"x": [SECRET, "y"]}}], "c": "end"})
    args = json.dumps([1, SECRET, {"card": SECRET}])

    for cut in range(len(text) + 1):
        assert "4" not in (redactor.json(text[:cut]) or "")
    for cut in range(len(args) + 1):
        assert "4" not in (redactor.json(args[:cut], ["order", "card"]) or "")


@pytest.mark.parametrize(
    "text", ["", "nonsense", '"card"', '"card":', "{", '{"card', '{"card":', "[[[", '{"card": }', "\\"]
)
def test_what_is_no_json_does_no_harm(text: str) -> None:
    assert SECRET not in (redactor.json(text) or "")
    redactor.json(text, ["card"])
    redactor.scrub("message", text, parameters=["card"])
    assert redactor.json(None) is None


def test_numbers_too_long_for_others_stay_as_they_are() -> None:
    text = '{"n": 123456789012345678901234567890, "f": 1.10, "card": 1}'

    assert redactor.json(text) == '{"n": 123456789012345678901234567890, "f": 1.10, "card": "[redacted]"}'


def test_without_names_nothing_is_hidden() -> None:
    text = json.dumps({"card": SECRET})

    assert not Redactor()
    assert Redactor().json(text) == text
    assert Redactor().scrub(SECRET, text) == SECRET


@pytest.mark.parametrize(
    ("value", "message", "shown"),
    [
        (SECRET, f"invalid enum value '{SECRET}'", "invalid enum value '[redacted]'"),
        (SECRET, f"{SECRET}x and x{SECRET} stay", f"{SECRET}x and x{SECRET} stay"),
        (41, "41 is not 410 or 141", "[redacted] is not 410 or 141"),
        ("it's\n", 'got "it\'s\\n"', 'got "[redacted]"'),
        ("+49 30", "call+49 30", "call[redacted]"),
        ({"number": SECRET, "year": 2031}, f"card {SECRET} of 2031", "card [redacted] of [redacted]"),
        ("", "nothing", "nothing"),
        (None, "null None", "null None"),
    ],
)
def test_a_message_does_not_quote_a_hidden_value(value: object, message: str, shown: str) -> None:
    assert redactor.scrub(message, json.dumps({"a": [{"card": value}]})) == shown
    assert redactor.scrub(message, json.dumps([1, value]), parameters=["n", "card"]) == shown
    assert redactor.scrub_call(message, {"a": ({"card": value},)}) == shown


def test_a_message_does_not_quote_the_fields_of_objects() -> None:
    for value in (Payer("Ann", SECRET), Login(user="ann", password=SECRET), Stored(SECRET, 7)):
        assert redactor.scrub_call(f"Ann gave {SECRET}", {"who": [value]}) == "Ann gave [redacted]"


def test_a_value_that_contains_itself_or_cannot_be_shown_does_no_harm() -> None:
    class Shy:
        def __str__(self) -> str:
            raise RuntimeError

    endless: list[object] = []
    endless.append(endless)

    assert redactor.scrub_call("message", {"card": Shy(), "password": endless}) == "message"


def test_a_result_is_hidden_by_name_and_does_not_quote_arguments() -> None:
    kwargs = json.dumps({"card": SECRET, "password": 7})
    result = json.dumps({"err": {"message": f"{SECRET} declined", "data": {"card": SECRET}}, "n": 7})

    shown = redactor.result(result, kwargs)

    assert shown is not None
    assert json.loads(shown) == {
        "err": {"message": "[redacted] declined", "data": {"card": REDACTED}},
        "n": 7,
    }


def test_what_still_says_redacted_gets_its_original_back() -> None:
    original = {"card": SECRET, "order": 1, "payers": [{"Password": [1, 2]}, {"Password": "y"}], "note": "x"}
    edited = {
        "card": REDACTED,
        "order": 2,
        "payers": [{"Password": REDACTED}, {"Password": "new"}],
        "note": REDACTED,
    }

    assert redactor.restore(edited, original) == {
        "card": SECRET,
        "order": 2,
        "payers": [{"Password": [1, 2]}, {"Password": "new"}],
        "note": REDACTED,
    }


@pytest.mark.parametrize(
    ("edited", "original"),
    [
        ({"card": REDACTED}, {}),
        ({"a": {"card": REDACTED}}, {"card": SECRET}),
        ({"a": [{"card": REDACTED}]}, {"a": [{"card": "x"}, {"card": "y"}]}),
        ({"a": [{"card": REDACTED}]}, {"a": "text"}),
    ],
)
def test_redacted_is_never_taken_for_a_value(edited: object, original: object) -> None:
    with pytest.raises(NothingToRestore, match="card"):
        redactor.restore(edited, original)


@pytest.mark.parametrize("names", ["card", [""], [1], None, {"card": 1}])
def test_names_that_are_no_list_of_texts_are_refused(names: object) -> None:
    with pytest.raises(ConfigurationError, match="redact"):
        AppConfig(redact=names)  # pyright: ignore[reportArgumentType]


class Mode(Enum):
    NOW = "now"


def shop() -> Any:
    app = Horsies(AppConfig.for_database_url("postgresql://localhost:1/none", redact=["card", "mode"]))

    @app.task("choose", unique=lambda mode, card="": f"{card}\0")
    def choose(mode: Mode, card: str = "") -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    @app.task("pay")
    def pay(mode: Mode, login: Login | None = None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    return app, choose, pay


def test_a_send_that_is_refused_does_not_quote_a_hidden_argument() -> None:
    _, choose, pay = shop()

    refusals = [
        pay.send(SECRET),
        pay.send(mode=SECRET),
        choose.send(Mode.NOW, card=SECRET),
        pay.send_many([{"mode": SECRET}]),
        pay.send_many([SECRET]),
    ]

    for refusal in refusals:
        message = refusal.err_value.message
        assert message
        assert SECRET not in message


def test_a_node_of_a_workflow_that_is_refused_does_not_quote_a_hidden_argument() -> None:
    app, _, pay = shop()

    with pytest.raises(HorsiesError) as refusal:
        app.workflow("pay", [TaskNode(fn=pay, kwargs={"mode": SECRET})], definition_key="pay.v1")

    assert "mode" in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_a_worker_does_not_quote_a_hidden_argument_that_it_cannot_read() -> None:
    app, *_ = shop()
    by_name = (None, json.dumps({"mode": SECRET}))
    by_position = (json.dumps([SECRET]), None)

    for given in (by_name, by_position):
        _, _, result = prepare(app, Call(1, "1", "pay", *given, "default", 1, 0, None, 0.0, 1, None))
        assert result is not None
        message = result.err_value.message or ""
        assert "mode" in message
        assert SECRET not in message


def test_an_event_does_not_quote_a_hidden_argument() -> None:
    app, *_ = shop()
    told = list[Event]()
    app.on("failed", told.append)
    task = Claimed(
        0, "1", 1, "pay", None, json.dumps({"card": SECRET}), "default", False, 100, "", 1, None, 0, 0, 0, False, None
    )  # fmt: skip
    event_hooks = EventHooks(app)
    event_hooks.start(lambda: "me")
    event_hooks.left_child(task)

    event_hooks.failed([Failure("1", 1, "{}", "DECLINED", f"no money on {SECRET}")], {"1": False})
    event_hooks.close()

    assert [event.message for event in told] == ["no money on [redacted]"]
