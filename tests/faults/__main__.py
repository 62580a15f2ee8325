"""Measure how faults are borne, on a PostgreSQL server of their own. Exits with 1 when a promise was broken.

python -m tests.faults                   how fast this machine recovers from what
python -m tests.faults --kills 100       what so many kills of a worker cost
python -m tests.faults --sends 1000000   so many sends under fault after fault
python -m tests.faults --keys 100000    so many tasks with keys, by four workers, under fault after fault
python -m tests.faults --soak 60         a load under fault after fault, for so many minutes

python -m tests.faults --failover 10     kill the primary of three replicated servers so many times; --sync: with synchronous replication
python -m tests.faults --switchover 10   replace the primary on purpose
python -m tests.faults --split 3         cut the primary off for ten seconds, so that two servers take writes
python -m tests.faults --stall 3         stop all standbys for twenty seconds; with --sync no commit returns meanwhile
python -m tests.faults --patroni 3       kill the primary and its Patroni, which replaces it

With --seed 7 the same faults strike at the same moments again, as far as processes can be told what to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from tests.faults import failover, figures
from tests.faults.figures import Lines
from tests.faults.place import Place, place
from tests.faults.report import summary, table


def measure(where: Place, given: argparse.Namespace) -> Lines:
    """Whatever was asked for; without a wish, everything that takes no more than a few minutes."""
    if given.soak is not None:
        return figures.soak(where, given.soak)
    if given.sends is not None:
        return figures.volume(where, given.sends)
    if given.keys is not None:
        return figures.keys(where, given.keys)
    if given.kills is not None:
        return figures.kills(where, given.kills)
    return [
        *figures.deaths(where),
        *figures.crashes(where),
        *figures.kills(where, 50),
        *figures.lost_replies(where, 1_000),
        *figures.volume(where, 20_000),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    wish = parser.add_mutually_exclusive_group()
    wish.add_argument("--kills", type=int, metavar="COUNT")
    wish.add_argument("--sends", type=int, metavar="COUNT")
    wish.add_argument("--keys", type=int, metavar="COUNT")
    wish.add_argument("--soak", type=float, metavar="MINUTES")
    for name in failover.DRILLS:
        wish.add_argument(f"--{name}", type=int, metavar="COUNT")
    parser.add_argument(
        "--sync", action="store_true", help="synchronous replication, in the drills on three servers"
    )
    parser.add_argument("--seed", type=int, default=Random().randrange(1, 10**9))
    given = parser.parse_args()
    began = time.monotonic()
    for name in failover.DRILLS:
        if (count := getattr(given, name)) is not None:
            return failover.report(name, count, given.seed, is_sync=given.sync)
    with place(given.seed) as where:
        lines = [*measure(where, given), *figures.promises(where)]
        print(
            f"\nseed {given.seed}\n{table(lines)}\n{summary(verdict.figures for verdict in where.verdicts)}"
        )
    print(f"{where.broken} broken promises, after {time.monotonic() - began:.0f} s")
    return 1 if where.broken else 0


if __name__ == "__main__":
    sys.exit(main())
