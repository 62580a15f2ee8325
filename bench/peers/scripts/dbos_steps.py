"""Workflows of no-op steps on DBOS: `dbos_steps.py WORKFLOWS STEPS` prints the steps per second, eight workflows at once."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig

url = os.environ["BENCH_DBOS_URL"]
config: DBOSConfig = {
    "name": "bench",
    "system_database_url": url.replace("postgresql://", "postgresql+psycopg://"),
    "log_level": "ERROR",
    "run_admin_server": False,
}
DBOS(config=config)


@DBOS.step()
def nothing(n: int) -> int:
    return n


@DBOS.workflow()
def workflow(count: int) -> int:
    return sum(nothing(n) for n in range(count))


def main() -> None:
    workflows, steps = int(sys.argv[1]), int(sys.argv[2])
    DBOS.launch()
    workflow(steps)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(workflow, [steps] * 8))
        began = time.perf_counter()
        list(pool.map(workflow, [steps] * workflows))
        seconds = time.perf_counter() - began
    print(workflows * steps / seconds, flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
