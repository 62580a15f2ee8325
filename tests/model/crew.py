"""Workers' hands that also send tasks, keep a lease, and rescue what others held."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from horsies import AppConfig, Horsies, PostgresConfig
from horsies.db.queries import tasks, workers
from horsies.db.queries.tasks import Claimed, ClaimRequest, Completed, NewTask
from horsies.db.queries.workers import Rules
from horsies.worker.reaper import reap
from horsies.worker.settle import Settler
from tests.model.ledger import Expiry, Row
from tests.pg.hands import OK, Hands


class Crewman(Hands):
    """One worker after another over the same session."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.execute("SET lock_timeout = '5s'")  # nothing here has a reason to wait for another session
        self._settler = Settler(Horsies(AppConfig(broker=PostgresConfig(database_url=url))))

    def sign_on(self) -> UUID:
        """Be a worker that was never there before."""
        self.worker_id = uuid4()
        self.register("a", "b", waiting=False)
        return self.worker_id

    def sign_off(self) -> None:
        self._run(workers.deregister(self._connection, self.worker_id))

    def send(self, row: Row, good_until: datetime) -> list[str]:
        """The id of the task, if it is new."""
        task = NewTask(
            id=row.id,
            task_name="task",
            queue_name=row.queue_name,
            priority=row.priority,
            kwargs=None,
            is_async=row.is_async,
            max_retries=3,
            eta=row.enqueued_at,
            good_until=None if row.expiry is Expiry.NEVER else good_until,
            task_options='{"idempotent":true}' if row.idempotent else "{}",
        )

        async def send() -> list[str]:
            cursor = await self._connection.execute(tasks.SQL["send"], {"rows": tasks.as_json([task])})
            return [row[0] for row in await cursor.fetchall()]

        return self._run(send())

    def end_and_claim(self, tickets: list[Claimed], request: ClaimRequest) -> tuple[int, list[Claimed]]:
        completed = [Completed(ticket.id, ticket.claim_seq, OK) for ticket in tickets]
        answer = self._run(tasks.settle_and_claim(self._connection, completed, request))
        return answer.settled, answer.claimed

    def rescue(self, quiet_seconds: float) -> int:
        """Bury and rescue, unless the server has been up for less than so many seconds."""
        return self._run(reap(self._connection, self._settler, Rules(quiet_seconds)))
