"""The names under which functions and classes are stored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

# The names of the module that was started as a program, in its own process and in those that multiprocessing spawns.
_STARTED = ("__main__", "__mp_main__")


def qualified_name(thing: type[Any] | Callable[..., Any]) -> str:
    """Return the module and the name of a function or class.

    A module that was started as a program has the name under which other processes import it: that of `python -m`, or that of
    its file.

    >>> qualified_name(ConnectionError)
    'builtins.ConnectionError'
    """
    name = thing.__qualname__.replace("<locals>.", "")
    return f"{_importable(thing.__module__)}.{name}"


def _importable(module_name: str) -> str:
    if module_name not in _STARTED:
        return module_name
    module = sys.modules.get(module_name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return spec.name
    return module_name if file is None else PurePath(file).stem
