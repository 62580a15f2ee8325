"""A producer of the drills: `python -m tests.faults.producer NAME COUNT SECONDS SEED`.

It sends so many tasks, spread over so many seconds, repeats what failed until it is acknowledged, and puts all of that
on record.
"""

from __future__ import annotations

import asyncio
import sys
import time
from random import Random

from horsies import is_err
from tests.faults.app import TASK_OF, app, folder
from tests.faults.testimony import PRODUCERS, Witness
from tests.faults.workload import MIX

PATIENCE_SECONDS = 90.0
NUMBERS = 10_000_000  # each producer has as many of its own


def main(name: int, count: int, seconds: float, seed: int) -> None:
    witness, random = Witness(folder, PRODUCERS), Random(f"{seed}/{name}")
    began = time.monotonic()
    for turn in range(count):
        time.sleep(max(0.0, began + seconds * turn / count - time.monotonic()))
        send(witness, random, name * NUMBERS + turn + 1)
    asyncio.run(app.get_broker().close_async())


def send(witness: Witness, random: Random, number: int) -> None:
    """Send one task and repeat that until it is acknowledged."""
    task = TASK_OF[random.choice(MIX)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    witness.say("send", number=number, task=task.name)
    result = task.send(number)
    while is_err(result):
        error = result.err_value
        witness.say("failed", number=number, code=str(error.code))
        if not error.retryable or time.monotonic() > deadline:
            sys.exit(f"task {number} cannot be sent: {error.code} {error.message}")
        time.sleep(random.uniform(0.01, 0.1))
        result = task.retry_send(error)
    witness.say("acknowledged", number=number, id=result.ok_value.task_id)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
