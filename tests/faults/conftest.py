"""How a drill is set up for a test, and the figures of all drills at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import randrange

import pytest

from tests.faults import drill as drills
from tests.faults.drill import Fault, Verdict
from tests.faults.report import summary
from tests.faults.scene import OwnServer, Plan

SCALE = int(os.environ.get("FAULTS_SCALE", "1"))
SEED = int(os.environ.get("FAULTS_SEED", "0"))


@pytest.fixture
def plan() -> Plan:
    return Plan(seed=SEED or randrange(1, 10**9), sends=800 * SCALE, seconds=3.0 * SCALE)


@pytest.fixture
def own_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnServer]:
    """A server of this test's own, with the settings that the test gives as a parameter."""
    server = OwnServer(tmp_path_factory.mktemp("server"), **getattr(request, "param", {}))
    yield server
    server.remove()


@pytest.fixture
def drill(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., Verdict]:
    """Runs a drill on a database of the test's own, or on its own server; fails when a promise was broken."""
    if "own_server" in request.fixturenames:
        url: str = request.getfixturevalue("own_server").url
    else:
        url = request.getfixturevalue("database_url")

    def run(plan: Plan, fault: Fault, times: int = 1) -> Verdict:
        verdict = drills.run(tmp_path, url, plan, fault, times * SCALE)
        record_property("figures", verdict.figures)
        print(verdict)
        shown = "\n".join(verdict.violations[:20])
        assert not verdict.violations, (
            f"seed {plan.seed}: {len(verdict.violations)} broken promises:\n{shown}"
        )
        return verdict

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    figures = [value for report in reports for name, value in report.user_properties if name == "figures"]
    if figures:
        terminalreporter.write_line(summary(figures))
