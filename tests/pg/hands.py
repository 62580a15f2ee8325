"""A worker's hands without the worker: rows are claimed and settled through the storage layer, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

from horsies import PostgresConfig, RetentionConfig
from horsies.storage import cancelling, operations, states, tasks, workers, workflows
from horsies.storage.cancelling import Cancellation
from horsies.storage.database import connect_worker
from horsies.storage.monitor import Filter
from horsies.storage.operations import Failed
from horsies.storage.states import Pulse, Snapshot
from horsies.storage.tasks import Ask, Cap, Claimed, Completed, Failure, Line, Room, Start
from horsies.storage.workers import Beat, Definition, Registration, Rules
from horsies.worker.claim import NO_LIMIT
from horsies.worker.reaper import reap
from horsies.worker.settle import Settler

T = TypeVar("T")
Key = tuple[int, str, str]

START: Key = (0, "2000-01-01T00:00:00Z", str(UUID(int=0)))
LEASE_SECONDS = 60.0
ANY_FAILED = Failed()
OK = '{"ok":5}'
ERR = '{"err":{"error_code":"BROKEN","message":"it broke","data":null,"exception":null}}'


class Hands:
    """One session of a worker that never was."""

    def __init__(self, url: str) -> None:
        self.worker_id = uuid4()
        self._runner = asyncio.Runner()
        self._connection = self._run(connect_worker(PostgresConfig(database_url=url), "hands"))

    def close(self) -> None:
        self._run(self._connection.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def execute(self, statement: str) -> None:
        """Anything else that the session should do, such as a setting."""
        self._run(self._connection.execute(statement.encode()))

    def claim(
        self,
        *queues: str,
        limit: int = 100,
        quotas: Sequence[int] | None = None,
        after: Key = START,
        pids: Sequence[int] = (),
        is_async: bool = False,
        rates: Sequence[str] = (),
        caps: Sequence[Cap] = (),
    ) -> list[Claimed]:
        """Take what is due, most urgent first; a row goes straight to a child while there are pids."""
        names = queues or ("default",)
        lines = [
            Line(0, name, is_async, rate_key, quota, *after)
            for name, quota in zip(names, quotas or [limit] * len(names), strict=True)
            for rate_key in ("", *rates)
        ]
        return self.exchange([], lines, [Room(0, limit, len(pids), list(pids))], rates=rates, caps=caps)[1]

    def run_next(self, *queues: str, limit: int = 100, pid: int = 4242) -> list[Claimed]:
        """Claim and start, all at once."""
        return self.claim(*queues, limit=limit, pids=[pid] * limit)

    def complete(self, claimed: Iterable[Claimed], result: str = OK) -> int:
        """End tasks that returned; how many were still ours."""
        return self.exchange([Completed(task.id, task.claim_seq, result) for task in claimed])[0]

    def exchange(
        self,
        completed: Sequence[Completed] = (),
        lines: Sequence[Line] = (),
        pools: Sequence[Room] = (),
        *,
        rates: Sequence[str] = (),
        caps: Sequence[Cap] = (),
        limit: int = NO_LIMIT,
        batch: int = NO_LIMIT,
    ) -> tuple[int, list[Claimed]]:
        """End and claim, with everything that can be said about it."""
        ask = Ask(
            lines=list(lines),
            pools=list(pools),
            caps=list(caps),
            rates=list(rates),
            limit=limit,
            batch=batch,
            lease_seconds=LEASE_SECONDS,
            worker_id=self.worker_id,
            hostname="host",
            process_name="hands",
        )
        return self._run(tasks.exchange(self._connection, completed, ask))

    def fail(
        self,
        claimed: Iterable[Claimed],
        *,
        delay_seconds: float | None = None,
        crashed: bool = False,
        reason: str | None = None,
    ) -> dict[str, bool]:
        """End attempts that failed; for those that were ours, whether they are tried again."""
        failures = [
            Failure(
                id=task.id,
                claim_seq=task.claim_seq,
                result=ERR,
                error_code="BROKEN",
                error_message="it broke",
                failed_reason=reason,
                delay_seconds=delay_seconds,
                crashed=crashed,
            )
            for task in claimed
        ]
        return self.store(failures)

    def snooze(self, claimed: Iterable[Claimed], seconds: float = 3_600) -> dict[str, bool]:
        """End runs that are to be repeated later."""
        return self.store(
            [
                Failure(task.id, task.claim_seq, ERR, "BROKEN", None, delay_seconds=seconds, snoozed=True)
                for task in claimed
            ]
        )

    def store(self, failures: Sequence[Failure]) -> dict[str, bool]:
        """End attempts as a settler says."""
        return self._run(tasks.fail(self._connection, failures))

    def settle(self, claimed: Iterable[Claimed]) -> set[str]:
        """End tasks that returned, as a child of a dead worker does; which counted as such."""
        done = [Completed(task.id, task.claim_seq, OK, task.node) for task in claimed]

        async def settle() -> set[str]:
            async with self._connection.transaction():
                return (await workflows.settle(self._connection, done, [])).completed

        return self._run(settle())

    def start(self, claimed: Iterable[Claimed], pid: int = 4242) -> set[str]:
        starts = [Start(task.id, task.claim_seq, pid) for task in claimed]
        return self._run(tasks.start(self._connection, starts))

    def release(self, keep: Iterable[Claimed] = ()) -> int:
        held = [(task.id, task.claim_seq) for task in keep]
        return self._run(tasks.release(self._connection, self.worker_id, held))

    def end_unheld(self) -> None:
        self._run(cancelling.end_unheld(self._connection, self.worker_id, []))

    def put_off(self, claimed: Iterable[Claimed], grace_seconds: float) -> set[str]:
        calls = [(task.id, task.claim_seq) for task in claimed]
        return self._run(tasks.put_off(self._connection, calls, grace_seconds))

    def give_back(self, claimed: Iterable[Claimed]) -> int:
        return self._run(tasks.give_back(self._connection, [(task.id, task.claim_seq) for task in claimed]))

    def unclaim(self, claimed: Sequence[Claimed]) -> None:
        self._run(workers.unclaim(self._connection, claimed))

    def expire(self, result: str = ERR) -> int:
        return len(self._run(tasks.expire(self._connection, self.worker_id, result)))

    def refresh(self) -> bool:
        return self._run(tasks.refresh(self._connection))

    def next_due(self, *queues: str, rates: Sequence[str] = ()) -> float | None:
        return self._run(tasks.next_due(self._connection, queues or ("default",), rates))

    def register(self, *queues: str, waiting: bool, definitions: Sequence[Definition] = ()) -> None:
        """Say who we are, and whether we sleep until we are notified."""
        registration = Registration(
            worker_id=self.worker_id,
            hostname="host",
            pid=1,
            processes=1,
            queues=list(queues or ("default",)),
            lease_seconds=LEASE_SECONDS,
        )
        self._run(workers.register(self._connection, registration, definitions))
        self.wait(waiting)

    def beat(self, running: Iterable[Claimed] = ()) -> Beat:
        ids = [task.id for task in running]
        return self._run(workers.beat(self._connection, self.worker_id, "idle", LEASE_SECONDS, ids))

    def reap(self, rules: Rules, settler: Settler) -> int:
        """Clean up after others; how many tasks were rescued."""
        return self._run(reap(self._connection, settler, rules))

    def requeue(self, which: Failed = ANY_FAILED) -> int:
        """One batch of failed tasks, as an operator does it."""
        return self._run(operations.requeue(self._connection, which))

    def cancel(self, *ids: str) -> list[Cancellation]:
        """As an operator does it."""
        return self._run(cancelling.cancel(self._connection, [UUID(each) for each in ids], actor="ann"))

    def cancel_all(self, wanted: Filter) -> int:
        """Everything that fits."""

        async def cancel() -> int:
            return sum(
                [count async for count in cancelling.cancel_all(self._connection, wanted, actor="ann")]
            )

        return self._run(cancel())

    def suspend(self, queue_name: str) -> bool:
        return self._run(operations.suspend(self._connection, queue_name, "ann"))

    def resume(self, queue_name: str) -> bool:
        return self._run(operations.resume(self._connection, queue_name, "ann"))

    def wait(self, waiting: bool, state: str = "idle") -> None:
        self._run(workers.wait(self._connection, self.worker_id, waiting, waiting, state))

    def snapshot(self, snapshot: Snapshot) -> None:
        self._run(states.snapshot(self._connection, snapshot))

    def pulse(self, *pulses: Pulse) -> None:
        self._run(states.pulse(self._connection, self.worker_id, pulses))

    def prune(self, **retention: int | None) -> bool:
        """Forget one batch of what is old; whether there may be more."""
        return self._run(states.prune(self._connection, RetentionConfig(**retention)))
