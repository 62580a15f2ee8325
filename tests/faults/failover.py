"""Drills on replicated servers: the primary dies, is replaced on purpose, or is cut off and does not know.

With synchronous replication every promise must hold. With asynchronous replication, what the old primary had not sent is lost:
then the drills count it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults import drill
from tests.faults.drill import Fault, Verdict
from tests.faults.report import spread, table
from tests.faults.scene import Plan, Scene
from tests.support.failover import Cluster, missing_programs, servers, several_hosts
from tests.support.patroni import PatroniCluster, patroni, why_not
from tests.support.proxy import Proxy

SPLIT_SECONDS = 10.0
STALL_SECONDS = 20.0
# How long the log takes to asynchronous standbys, as between two data centres. On one machine it would take no time.
LAG_SECONDS = 0.03
# What holds even if a server that has lost the end of its log takes over.
WITHOUT_REPLICATION = frozenset({"tasks made up", "false crashes", "orphans"})
# A worker that is cut off together with the old primary renews its lease there: for the new one it is dead.
WITHOUT_CONTACT = WITHOUT_REPLICATION - {"false crashes"}


def kill_primary(cluster: Cluster, scene: Scene) -> int:
    """The primary's machine loses power. A standby is promoted after a while, and the old primary comes back as a standby."""
    cluster.wait_until_streaming()
    cluster.primary.kill()
    scene.pause(scene.random.uniform(0.5, 3.0))
    old = cluster.fail_over()
    healed = cluster.promoted_at
    scene.pause(scene.random.uniform(0.5, 1.5))
    old.rejoin(cluster.primary)
    return healed


def switch_over(cluster: Cluster, scene: Scene) -> int:
    """The primary is stopped in good order, and a standby takes its place."""
    cluster.wait_until_streaming()
    cluster.switch_over()
    return cluster.promoted_at


def stall(cluster: Cluster, scene: Scene) -> int:
    """No standby answers for a while, longer than any statement of a worker may take."""
    cluster.wait_until_streaming()
    with cluster.stalled():
        scene.pause(STALL_SECONDS)
    return time.monotonic_ns()


def kill_under_patroni(cluster: PatroniCluster, is_sync: bool, scene: Scene) -> int:
    """The primary's machine loses power. Patroni promotes a standby, and makes one of the old primary when it comes back."""
    cluster.wait_until_streaming(is_sync=is_sync)
    old, promoted_at = cluster.replace_primary()
    old.start()
    return promoted_at


class Sides:
    """Two sides of a network, each with clients of its own; the primary is on the first side, its standbys on the second."""

    def __init__(self, cluster: Cluster, links: ExitStack) -> None:
        self._cluster = cluster
        self._ways = [
            {node.name: links.enter_context(Proxy(node.url)) for node in cluster.nodes} for _ in range(2)
        ]
        self._replication = {node.name: links.enter_context(Proxy(node.url)) for node in cluster.nodes}
        for node in cluster.nodes:
            node.replicate_through(self._replication[node.name].url)
        for standby in cluster.standbys:
            standby.follow(cluster.primary)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of both sides' clients."""
        return tuple(several_hosts([proxy.url for proxy in side.values()]) for side in self._ways)

    @contextmanager
    def cut(self) -> Generator[None]:
        """Nothing passes between the sides within the block, and nobody is told."""
        lonely = self._cluster.primary
        here, there = self._ways
        held = [here[node.name] for node in self._cluster.standbys]
        held += [there[lonely.name], self._replication[lonely.name]]
        for proxy in held:
            proxy.hold()
        try:
            yield
        finally:
            for proxy in held:
                proxy.release()


def split(cluster: Cluster, sides: Sides, scene: Scene) -> int:
    """The primary is cut off with half of the clients, and takes their writes, while a standby is promoted for the others."""
    cluster.wait_until_streaming()
    with sides.cut():
        scene.pause(1.0)
        old = cluster.fail_over()
        healed = cluster.promoted_at
        scene.pause(SPLIT_SECONDS)
        assert old.execute("SELECT pg_is_in_recovery()") == [(False,)]
        old.kill()  # whoever brings the network back stops it first
    old.rejoin(cluster.primary)
    return healed


def run(
    folder: Path,
    cluster: Cluster | PatroniCluster,
    seed: int,
    fault: Fault,
    times: int = 1,
    *,
    is_sync: bool,
    **settings: Any,
) -> Verdict:
    """Carry out a drill on a cluster; an asynchronous one may lose what its old primary had not sent."""
    promises = None if is_sync else WITHOUT_REPLICATION
    urls = (several_hosts([node.url for node in cluster.nodes]),)
    chosen: dict[str, Any] = {"urls": urls, "promises": promises, "crashes": False, **settings}
    return drill.run(folder, cluster.url, Plan(seed=seed, **chosen), fault, times)


def failovers(folder: Path, seed: int, count: int, *, is_sync: bool, **settings: Any) -> Verdict:
    """Kill the primary so many times under load. What it sends to asynchronous standbys takes `LAG_SECONDS`."""
    with servers(is_sync=is_sync) as cluster, ExitStack() as links:
        if not is_sync:
            for node in cluster.nodes:
                slow = links.enter_context(Proxy(node.url))
                slow.delay = LAG_SECONDS
                node.replicate_through(slow.url)
            for standby in cluster.standbys:
                standby.follow(cluster.primary)
        load = {"sends": 1_200 * count, "seconds": 12.0 * count, **settings}
        return run(folder, cluster, seed, partial(kill_primary, cluster), count, is_sync=is_sync, **load)


def switchovers(folder: Path, seed: int, count: int, *, is_sync: bool, **settings: Any) -> Verdict:
    """Change the primary so many times under load. Nothing may be lost, whatever the replication."""
    with servers(is_sync=is_sync) as cluster:
        load = {"sends": 1_000 * count, "seconds": 8.0 * count, "promises": None, **settings}
        return run(folder, cluster, seed, partial(switch_over, cluster), count, is_sync=is_sync, **load)


def stalls(folder: Path, seed: int, count: int, *, is_sync: bool, **settings: Any) -> Verdict:
    """Stop the standbys so many times under load, so that commits do not return."""
    with servers(is_sync=is_sync) as cluster:
        load = {"sends": 2_500 * count, "seconds": 40.0 * count, "promises": None, **settings}
        return run(folder, cluster, seed, partial(stall, cluster), count, is_sync=is_sync, **load)


def splits(folder: Path, seed: int, count: int, *, is_sync: bool, **settings: Any) -> Verdict:
    """Cut the primary off from its standbys so many times under load, with half of the clients on its side."""
    with servers(is_sync=is_sync) as cluster, ExitStack() as links:
        sides = Sides(cluster, links)
        load = {"sends": 3_000 * count, "seconds": 30.0 * count, "urls": sides.urls, **settings}
        if not is_sync:
            load["promises"] = WITHOUT_CONTACT
        return run(folder, cluster, seed, partial(split, cluster, sides), count, is_sync=is_sync, **load)


def patroni_failovers(folder: Path, seed: int, count: int, *, is_sync: bool, **settings: Any) -> Verdict:
    """Kill the primary with its Patroni so many times under load; Patroni notices and promotes a standby."""
    with patroni(is_sync=is_sync) as cluster:
        load = {"sends": 2_000 * count, "seconds": 40.0 * count, **settings}
        fault = partial(kill_under_patroni, cluster, is_sync)
        return run(folder, cluster, seed, fault, count, is_sync=is_sync, **load)


DRILLS = {
    "failover": failovers,
    "switchover": switchovers,
    "split": splits,
    "stall": stalls,
    "patroni": patroni_failovers,
}


def report(name: str, count: int, seed: int, *, is_sync: bool) -> int:
    """Carry out a drill and print what it has shown; return 1 if a promise was broken."""
    if (problem := why_not() if name == "patroni" else missing_programs()) is not None:
        print(problem)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="horsies-faults-"))
    folder.chmod(0o755)
    verdict = DRILLS[name](folder, seed, count, is_sync=is_sync)
    for violation in verdict.violations:
        print("BROKEN:", violation)
    print(table(_lines(verdict, f"{name}, {'synchronous' if is_sync else 'asynchronous'} replication")))
    if verdict.violations:
        print(f"what was said and logged is in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if verdict.violations else 0


def _lines(verdict: Verdict, name: str) -> list[tuple[str, str]]:
    kept = [promise for promise, count in verdict.broken.items() if not count]
    return [
        (name, f"{verdict.strikes} times, seed {verdict.seed}"),
        ("acknowledged sends", f"{verdict.acknowledged:,}"),
        ("from the promotion to the next run", spread(verdict.recoveries)),
        ("finished tasks repeated", str(verdict.repeated)),
        *((promise, str(count)) for promise, count in verdict.broken.items() if count),
        ("none of these", ", ".join(kept)),
        ("broken promises", str(len(verdict.violations))),
    ]
