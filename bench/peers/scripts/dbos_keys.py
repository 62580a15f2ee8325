"""Workflows of a partitioned queue of DBOS, one at a time of each partition: `dbos_keys.py WORKFLOWS PARTITIONS SECONDS` prints how many
end in a second. They are enqueued first; after SECONDS, those count that have ended."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from dbos import DBOS, DBOSClient, DBOSConfig

url = os.environ["BENCH_DBOS_URL"]
system_database_url = url.replace("postgresql://", "postgresql+psycopg://")
config: DBOSConfig = {
    "name": "bench",
    "system_database_url": system_database_url,
    "log_level": "ERROR",
    "run_admin_server": False,
    "application_version": "1",
}
DBOS(config=config)


@DBOS.workflow()
def nothing(n: int) -> int:
    return n


def main() -> None:
    workflows, partitions, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    DBOS.launch()
    client = DBOSClient(system_database_url=system_database_url)

    def enqueue(n: int) -> None:
        client.enqueue(
            {
                "workflow_name": nothing.__qualname__,
                "queue_name": "keyed",
                "queue_partition_key": str(n % partitions),
            },
            n,
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enqueue, range(workflows)))
    count = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.perf_counter()
        DBOS.register_queue("keyed", partition_concurrency=1, polling_interval_sec=0.01)
        done = 0
        while done < workflows and time.perf_counter() - began < seconds:
            time.sleep(0.05)
            (done,) = connection.execute(count).fetchone() or (0,)
        print(done / (time.perf_counter() - began), flush=True)
    os._exit(0)  # what is still queued is not waited for


if __name__ == "__main__":
    main()
