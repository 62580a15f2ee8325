"""Store the steps of running tasks for the children, beside the hot path.

A child asks, and its call waits for the answer. While one statement is under way, the questions of all children gather, and the
next statement stores their steps in one commit. A connection is opened when there is a question and closed after some idle
time. A statement whose answer was lost is repeated: a step that is stored never changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.db.connection import LARGE_CHARACTERS, TRANSIENT, Connection, connect_worker, time_to_store
from horsies.db.queries import steps
from horsies.db.queries.steps import EndedStep
from horsies.db.queries.tasks import Claimed
from horsies.event_loop import wait_until_set
from horsies.executor.protocol import BeginTransaction, LoadSteps, Question, StepReply, StoredStep, StoreStep
from horsies.quarantine import RowFault

logger = logging.getLogger("horsies.worker")

# An idle connection is closed after so long.
IDLE_SECONDS = 60.0
RETRY_SECONDS = 0.5
# The questions of children that ask one after another gather for at most so long.
GATHER_SECONDS = 0.002


class Asked(NamedTuple):
    """A question of a call, and the way to answer it."""

    question: Question
    task: Claimed
    answer: Callable[[StepReply], None]


class StepWriter:
    """Answers the questions of children, many in one statement."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._has_asked = asyncio.Event()
        self._expected = 0  # as many questions as came in the last two batches come again soon
        self._is_stopping = False
        self._worker_id = UUID(int=0)

    def set_worker_id(self, worker_id: UUID) -> None:
        """Set the worker that must hold the tasks whose steps are stored."""
        self._worker_id = worker_id

    def add(self, question: Question, task: Claimed | None, answer: Callable[[StepReply], None]) -> None:
        """Add a question; one of a call that has ended gets its answer at once."""
        if task is None:
            answer(StepReply(question.ticket, question.number, lost=True))
            return
        if isinstance(question, BeginTransaction):
            answer(StepReply(question.ticket, question.number, parks=self._is_stopping))
            return
        self._asked.append(Asked(question, task, answer))
        self._has_asked.set()

    def stop(self) -> None:
        """From now on, park each task at its next step."""
        self._is_stopping = True

    async def run(self, postgres: PostgresConfig) -> None:
        """Answer questions until cancelled."""
        while True:
            await self._has_asked.wait()
            try:
                async with await connect_worker(postgres, "horsies-steps") as connection:
                    while await wait_until_set(self._has_asked, IDLE_SECONDS):
                        await self._gather()
                        await self._answer(connection)
            except TRANSIENT as error:
                logger.warning("Could not store steps (%s), trying again", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    async def _gather(self) -> None:
        """Wait a moment if more children are likely to ask: one commit for all of them is worth it."""
        give_up_at = time.monotonic() + GATHER_SECONDS
        while len(self._asked) < self._expected and time.monotonic() < give_up_at:
            self._has_asked.clear()
            await wait_until_set(self._has_asked, max(0.0, give_up_at - time.monotonic()))

    async def _answer(self, connection: Connection) -> None:
        self._has_asked.clear()
        batch, characters = _batch(self._asked)
        self._asked = self._asked[len(batch) :]
        if self._asked:
            self._has_asked.set()
        try:
            async with time_to_store(connection, characters):
                asked = [(each.question, each.task) for each in batch]
                replies = await answer(connection, asked, self._worker_id)
        except BaseException:
            self._asked[:0] = batch
            self._has_asked.set()
            raise
        for each, reply in zip(batch, replies, strict=True):
            reply.parks = self._is_stopping and isinstance(each.question, StoreStep)
            each.answer(reply)
        self._expected = max(len(batch), self._expected // 2)


def _batch(asked: Sequence[Asked]) -> tuple[list[Asked], int]:
    """Return the questions for one statement, and how many characters they carry."""
    count = size = 0
    for each in asked:
        own = len(each.question.result) if isinstance(each.question, StoreStep) else 0
        if count and size + own > LARGE_CHARACTERS:
            break
        size += own
        count += 1
    return list(asked[:count]), size


async def answer(
    connection: Connection, asked: Sequence[tuple[Question, Claimed]], worker_id: UUID
) -> list[StepReply]:
    """Answer questions. A step that cannot be stored because of its content gets an error, and the others are stored."""
    with RowFault():
        return await _answer_all(connection, asked, worker_id)
    replies: list[StepReply] = []
    for question, task in asked:
        with RowFault() as fault:
            replies += await _answer_all(connection, [(question, task)], worker_id)
        if fault:
            replies.append(StepReply(question.ticket, question.number, error=fault.reason))
    return replies


async def _answer_all(
    connection: Connection, asked: Sequence[tuple[Question, Claimed]], worker_id: UUID
) -> list[StepReply]:
    ended = [
        EndedStep(
            task.id,
            task.claim_seq,
            question.name,
            question.kind,
            task.earlier_attempts + task.retry_count + 1,
            question.seconds,
            question.result,
        )
        for question, task in asked
        if isinstance(question, StoreStep)
    ]
    loading = [(task.id, task.claim_seq) for question, task in asked if isinstance(question, LoadSteps)]
    ours = await steps.store(connection, ended, worker_id) if ended else set[tuple[str, int]]()
    loaded: dict[tuple[str, int], list[StoredStep]] = {}
    for row in await steps.load(connection, loading, worker_id) if loading else ():
        found = loaded.setdefault((row.task_id, row.claim_seq), [])
        if row.name is not None:
            found.append(StoredStep(row.name, row.kind, row.result, row.calls))
    return [
        StepReply(
            question.ticket,
            question.number,
            lost=(task.id, task.claim_seq) not in (ours if isinstance(question, StoreStep) else loaded),
            steps=loaded.get((task.id, task.claim_seq), []) if isinstance(question, LoadSteps) else [],
        )
        for question, task in asked
    ]
