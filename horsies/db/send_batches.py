"""Insert the concurrent sends of a process in batches: while some are under way, the others gather for the next INSERT.

A few threads insert by themselves, so a lone send is not delayed. The sends of further threads and of coroutines wait in a
queue, from which a sender thread takes all at once. A send fails only by its own row: a batch that fails is halved until the
row is alone. Rows with a unique or idempotency key never gather: their INSERT may wait for another transaction, perhaps that
of a thread whose next send would wait for this batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from uuid import UUID

from horsies.db.connection import TRANSIENT, SyncPool, is_row_fault
from horsies.db.insert import ROWS_PER_STATEMENT, Rows, Values, insert_tasks, run_plan
from horsies.db.queries.tasks import NewTask

# Up to this number of threads, inserts side by side are faster than a batch.
DIRECT_SENDS = 4
# A longer row goes alone: it would hold up the others.
MOST_CHARACTERS = 65_536
CHARACTERS_PER_BATCH = 1_048_576
# A send that no sender has taken for so long gets another sender: the others wait for a slow commit or a dead connection.
PATIENCE_SECONDS = 0.1
SPARE_SENDERS = 3
# After a batch of as many sends, the sender waits for this share of its duration: the callers that it has just woken up send
# again, and the next batch has room for all of them instead of half.
BUSY_BATCH = 4
PAUSE_SHARE = 0.125
# A sender without work ends after so long.
LINGER_SECONDS = 5.0


def can_gather(rows: Sequence[NewTask]) -> bool:
    """Return True if a send may share its statement with others."""
    if len(rows) != 1:
        return False
    row = rows[0]
    return row.unique_key is None and row.idempotency_key is None and _size(row) <= MOST_CHARACTERS


def _size(row: NewTask) -> int:
    return len(row.kwargs or "") + len(row.task_options or "")


class _Send:
    """A row that waits to be inserted.

    `taken` is locked once: by the sender that inserts the row, or by a caller that gives up before that.
    """

    __slots__ = ("done", "outcome", "row", "taken", "waiter")

    def __init__(self, row: NewTask, waiter: asyncio.Future[UUID] | None = None) -> None:
        self.row = row
        self.waiter = waiter
        self.taken = threading.Lock()
        self.outcome: UUID | Exception | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def take(self) -> bool:
        """Return True for the first who takes the send."""
        return self.taken.acquire(blocking=False)


class SendBatcher:
    """The sends of one process to one database.

    No lock guards the state, only operations that are atomic by themselves: a signal handler may send while it interrupts a send.
    """

    def __init__(self, pool: SyncPool) -> None:
        self._pool = pool
        self._queue: SimpleQueue[_Send | None] = SimpleQueue()
        # Permissions: to insert in the caller's thread, to be the sender, to help it. Whoever holds one has removed it. One that
        # is given back twice, because of Ctrl-C, is kept once.
        self._direct = deque(range(DIRECT_SENDS), DIRECT_SENDS)
        self._sender = deque(range(1), 1)
        self._spare = deque(range(SPARE_SENDERS), SPARE_SENDERS)
        self._busy_since: float | None = None  # of the sender, on the monotonic clock
        self._closed = False

    def insert(self, row: NewTask) -> UUID:
        """Insert a task in this thread, or let a sender do so if enough threads insert already.

        If Ctrl-C ends the wait, the task may be stored or not.
        """
        if self._busy_since is None:
            try:
                permission = self._direct.pop()
            except IndexError:
                pass
            else:
                try:
                    return self._insert([row])[0]
                finally:
                    self._direct.append(permission)
        send = _Send(row)
        if not self._put(send) and send.take():
            return self._insert([row])[0]
        while not send.done.acquire(timeout=PATIENCE_SECONDS):
            self._hurry(send)
        if isinstance(send.outcome, UUID):
            return send.outcome
        assert send.outcome is not None, "a sender gives every send an outcome"
        raise send.outcome

    async def insert_async(self, row: NewTask) -> UUID:
        """Let a sender insert a task. If this is cancelled, the task may be stored or not."""
        loop = asyncio.get_running_loop()
        send = _Send(row, loop.create_future())
        assert send.waiter is not None
        if not self._put(send) and send.take():
            return self._insert([row])[0]
        timer = loop.call_later(PATIENCE_SECONDS, self._hurry_later, send, loop)
        try:
            return await send.waiter
        finally:
            send.take()  # of a send that was cancelled: it is left out of a batch that has not begun
            timer.cancel()

    def close(self) -> None:
        """Let the senders end when nothing waits any more."""
        self._closed = True
        for _ in range(1 + SPARE_SENDERS):
            self._queue.put(None)

    def _put(self, send: _Send) -> bool:
        """Queue a send; return False if it needs a new sender and no thread can be started, as at the exit of the interpreter."""
        # In this order: a sender that ends gives its permission back before it looks into the queue for the last time.
        self._queue.put(send)
        return self._start(self._sender)

    def _start(self, permissions: deque[int]) -> bool:
        """Start a sender if there is a permission for one; return False if no thread can be started."""
        try:
            permission = permissions.pop()
        except IndexError:
            return True
        run, arguments = self._run, (permissions, permission)
        try:
            threading.Thread(target=run, args=arguments, name="horsies-sender", daemon=True).start()
        except RuntimeError:
            permissions.append(permission)
            return False
        except BaseException:  # Ctrl-C: the thread may have been started or not
            permissions.append(permission)
            raise
        return True

    def _hurry(self, send: _Send) -> None:
        """Start another sender if none has taken this send."""
        if not send.taken.locked():
            self._start(self._spare)

    def _hurry_later(self, send: _Send, loop: asyncio.AbstractEventLoop) -> None:
        self._hurry(send)
        if not send.taken.locked():
            loop.call_later(PATIENCE_SECONDS, self._hurry_later, send, loop)

    def _run(self, permissions: deque[int], permission: int) -> None:
        """Insert batch after batch, until nothing has come for a while or a spare sender is not needed any more."""
        is_spare = permissions is self._spare
        while True:
            try:
                send = self._queue.get(timeout=0 if self._closed else LINGER_SECONDS)
            except Empty:
                send = None
            if send is not None:
                self._send_all(send, is_spare)
                if not is_spare:
                    self._busy_since = None
                elif self._is_stuck():
                    continue
            if send is None or is_spare:
                permissions.append(permission)
                if is_spare or self._queue.empty():
                    return
                try:
                    permission = permissions.pop()
                except IndexError:  # another one has started
                    return

    def _is_stuck(self) -> bool:
        since = self._busy_since
        return since is not None and time.monotonic() - since > PATIENCE_SECONDS

    def _send_all(self, send: _Send | None, is_spare: bool) -> None:
        """Insert this send and what waits behind it, batch by batch."""
        while send is not None:
            batch: list[_Send] = []
            characters = 0
            while True:
                if send is not None and send.take():
                    batch.append(send)
                    characters += _size(send.row)
                if len(batch) >= ROWS_PER_STATEMENT or characters >= CHARACTERS_PER_BATCH:
                    break
                try:
                    send = self._queue.get_nowait()
                except Empty:
                    break
            began = time.monotonic()
            if not is_spare:
                self._busy_since = began
            if batch:
                self._insert_batch(batch)
            if is_spare:
                return
            if len(batch) >= BUSY_BATCH:
                time.sleep(PAUSE_SHARE * min(time.monotonic() - began, PATIENCE_SECONDS))
            send = self._next()

    def _next(self) -> _Send | None:
        with suppress(Empty):
            return self._queue.get_nowait()
        return None

    def _insert_batch(self, sends: list[_Send]) -> None:
        """Insert sends in one statement. If a row makes it fail, insert both halves apart."""
        try:
            ids = self._insert([send.row for send in sends])
        except Exception as error:  # noqa: BLE001  it is raised where the send was called
            if len(sends) > 1 and (is_row_fault(error) or not isinstance(error, TRANSIENT)):
                middle = len(sends) // 2
                self._insert_batch(sends[:middle])
                self._insert_batch(sends[middle:])
                return
            for send in sends:
                send.outcome = error
        else:
            for send, task_id in zip(sends, ids, strict=True):
                send.outcome = task_id
        _deliver(sends)

    def _insert(self, rows: list[NewTask]) -> list[UUID]:
        with self._pool.connection() as connection:

            def fetch(sql: bytes, values: Values) -> Rows:
                return connection.execute(sql, values).fetchall()

            return run_plan(insert_tasks(rows), fetch)


def _deliver(sends: list[_Send]) -> None:
    """Wake up the callers of sends that have an outcome, each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Send]] = {}
    for send in sends:
        if send.waiter is None:
            send.done.release()
        else:
            by_loop.setdefault(send.waiter.get_loop(), []).append(send)
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_resolve, of_loop)


def _resolve(sends: list[_Send]) -> None:
    for send in sends:
        assert send.waiter is not None
        if send.waiter.done():
            continue
        if isinstance(send.outcome, Exception):
            send.waiter.set_exception(send.outcome)
        else:
            assert send.outcome is not None
            send.waiter.set_result(send.outcome)
