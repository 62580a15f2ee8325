"""Wait for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 20.0, what: str = "the condition") -> T:
    """What the condition gives once it is truthy; fails when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s; it was last {value!r}")
        time.sleep(0.01)
