"""Keys: tasks with the same key share a concurrency limit, a rate, and an order.

A key is stored in the column `rate_key`, in the lane `key=` followed by the key. A task with a rate limit and no key has its
task's name there, and a task that runs in batches `batch=` followed by its name. No task with a rate limit may have a name that
begins with one of these, so neither is ever taken for a rate.
"""

from __future__ import annotations

from collections.abc import Callable

from horsies.errors import is_storable_text

# A key, or the name of a parameter whose value is the key, or a function of the arguments that returns it.
KeyOption = str | Callable[..., str | int] | None
CostOption = str | Callable[..., float] | None

LANE_PREFIX = "key="
BATCH_PREFIX = "batch="
MAX_KEY_CHARACTERS = 200
# The highest cost: more than any rate allows in a year.
MAX_COST = 1e9


def lane_of_key(key: str) -> str:
    """Return the lane of a key, as it is stored.

    >>> lane_of_key("acme")
    'key=acme'
    """
    return LANE_PREFIX + key


def key_of_lane(lane: str | None) -> str | None:
    """Return the key of a stored lane, None if it is none of a key.

    >>> key_of_lane("key=acme"), key_of_lane("charge"), key_of_lane("")
    ('acme', None, None)
    """
    return lane[len(LANE_PREFIX) :] if lane is not None and lane.startswith(LANE_PREFIX) else None


def is_keyed(lane: str) -> bool:
    """Return True if a stored lane is that of a key."""
    return lane.startswith(LANE_PREFIX)


def lane_of_batch(task_name: str) -> str:
    """Return the lane of a task that runs in batches.

    >>> lane_of_batch("index")
    'batch=index'
    """
    return BATCH_PREFIX + task_name


def is_batched(lane: str) -> bool:
    """Return True if tasks of a stored lane are claimed in batches."""
    return lane.startswith(BATCH_PREFIX)


def key_text(value: object) -> str:
    """Return a value as a key; raise ValueError if it cannot be one. The number 7 and the text "7" are the same key."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    # A value is quoted as a whole or not at all: redaction does not find a part of it.
    if not isinstance(value, str):
        shown = repr(value)
        shown = f"is {shown}, of type" if len(shown) <= MAX_KEY_CHARACTERS else "is"
        raise ValueError(f"{shown} {type(value).__name__}; a key is a text or a whole number")
    if len(value) > MAX_KEY_CHARACTERS:
        raise ValueError(f"has {len(value):,} characters; a key has 1 to {MAX_KEY_CHARACTERS}")
    if not is_storable_text(value, MAX_KEY_CHARACTERS):
        raise ValueError(
            f"is {value!r}; a key has 1 to {MAX_KEY_CHARACTERS} characters of any text but NUL and lone surrogates"
        )
    return str(value)


def cost_number(value: object) -> float:
    """Return a value as a cost; raise ValueError if it cannot be one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"is a {type(value).__name__}; a cost is a number from 0 to {MAX_COST:,.0f}")
    if not 0 <= value <= MAX_COST:
        raise ValueError(f"is {value!r}; a cost is a number from 0 to {MAX_COST:,.0f}")
    return float(value)
