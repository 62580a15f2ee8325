"""Compare the types of values that nodes pass to each other."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import date, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from horsies.result import TaskResult


def accepts_source(annotation: Any, given: Any) -> bool:
    """Return True if a parameter can take the result of a node with a value of the given type.

    A parameter annotated `TaskResult[T, TaskError]` takes the whole result, any other the value.
    """
    if get_origin(annotation) in (Union, UnionType) and takes_result(annotation):
        return any(accepts_source(part, given) for part in get_args(annotation) if takes_result(part))
    if get_origin(annotation) is Annotated:
        return accepts_source(get_args(annotation)[0], given)
    if get_origin(annotation) is TaskResult:
        return fits(get_args(annotation)[0], given)
    return annotation is TaskResult or fits(annotation, given)


def takes_result(annotation: Any) -> bool:
    """Return True if a parameter so annotated takes the whole result of a node, False if it takes the plain value.

    >>> takes_result(TaskResult[int, TaskError] | None), takes_result(int)
    (True, False)
    """
    annotation = getattr(annotation, "__value__", annotation)  # a `type X = …` alias
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(takes_result(part) for part in get_args(annotation))
    return annotation is TaskResult or get_origin(annotation) is TaskResult


def fits(wanted: Any, given: Any) -> bool:
    """Return True if every value of the type `given` is also one of the type `wanted`, once it was stored as JSON.

    A class fits its base classes. What is unknown fits: it is checked when the value is there.

    >>> fits(Base, Derived), fits(float, int), fits(int, bool), fits(list[Base], list[Derived])
    (True, True, False, True)
    """
    wanted, given = _bare(wanted), _bare(given)
    if Any in (wanted, given) or wanted in (object, inspect.Parameter.empty) or wanted == given:
        return True
    if get_origin(given) in (Union, UnionType):
        return all(fits(wanted, part) for part in get_args(given))
    if get_origin(wanted) in (Union, UnionType):
        return any(fits(part, given) for part in get_args(wanted))
    if get_origin(given) is Literal:
        if get_origin(wanted) is Literal:
            return set(get_args(given)) <= set(get_args(wanted))
        return all(fits(wanted, type(value)) for value in get_args(given))
    return _class_fits(get_origin(wanted) or wanted, get_origin(given) or given) and _parts_fit(wanted, given)


def _bare(annotation: Any) -> Any:
    """Return an annotation without `Annotated`, without the name of a `type X = …`, and with the class of None."""
    while True:
        if annotation is None:
            return NoneType
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) is None and hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


_ARRAYS = (list, tuple, set, frozenset)
# Subclasses in Python whose JSON is not that of the base class.
_UNLIKE_BASE = {(int, bool), (float, bool), (date, datetime)}


def _class_fits(wanted: Any, given: Any) -> bool:
    if (wanted, given) in _UNLIKE_BASE:
        return False
    if (wanted, given) == (float, int) or (wanted in _ARRAYS and given in _ARRAYS):
        return True
    if supertype := getattr(given, "__supertype__", None):  # a NewType
        return fits(wanted, supertype)
    try:
        return issubclass(given, wanted)
    except TypeError:  # something that is not a class, such as a TypedDict
        return False


def _parts_fit(wanted: Any, given: Any) -> bool:
    """Return True if the type arguments fit, such as those of two lists. Without arguments, anything fits."""
    ours, theirs = get_args(wanted), get_args(given)
    if not ours or not theirs:
        return True
    if get_origin(given) in _ARRAYS and (get_origin(wanted) in _ARRAYS or len(ours) == 1):
        return fits(_item_type(wanted), _item_type(given))
    return len(ours) == len(theirs) and all(map(fits, ours, theirs))


def item_type_of(annotation: Any) -> Any:
    """Return the type of the items of a list, Any if it is unknown; None if it is not the type of a list."""
    annotation = _bare(annotation)
    if annotation is Any:
        return Any
    try:
        is_list = issubclass(get_origin(annotation) or annotation, (*_ARRAYS, Sequence))
    except TypeError:
        return None
    return _item_type(annotation) if is_list and annotation not in (str, bytes) else None


def _item_type(annotation: Any) -> Any:
    parts = tuple(part for part in get_args(annotation) if part is not ...)
    return Union[parts] if parts else Any  # noqa: UP007  the types are known at run time only
