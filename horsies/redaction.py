"""Hide the values of certain names wherever arguments, results and messages are shown.

Stored values, and the arguments that a task receives, are not changed. Names match case-insensitively, at any depth. The
functions work on JSON text, which may be truncated.

>>> Redactor(["card"]).json('{"order": 7, "payer": {"Card": "4111", "name": "Ann"}}')
'{"order": 7, "payer": {"Card": "[redacted]", "name": "Ann"}}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

REDACTED: Final = "[redacted]"
# How many different values are searched for in a message.
MAX_VALUES = 200
MAX_DEPTH = 200

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_OR_KEY = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:\s*)?', re.DOTALL)
# A string, possibly truncated, or a bracket.
_NESTING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}\s]*")
_SPACE = re.compile(r"[\s,]*")
_LEAF = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|(-?\d[\d.eE+-]*)', re.DOTALL)


class NothingToRestore(ValueError):
    """An edited value is "[redacted]", and there is no original value to restore."""


class Redactor:
    """Hide the values of these names; without names, change nothing."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.casefold() for name in names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def hides(self, name: str) -> bool:
        """Return True if the values of this name are hidden."""
        return name.casefold() in self._names

    def json(self, text: str | None, parameters: Sequence[str] = ()) -> str | None:
        """Return JSON text with hidden values replaced; `parameters` are the names of the items of a top-level array."""
        if not text or not self._names:
            return text
        parts: list[str] = []
        shown = 0
        for start, end in self._spans(text, parameters):
            parts += text[shown:start], f'"{REDACTED}"'
            shown = end
        return "".join([*parts, text[shown:]])

    def scrub(
        self, message: str | None, *arguments: str | None, parameters: Sequence[str] = ()
    ) -> str | None:
        """Return a message without the hidden values in these arguments, which are JSON text."""
        if not message or not self._names:
            return message
        return _without(message, self._values(arguments, parameters))

    def result(self, text: str | None, *arguments: str | None, parameters: Sequence[str] = ()) -> str | None:
        """Return a stored result with hidden values replaced, also where its texts quote one of these arguments."""
        shown = self.json(text)
        found = self._values(arguments, parameters) if shown and self._names else set[str]()
        return _STRING.sub(lambda each: _without(each[0], found), shown) if shown and found else shown

    def _values(self, arguments: Iterable[str | None], parameters: Sequence[str]) -> set[str]:
        return {
            leaf
            for text in arguments
            if text
            for start, end in self._spans(text, parameters)
            for leaf in _leaves(text[start:end])
        }

    def scrub_call(self, message: str, arguments: Mapping[str, Any]) -> str:
        """Return a message without the hidden values in these arguments, which are Python values by name."""
        return _without(message, set(self._hidden(arguments, MAX_DEPTH))) if self._names else message

    def restore(self, edited: Any, original: Any) -> Any:
        """Return edited JSON values with the original wherever a hidden value is still "[redacted]".

        Raise NothingToRestore if there is no original at that place, or if the length of a list has changed, so that the
        original is ambiguous.
        """
        if isinstance(edited, dict):
            known = cast(dict[str, Any], original) if isinstance(original, dict) else {}
            values = cast(dict[str, Any], edited)
            return {name: self._restored(name, value, known) for name, value in values.items()}
        if isinstance(edited, list):
            items = cast(list[Any], edited)
            before = cast(list[Any], original) if isinstance(original, list) else []
            if len(before) != len(items):
                before = [None] * len(items)
            return [self.restore(item, old) for item, old in zip(items, before, strict=True)]
        return edited

    def _restored(self, name: str, value: Any, known: dict[str, Any]) -> Any:
        if not self.hides(name) or value != REDACTED:
            return self.restore(value, known.get(name))
        if name not in known:
            raise NothingToRestore(f"{name} is {REDACTED!r}, and there is no original value in its place")
        return known[name]

    def _spans(self, text: str, parameters: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each hidden value."""
        if parameters and text.lstrip().startswith("["):
            yield from self._item_spans(text, parameters)
            return
        at = 0
        while (token := _STRING_OR_KEY.search(text, at)) is not None:
            at = token.end()
            if token[2] is not None and self.hides(_text_of(token[1])):
                end = _end_of(text, at)
                yield at, end
                at = max(end, at)

    def _item_spans(self, text: str, parameters: Sequence[str]) -> Iterator[tuple[int, int]]:
        at = text.index("[") + 1
        for position in range(len(text)):
            at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  the pattern also matches nothing
            if at >= len(text) or text[at] == "]":
                return
            end = _end_of(text, at)
            if position < len(parameters) and self.hides(parameters[position]):
                yield at, end
            else:
                yield from ((at + a, at + b) for a, b in self._spans(text[at:end], ()))
            if end == at:
                return  # no JSON, and no progress
            at = end

    def _hidden(self, value: Any, depth: int, is_hidden: bool = False) -> Iterator[str]:
        """Yield the texts of hidden values in Python values."""
        if depth == 0:
            return
        if isinstance(value, (list, tuple, set, frozenset)):
            for item in cast(Iterable[Any], value):
                yield from self._hidden(item, depth - 1, is_hidden)
        elif (named := _fields_of(value)) is not None:
            for name, item in named.items():
                hidden = is_hidden or (isinstance(name, str) and self.hides(name))
                yield from self._hidden(item, depth - 1, hidden)
        elif is_hidden and value is not None and not isinstance(value, bool):
            yield from _forms(value)


def names_in(environment: Mapping[str, str]) -> list[str]:
    """Return the names in HORSIES_REDACT, which are separated by commas.

    >>> names_in({"HORSIES_REDACT": "card, password"})
    ['card', 'password']
    """
    return [name.strip() for name in environment.get("HORSIES_REDACT", "").split(",") if name.strip()]


def _end_of(text: str, at: int) -> int:
    """Return where the JSON value that begins at `at` ends; the end of the text if it is cut off."""
    first = text[at : at + 1]
    if first == '"':
        whole = _STRING.match(text, at)
        return len(text) if whole is None else whole.end()
    if first not in ("{", "["):
        return _SCALAR.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  the pattern also matches nothing
    depth = 0
    for token in _NESTING.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(text)


def _text_of(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token.strip('"')


def _leaves(text: str) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value, in the forms in which a message may quote them."""
    if text.startswith('"') and _STRING.fullmatch(text) is None:
        text += '"'  # truncated
    for leaf in _LEAF.finditer(text):
        if leaf[1] is not None and leaf[2] is None:
            yield leaf[1][1:-1]
            yield from _forms(_text_of(leaf[1]))
        elif leaf[3] is not None:
            yield leaf[3]


def _forms(value: Any) -> Iterator[str]:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  user code; a value that cannot be printed is in no message
        return
    yield text
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a mapping, dataclass, struct or model by name; None for any other value."""
    if isinstance(value, Mapping):
        return cast(Mapping[Any, Any], value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name, None) for each in fields(value)}
    names = getattr(cast(Any, type(value)), "__struct_fields__", None)
    if names is not None:
        return {name: getattr(value, name, None) for name in names}
    if hasattr(cast(Any, type(value)), "__pydantic_fields__"):
        return dict(vars(value))
    return None


def _without(message: str, values: set[str]) -> str:
    chosen = sorted((value for value in values if value.strip()), key=len, reverse=True)[:MAX_VALUES]
    if not chosen:
        return message
    return re.sub("|".join(map(_whole_word, chosen)), REDACTED, message)


def _whole_word(value: str) -> str:
    """Return a pattern for a value that is not part of a longer word or number: "1" must not match in "10"."""
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.match(r"\w", value[-1]) else ""
    return f"{before}{re.escape(value)}{after}"
