"""Measure how fast horsies is here, each figure beside its limit or its peers in the same run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import psycopg
from rich.console import Console

from bench import (
    baseline,
    beside,
    children,
    dashboard,
    growth,
    keys,
    measures,
    operations,
    page,
    plots,
    schedules,
    senders,
    steps,
    workflows,
)
from bench import report as reports
from bench.app import app as main_app
from bench.figures import Figure, merged
from bench.harness import Bench, bench_database
from bench.idle import wait_until_idle
from bench.keyed_app import keyed
from bench.peers.catalogue import PEERS
from bench.peers.mix import mix
from bench.peers.works import Measured, install, peers
from bench.report import Report, Row
from bench.scale import EVERYTHING, GROUPS, QUICK, Scale
from bench.standing import standings
from bench.variants import capped, looping, narrow, stepping
from horsies.config import PostgresConfig
from horsies.db.migrations import migrate
from tests.support.servers import ServerUnavailable

RESULTS = Path(__file__).parent / "results"
Measure = Callable[[Bench, Scale], Iterator[Figure]]

MEASURES: dict[str, Measure] = {
    "drains": lambda bench, scale: measures.drains(bench, scale.drained),
    "sends": lambda bench, scale: chain(
        measures.sends(bench, scale.sent), senders.senders(bench, scale.producer_seconds)
    ),
    "latencies": lambda bench, scale: measures.latencies(bench, scale.latencies),
    "producers": lambda bench, scale: measures.producers(bench, scale.producer_seconds),
    "children": lambda bench, scale: children.children(bench, scale.children),
    "caps": lambda bench, scale: children.caps(bench, scale.capped),
    "schedules": lambda bench, scale: schedules.schedules(bench, scale.schedule_seconds),
    "workflows": lambda bench, scale: workflows.workflows(bench, scale.nodes),
    "steps": lambda bench, scale: steps.steps(bench, scale.stepped, parked=10_000, woken=1_000),
    "async": lambda bench, scale: growth.asynchronous(bench, scale.drained),
    "backlog": lambda bench, scale: growth.backlog(bench, scale.depths, scale.drained),
    "history": lambda bench, scale: growth.history(bench, scale.kept, scale.drained),
    "queues": lambda bench, scale: growth.queues(bench, scale.queues, scale.drained),
    "workers": lambda bench, scale: growth.workers(bench, scale.workers, scale.drained),
    "snapshot": lambda bench, scale: growth.snapshot(bench, scale.snapshot_seconds, scale.drained),
    "mixed": lambda bench, scale: growth.mixed(bench, scale.mixed),
    "events": lambda bench, scale: operations.events(bench, scale.drained),
    "operations": lambda bench, scale: operations.operations(bench, scale.requeued, scale.deleted),
    "keys": lambda bench, scale: keys.keys(bench, scale.drained, scale.keys, scale.latencies),
    "idling": lambda bench, scale: growth.idling(bench, scale.idle_workers, scale.idle_seconds),
    "dashboard": lambda bench, scale: dashboard.dashboard(bench, scale.kept, scale.idle_seconds),
}
# Measured of other task queues, too.
PEER_GROUPS = {"peers", "mix"}
# Long by themselves, and steady: once is enough.
ONCE = {"snapshot", "keys", "idling", "mixed", "schedules", "operations", "dashboard"}


def main() -> None:
    options = _options()
    console = Console(width=150 if not sys.stdout.isatty() else None)
    if written := _written(options):
        for path in written:
            console.print(f"wrote {path}", highlight=False)
        return
    try:
        report = _run(options, console)
    except ServerUnavailable as error:
        sys.exit(f"error: {error}")
    path = options.json or RESULTS / f"{report.at.replace(':', '')}.json"
    reports.save(report, path)
    console.print(reports.figures_table(report.figures))
    for table in reports.peers_tables(report.peers):
        console.print(table)
    if options.quick:
        console.print(baseline.table(report))
    if options.beside is not None:
        console.print(beside.table(report, reports.load(options.beside)))
    console.print(f"kept in {path}", highlight=False)


def _written(options: argparse.Namespace) -> list[Path]:
    """Write what the options ask for from earlier runs. If they ask for nothing, there is a run to make."""
    if options.plots is not None:
        return plots.write(reports.load(options.plots))
    if options.write_docs is not None:
        return page.write([reports.load(path) for path in options.write_docs])
    if options.write_baseline is not None:
        return baseline.write(reports.load(options.write_baseline))
    return []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="what a change can be judged by, in three minutes"
    )
    parser.add_argument("--only", choices=GROUPS, action="append", help="this group, and others named so")
    names = [peer.short_name for peer in PEERS]
    parser.add_argument("--peer", choices=sorted(set(names)), help="of the peers, this one")
    parser.add_argument("--repeat", type=int, help="how often each group is measured")
    parser.add_argument(
        "--server",
        default="embedded",
        help="embedded, system (Debian's as packaged), a major version that `make servers` fetched, or a URL",
    )
    parser.add_argument("--beside", type=Path, metavar="FILE", help="print what a file holds beside this run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    for name, what in (
        ("plots", "draw what a file holds into docs/performance/"),
        ("write-baseline", "make a file's ratios those that later runs are compared with"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)
    what = "fill docs/performance.md and the README's tables with what files hold, one for each server"
    parser.add_argument("--write-docs", type=Path, nargs="+", metavar="FILE", help=what)
    return parser.parse_args()


def _run(options: argparse.Namespace, console: Console) -> Report:
    scale = QUICK if options.quick else EVERYTHING
    groups = tuple(options.only or (("peers",) if options.peer else scale.groups))
    repeat = options.repeat or scale.repeat
    began = time.monotonic()

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {what}", style="dim", highlight=False)

    if not PEER_GROUPS.isdisjoint(groups):
        install(options.peer, say)
    waited = wait_until_idle(scale.patience, say)
    load = list(os.getloadavg())
    with bench_database(options.server) as bench:
        os.environ["HORSIES_DATABASE_URL"] = bench.url
        asyncio.run(migrate(PostgresConfig(database_url=bench.url)))
        facts, settings = reports.machine(bench), reports.settings(bench)
        console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
        figures: list[Figure] = []
        measured: list[Measured] = []
        try:
            for group in groups:
                if group not in PEER_GROUPS:
                    figures += _figures(bench, group, scale, repeat, say)
                    continue
                measure = peers if group == "peers" else mix
                for _ in range(repeat):
                    for value in measure(bench, scale.peers, options.peer, say):
                        measured.append(value)
        except KeyboardInterrupt:
            say("stopped; what was measured until now is kept")
        asyncio.run(_hang_up())
    rows = gathered(measured)
    return Report(
        at=reports.now(),
        scale="quick" if options.quick else "everything",
        seconds=time.monotonic() - began,
        machine=facts,
        settings=settings,
        server="given" if "://" in options.server else options.server,  # a URL may hold a password
        load=load,
        waited=waited,
        figures=[*figures, *standings(rows)],
        peers=rows,
    )


def _figures(bench: Bench, group: str, scale: Scale, repeat: int, say: Callable[[str], None]) -> list[Figure]:
    """What fails is said and left out: an hour of other figures must not be lost with it."""
    runs: list[list[Figure]] = []
    for _ in range(1 if group in ONCE else repeat):
        say(f"measuring {group} …")
        try:
            runs.append([replace(figure, group=group) for figure in MEASURES[group](bench, scale)])
        except (TimeoutError, psycopg.Error, ValueError) as problem:  # ValueError: a send failed
            say(f"{group} could not be measured: {problem}")
    return merged(runs)


async def _hang_up() -> None:
    """The server is about to stop, and those who listen would complain."""
    for app in (main_app, looping, capped, narrow, keyed, stepping):
        await app.get_broker().close_async()


def gathered(measured: Iterable[Measured]) -> list[Row]:
    """The values of all runs, a row for each peer."""
    rows: dict[str, Row] = {}
    for value in measured:
        row = rows.setdefault(value.peer, reports.empty_row(value.peer))
        if value.value is None:
            rows[value.peer] = replace(row, problem=value.problem)
        else:
            row.works.setdefault(value.work, []).append(value.value)
    return list(rows.values())


if __name__ == "__main__":
    main()
