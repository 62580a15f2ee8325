"""A producer of the drills: `python -m tests.faults.producer NAME COUNT SECONDS SEED`.

It sends so many tasks, spread over so many seconds, repeats what failed until it is acknowledged, and puts all of that
on record. Of a batch whose sending failed nobody knows what became, and the next one is sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from random import Random

from horsies import is_err
from tests.faults.app import TASK_OF, app, folder, setup
from tests.faults.testimony import PRODUCERS, Witness

PATIENCE_SECONDS = 90.0
NUMBERS = 10_000_000  # each producer has as many of its own


def main(name: int, count: int, seconds: float, seed: int) -> None:
    witness, random = Witness(folder, PRODUCERS), Random(f"{seed}/{name}")
    began = time.monotonic()
    for turn in range(0, count, setup.batch):
        time.sleep(max(0.0, began + seconds * turn / count - time.monotonic()))
        first = name * NUMBERS + turn + 1
        if setup.batch == 1:
            send(witness, random, first)
        else:
            send_many(witness, random, range(first, first + min(setup.batch, count - turn)))
    asyncio.run(app.get_broker().close_async())


def send(witness: Witness, random: Random, number: int) -> None:
    """Send one task and repeat that until it is acknowledged."""
    task = TASK_OF[random.choice(setup.mix)]
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


def send_many(witness: Witness, random: Random, numbers: range) -> None:
    """Send one batch."""
    task = TASK_OF[random.choice(setup.mix)]
    witness.say("send", number=numbers[0], count=len(numbers), task=task.name)
    result = task.send_many([(number,) for number in numbers])
    if is_err(result):
        time.sleep(random.uniform(0.2, 0.6))
        return
    witness.say("acknowledged", number=numbers[0], ids=[handle.task_id for handle in result.ok_value])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
