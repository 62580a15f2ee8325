"""RQ: a pool of workers that do not fork for each job."""

# pyright: basic, reportMissingImports=false

import time
from contextlib import contextmanager

from protocol import URL, Producer, become, begun, burn, nap  # noqa: F401  RQ finds tasks by name
from redis import Redis
from rq import Queue


def noop(n: int) -> int:
    return begun(n)


rest = nap


def wait(job) -> object:
    """There is no call that waits for a job's end without polling."""
    while (result := job.latest_result(timeout=30)) is None:
        time.sleep(0.001)
    return result


@contextmanager
def producer():
    queue = Queue(connection=Redis.from_url(URL))
    noop_name = "rq_peer.noop"
    yield Producer(
        send=lambda n: queue.enqueue(noop_name, n),
        bulk=lambda numbers: queue.enqueue_many([Queue.prepare_data(noop_name, (n,)) for n in numbers]),
        wait=wait,
        work=lambda n, load, seconds: queue.enqueue(f"rq_peer.{load}", n, seconds),
    )


def worker(processes: int) -> None:
    become(
        "rq.cli",
        "worker-pool",
        "--url",
        URL,
        "-n",
        str(processes),
        "--worker-class",
        "rq.worker.SimpleWorker",
        "--logging-level",
        "ERROR",
    )
