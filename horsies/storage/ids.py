"""Task ids: UUIDv7, so that they sort by the time of sending and a look-up can leave older history out."""

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
# How far a producer's clock may be ahead of the database's before a look-up by id would miss its task.
CLOCK_TOLERANCE = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# The year 5138: an id that says later is no time at all, and not every one of them has a date.
_LATEST_MS = 10**14


def new_ids(count: int) -> list[UUID]:
    """Fresh ids in ascending order, each greater than every id made in this process before it."""
    global _last
    now = time.time_ns() // 1_000_000 << 12
    with _lock:
        # 12 bits count within the millisecond; a burst beyond them borrows from the next ones.
        first = max(_last + 1, now)
        _last = first + count - 1
    return [
        UUID(
            int=(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
        )
        for stamp, (random,) in enumerate(_RANDOM.iter_unpack(os.urandom(_RANDOM.size * count)), first)
    ]


def slot_id(schedule_name: str, slot: datetime) -> UUID:
    """The id of a schedule's run: the same whoever makes it, and of the slot's own time."""
    said = f"{schedule_name}\0{slot.astimezone(UTC).isoformat()}"
    digest = int.from_bytes(hashlib.sha256(said.encode()).digest()[:16], "big")
    milliseconds = (slot - _EPOCH) // timedelta(milliseconds=1)
    return UUID(
        int=milliseconds << 80
        | 0x7 << 76
        | (digest >> 64 & 0xFFF) << 64
        | 0b10 << 62
        | digest & (1 << 62) - 1
    )


def not_before(ids: Iterable[UUID]) -> datetime:
    """A time that none of these tasks can have ended before; ids not made here tell nothing."""
    oldest = min((task_id.int >> 80 if task_id.version == 7 else 0 for task_id in ids), default=0)
    if not 0 < oldest < _LATEST_MS:
        return LONG_AGO
    return max(LONG_AGO, datetime.fromtimestamp(oldest / 1000, UTC) - CLOCK_TOLERANCE)


def _renew_lock() -> None:
    """In a forked child: the thread that held the lock did not come along to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
