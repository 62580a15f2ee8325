"""Signal handlers of commands that run in the process of their caller."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def restored_handlers(*numbers: signal.Signals) -> Generator[None]:
    """Put back the handlers of these signals in the end.

    A handler left behind would act for a command that has ended, and keep alive all that it refers to.
    """
    found = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in found.items():
            if handler is not None:  # None: it was not set by Python, which cannot set it again
                signal.signal(number, handler)
