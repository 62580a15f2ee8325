"""Measure how fast horsies is here, each figure beside its limit or its peers in the same run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
from rich.console import Console

from bench import (
    baseline,
    beside,
    children,
    dashboard,
    growth,
    measures,
    operations,
    page,
    plots,
    schedules,
    workflows,
)
from bench import report as reports
from bench.app import app as main_app
from bench.figures import Figure, merged
from bench.harness import Bench, bench_database
from bench.peers.catalogue import PEERS
from bench.peers.works import Measured, peers
from bench.report import Report, Row
from bench.scale import EVERYTHING, GROUPS, QUICK, Scale
from bench.variants import capped, looping, narrow
from horsies.config import PostgresConfig
from horsies.db.migrations import migrate
from tests.support.servers import ServerUnavailable

RESULTS = Path(__file__).parent / "results"
Measure = Callable[[Bench, Scale], Iterator[Figure]]

MEASURES: dict[str, Measure] = {
    "drains": lambda bench, scale: measures.drains(bench, scale.drained),
    "sends": lambda bench, scale: measures.sends(bench, scale.sent),
    "latencies": lambda bench, scale: measures.latencies(bench, scale.latencies),
    "producers": lambda bench, scale: measures.producers(bench, scale.producer_seconds),
    "children": lambda bench, scale: children.children(bench, scale.children),
    "caps": lambda bench, scale: children.caps(bench, scale.capped),
    "schedules": lambda bench, scale: schedules.schedules(bench, scale.schedule_seconds),
    "workflows": lambda bench, scale: workflows.workflows(bench, scale.nodes),
    "async": lambda bench, scale: growth.asynchronous(bench, scale.drained),
    "backlog": lambda bench, scale: growth.backlog(bench, scale.depths, scale.drained),
    "history": lambda bench, scale: growth.history(bench, scale.kept, scale.drained),
    "queues": lambda bench, scale: growth.queues(bench, scale.queues, scale.drained),
    "workers": lambda bench, scale: growth.workers(bench, scale.workers, scale.drained),
    "snapshot": lambda bench, scale: growth.snapshot(bench, scale.snapshot_seconds, scale.drained),
    "mixed": lambda bench, scale: growth.mixed(bench, scale.mixed),
    "events": lambda bench, scale: operations.events(bench, scale.drained),
    "operations": lambda bench, scale: operations.operations(bench, scale.requeued, scale.deleted),
    "idling": lambda bench, scale: growth.idling(bench, scale.idle_workers, scale.idle_seconds),
    "dashboard": lambda bench, scale: dashboard.dashboard(bench, scale.kept, scale.idle_seconds),
}
# Long by themselves, and steady: once is enough.
ONCE = {"snapshot", "idling", "mixed", "schedules", "operations", "dashboard"}


def main() -> None:
    options = _options()
    console = Console(width=150 if not sys.stdout.isatty() else None)
    for path, act in (
        (options.plots, plots.write),
        (options.write_docs, page.write),
        (options.write_baseline, baseline.write),
    ):
        if path is not None:
            for written in act(reports.load(path)):
                console.print(f"wrote {written}", highlight=False)
            return
    try:
        report = _run(options, console)
    except ServerUnavailable as error:
        sys.exit(f"error: {error}")
    path = options.json or RESULTS / f"{report.at.replace(':', '')}.json"
    reports.save(report, path)
    console.print(reports.figures_table(report.figures))
    if report.peers:
        console.print(reports.peers_table(report.peers))
    if options.quick:
        console.print(baseline.table(report))
    if options.beside is not None:
        console.print(beside.table(report, reports.load(options.beside)))
    console.print(f"kept in {path}", highlight=False)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="what a change can be judged by, in two minutes")
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
        ("write-docs", "fill docs/performance.md with what a file holds"),
        ("write-baseline", "make a file's ratios those that later runs are compared with"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=what)
    return parser.parse_args()


def _run(options: argparse.Namespace, console: Console) -> Report:
    scale = QUICK if options.quick else EVERYTHING
    groups = tuple(options.only or (("peers",) if options.peer else scale.groups))
    repeat = options.repeat or scale.repeat
    began, load = time.monotonic(), list(os.getloadavg())

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {what}", style="dim", highlight=False)

    with bench_database(options.server) as bench:
        os.environ["HORSIES_DATABASE_URL"] = bench.url
        asyncio.run(migrate(PostgresConfig(database_url=bench.url)))
        facts, settings = reports.machine(bench), reports.settings(bench)
        console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
        figures: list[Figure] = []
        measured: list[Measured] = []
        try:
            for group in groups:
                if group != "peers":
                    figures += _figures(bench, group, scale, repeat, say)
                    continue
                for _ in range(repeat):
                    for value in peers(bench, scale.peers, options.peer, say):
                        measured.append(value)
        except KeyboardInterrupt:
            say("stopped; what was measured until now is kept")
        asyncio.run(_hang_up())
    return Report(
        at=reports.now(),
        scale="quick" if options.quick else "everything",
        seconds=time.monotonic() - began,
        machine=facts,
        settings=settings,
        server="given" if "://" in options.server else options.server,  # a URL may hold a password
        load=load,
        figures=figures,
        peers=gathered(measured),
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
    for app in (main_app, looping, capped, narrow):
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
