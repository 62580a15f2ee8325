"""The worker of `horsies dev`: as `horsies worker`, with the app's schedules if it has any."""

from __future__ import annotations

import sys

from horsies.check import check
from horsies.cli.options import load
from horsies.cli.report import raise_all, report
from horsies.config import WorkerConfig

# Whoever changes a file waits for what runs, though not for long.
DRAIN_SECONDS = 3


def main(locator: str, processes: int) -> int:
    try:
        app = load(locator, "INFO")
        schedules = app.config.schedule is not None and app.config.schedule.enabled
        raise_all(check(app, schedules=schedules))
        app.run_worker(
            WorkerConfig(
                app_locator=locator,
                processes=processes,
                with_scheduler=schedules,
                drain_seconds=DRAIN_SECONDS,
            )
        )
    except Exception as error:  # noqa: BLE001  whatever it is, a user is told about it
        report(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
