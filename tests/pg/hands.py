"""A worker's hands without the worker: rows are claimed and settled through the storage layer, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

from horsies import PostgresConfig, RetentionConfig, cancellation
from horsies.cancellation import Cancellation
from horsies.db.connection import connect_worker
from horsies.db.queries import operations, retention, tasks, workers
from horsies.db.queries.operations import Selection
from horsies.db.queries.tasks import (
    KEY_STEPS,
    BatchLane,
    Claimed,
    ClaimRequest,
    Completed,
    ConcurrencyCap,
    Failure,
    KeyLane,
    Lane,
    PoolRoom,
    SettledAndClaimed,
)
from horsies.db.queries.workers import (
    Definition,
    LeaseReply,
    Registration,
    Rules,
    Snapshot,
    TaskHeartbeat,
)
from horsies.worker.batches import as_calls
from horsies.worker.claim import NO_LIMIT, Owner
from horsies.worker.reaper import reap
from horsies.worker.settle import Settler
from horsies.workflow.settle import settle as settle_tasks

T = TypeVar("T")
Key = tuple[int, str, str]

START: Key = (0, "2000-01-01T00:00:00Z", str(UUID(int=0)))
LEASE_SECONDS = 60.0
ANY_FAILED = Selection()
OK = '{"ok":5}'
ERR = '{"err":{"error_code":"BROKEN","message":"it broke","data":null,"exception":null}}'


class Hands:
    """One session of a worker that never was."""

    def __init__(self, url: str) -> None:
        self.worker_id = uuid4()
        self.last_answer = SettledAndClaimed(0, [], 0)
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
        caps: Sequence[ConcurrencyCap] = (),
    ) -> list[Claimed]:
        """Take what is due, most urgent first; a row goes straight to a child while there are pids."""
        names = queues or ("default",)
        lanes = [
            Lane(0, name, is_async, rate_key, quota, *after)
            for name, quota in zip(names, quotas or [limit] * len(names), strict=True)
            for rate_key in ("", *rates)
        ]
        return self.settle_and_claim(
            [], lanes, [PoolRoom(0, limit, len(pids), list(pids))], rates=rates, caps=caps
        )[1]

    def claim_keys(
        self,
        *queues: str,
        room: int = 10,
        after: str = "",
        completed: Iterable[Claimed] = (),
        is_async: bool = False,
        unkeyed: bool = False,
        **request: Any,
    ) -> list[Claimed]:
        """End tasks that returned, and take the next task of each key for idle children; and others, if asked to."""
        names = queues or ("default",)
        lanes = [Lane(0, name, is_async, None, room, *START) for name in names]
        lanes += [Lane(0, name, is_async, "", room, *START) for name in names if unkeyed]
        self.last_answer = self.settle_and_claim(
            [Completed(task.id, task.claim_seq, OK, rate_key=task.rate_key) for task in completed],
            lanes,
            [PoolRoom(0, room, room, list(range(1, room + 1)))],
            key_lanes=[KeyLane(name, is_async, room, after) for name in names],
            **request,
        )
        return self.last_answer.claimed

    def run_next(self, *queues: str, limit: int = 100, pid: int = 4242) -> list[Claimed]:
        """Claim and start, all at once."""
        return self.claim(*queues, limit=limit, pids=[pid] * limit)

    def complete(self, claimed: Iterable[Claimed], result: str = OK) -> int:
        """End tasks that returned; how many were still ours."""
        return self.settle_and_claim([Completed(task.id, task.claim_seq, result) for task in claimed])[0]

    def settle_and_claim(
        self,
        completed: Sequence[Completed] = (),
        lanes: Sequence[Lane] = (),
        pools: Sequence[PoolRoom] = (),
        *,
        rates: Sequence[str] = (),
        caps: Sequence[ConcurrencyCap] = (),
        limit: int = NO_LIMIT,
        batch: int = NO_LIMIT,
        left_out: str = "",
        run_times: str = "",
        key_lanes: Sequence[KeyLane] = (),
        steps: int = KEY_STEPS,
    ) -> SettledAndClaimed:
        """End and claim, with everything that can be said about it."""
        request = ClaimRequest(
            lanes=list(lanes),
            pools=list(pools),
            caps=list(caps),
            rates=list(rates),
            limit=limit,
            batch=batch,
            worker_id=self.worker_id,
            hostname="host",
            process_name="hands",
            left_out=left_out,
            run_times=run_times,
            key_lanes=key_lanes,
            steps=steps,
        )
        return self._run(tasks.settle_and_claim(self._connection, completed, request))

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
        return self._run(tasks.fail(self._connection, failures, self.worker_id))

    def settle(self, claimed: Iterable[Claimed]) -> set[str]:
        """End tasks that returned, as a child of a dead worker does; which counted as such."""
        done = [Completed(task.id, task.claim_seq, OK, task.node) for task in claimed]

        async def settle() -> set[str]:
            async with self._connection.transaction():
                return (await settle_tasks(self._connection, done, [], self.worker_id)).completed

        return self._run(settle())

    def start(self, claimed: Iterable[Claimed], pid: int = 4242) -> set[str]:
        started = [task._replace(pid=pid) for task in claimed]
        return self._run(tasks.start(self._connection, started, self.worker_id))

    def release(self, keep: Iterable[Claimed] = ()) -> int:
        held = [(task.id, task.claim_seq) for task in keep]
        return self._run(tasks.release(self._connection, self.worker_id, held))

    def end_unheld(self) -> None:
        self._run(cancellation.end_unheld(self._connection, self.worker_id, []))

    def defer_unknown(self, claimed: Iterable[Claimed], grace_seconds: float) -> dict[str, bool]:
        return self._run(tasks.defer_unknown(self._connection, list(claimed), grace_seconds, self.worker_id))

    def give_back(self, claimed: Iterable[Claimed]) -> int:
        calls = [(task.id, task.claim_seq) for task in claimed]
        return self._run(tasks.give_back(self._connection, calls, self.worker_id))

    def unclaim(self, claimed: Sequence[Claimed]) -> None:
        self._run(workers.unclaim(self._connection, claimed))

    def expire(self, result: str = ERR) -> int:
        return len(self._run(tasks.expire(self._connection, self.worker_id, result)))

    def refresh(self) -> bool:
        return self._run(tasks.refresh(self._connection))

    def next_due(
        self, *queues: str, rates: Sequence[str] = (), batches: Mapping[str, float] | None = None
    ) -> float | None:
        asked = tasks.next_due(self._connection, queues or ("default",), rates, batches or {})
        return self._run(asked).seconds

    def claim_batches(self, *lanes: BatchLane, pids: Sequence[int] = (1,)) -> list[list[Claimed]]:
        """Take a batch for each of these children; the members of each."""
        owner = Owner(self.worker_id, "host", "process", 60.0)
        claimed = self._run(tasks.claim_batches(self._connection, lanes, pids, owner.columns))
        return [list(call.members) for call in as_calls(claimed)]

    def follow(self) -> None:
        """As a worker does before it sleeps."""
        self._run(tasks.follow(self._connection))

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

    def beat(self, running: Iterable[Claimed] = ()) -> LeaseReply:
        ids = [task.id for task in running]
        return self._run(workers.renew_lease(self._connection, self.worker_id, "idle", LEASE_SECONDS, ids))

    def reap(self, rules: Rules, settler: Settler) -> int:
        """Clean up after others; how many tasks were rescued."""
        return self._run(reap(self._connection, settler, rules))

    def sweep_keys(self) -> None:
        self._run(workers.sweep_keys(self._connection))

    def requeue(self, which: Selection = ANY_FAILED) -> int:
        """One batch of failed tasks, as an operator does it."""
        return self._run(operations.requeue(self._connection, which))

    def cancel(self, *ids: str) -> list[Cancellation]:
        """As an operator does it."""
        return self._run(cancellation.cancel(self._connection, [UUID(each) for each in ids], actor="ann"))

    def cancel_all(self, wanted: Selection) -> int:
        """Everything that fits."""

        async def cancel() -> int:
            return sum(
                [count async for count in cancellation.cancel_all(self._connection, wanted, actor="ann")]
            )

        return self._run(cancel())

    def suspend(self, queue_name: str) -> bool:
        return self._run(operations.suspend(self._connection, queue_name, "ann"))

    def resume(self, queue_name: str) -> bool:
        return self._run(operations.resume(self._connection, queue_name, "ann"))

    def wait(self, waiting: bool, state: str = "idle") -> None:
        self._run(workers.set_waiting(self._connection, self.worker_id, waiting, waiting, state))

    def snapshot(self, snapshot: Snapshot) -> None:
        self._run(workers.insert_snapshot(self._connection, snapshot))

    def send_task_heartbeats(self, *heartbeats: TaskHeartbeat) -> None:
        self._run(workers.insert_task_heartbeats(self._connection, self.worker_id, heartbeats))

    def delete_worker_records(self, **settings: int | None) -> bool:
        """Delete one batch of old snapshots and heartbeats; return True if there may be more."""
        return self._run(retention.delete_worker_records(self._connection, RetentionConfig(**settings)))
