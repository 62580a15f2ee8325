"""Task ids: UUIDv7, so that they sort by the time of sending and a look-up can skip older history."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

_lock = threading.Lock()
_RANDOM = struct.Struct("!Q")
_last = 0
# How far a producer's clock may be ahead of the database's before a look-up by id misses the task.
CLOCK_TOLERANCE = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# The year 5138: the timestamp of an id beyond it is meaningless and may not fit a datetime.
_LATEST_MS = 10**14


def new_ids(count: int) -> list[UUID]:
    """Return new ids in ascending order, each greater than every earlier id of this process."""
    global _last
    # 12 bits are the fraction of the millisecond, as in ids that the database makes: so both sort as they were made.
    now = (time.time_ns() << 12) // 1_000_000
    with _lock:
        # Several ids of one moment borrow from the next ones.
        first = max(_last + 1, now)
        _last = first + count - 1
    return [
        UUID(
            int=(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
        )
        for stamp, (random,) in enumerate(_RANDOM.iter_unpack(os.urandom(_RANDOM.size * count)), first)
    ]


def slot_id(schedule_name: str, slot: datetime) -> UUID:
    """Return the id of a schedule's run: the same in every scheduler, with the timestamp of the slot."""
    text = f"{schedule_name}\0{slot.astimezone(UTC).isoformat()}"
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
    milliseconds = (slot - _EPOCH) // timedelta(milliseconds=1)
    return UUID(
        int=milliseconds << 80
        | 0x7 << 76
        | (digest >> 64 & 0xFFF) << 64
        | 0b10 << 62
        | digest & (1 << 62) - 1
    )


def not_before(ids: Iterable[UUID]) -> datetime:
    """Return a time before which none of these tasks can have ended; foreign ids have no timestamp and give LONG_AGO."""
    oldest = min((task_id.int >> 80 if task_id.version == 7 else 0 for task_id in ids), default=0)
    if not 0 < oldest < _LATEST_MS:
        return LONG_AGO
    return max(LONG_AGO, datetime.fromtimestamp(oldest / 1000, UTC) - CLOCK_TOLERANCE)


def _renew_lock() -> None:
    """Replace the lock in a forked child: the thread that held it does not exist there to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
