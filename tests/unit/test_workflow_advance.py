"""Whatever ends in whatever order: a workflow ends, runs no node too early or twice, and ends the same way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies.workflow.advance import (
    COMPLETED,
    ENQUEUED,
    FAILED,
    PENDING,
    READY,
    SKIPPED,
    Event,
    Flow,
    Kind,
    Node,
    NodeEnded,
    WorkflowEnd,
    WorkflowStarted,
    advance,
    can_start,
    decide_end,
)

FLOW = "flow"


@dataclass
class Drawn:
    """A node as a test draws it: its dependencies and how it joins them, and how its task will end."""

    deps: list[int]
    join: str = "all"
    min_success: int | None = None
    allow_failed: bool = False
    sources: list[int] = field(default_factory=list)
    fails: bool = False


@dataclass
class Run:
    """A workflow in memory, loaded and written as the database would be: only what a step needs to see."""

    drawn: list[Drawn]
    pauses: bool = False
    started: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flow = Flow(FLOW, "RUNNING", self.pauses, len(self.drawn))
        dependents: list[list[int]] = [[] for _ in self.drawn]
        for index, each in enumerate(self.drawn):
            for dep in each.deps:
                dependents[dep].append(index)
        self.nodes = [
            Node(
                FLOW, index, Kind.TASK, PENDING if each.deps else ENQUEUED, each.join, each.min_success,
                each.allow_failed, len(each.deps), 0, 0, 0 if each.join == "all" else len(each.sources),
                dependents[index], [] if each.join == "all" else each.sources,
            )
            for index, each in enumerate(self.drawn)
        ]  # fmt: skip
        self.started += [index for index, each in enumerate(self.drawn) if not each.deps]

    @property
    def running(self) -> list[int]:
        return [node.index for node in self.nodes if node.status == ENQUEUED]

    @property
    def statuses(self) -> list[str]:
        return [node.status for node in self.nodes]

    def end(self, *indexes: int) -> None:
        """The tasks of these nodes end, as it was drawn, in one batch."""
        self.take([NodeEnded(FLOW, i, FAILED if self.drawn[i].fails else COMPLETED) for i in indexes])

    def take(self, events: list[Event]) -> None:
        while events:
            loaded = {(FLOW, index): self.nodes[index] for index in self._wanted(events)}
            changes = advance({FLOW: self.flow}, loaded, events)
            for change in changes.nodes:
                if change.starts:
                    self._assert_may_start(self.nodes[change.task_index])
                    self.started.append(change.task_index)
            events = changes.events

    def _wanted(self, events: list[Event]) -> set[int]:
        wanted: set[int] = set()
        for event in events:
            if isinstance(event, WorkflowStarted):
                wanted |= {node.index for node in self.nodes if node.status == READY}
                continue
            level, deep = [event.task_index], event.status != COMPLETED
            wanted.update(level, self.nodes[event.task_index].dependents)
            while deep and level:
                level = [d for index in level for d in self.nodes[index].dependents]
                wanted.update(level)
        return wanted

    def _assert_may_start(self, node: Node) -> None:
        drawn = self.drawn[node.index]
        ended = [self.nodes[dep] for dep in drawn.deps if self.nodes[dep].has_ended]
        completed = [dep for dep in ended if dep.status == COMPLETED]
        if drawn.join == "all":
            assert len(ended) == len(drawn.deps)
            assert drawn.allow_failed or len(completed) == len(drawn.deps)
        else:
            assert len(completed) >= (drawn.min_success or 1)
            assert all(self.nodes[source].has_ended for source in drawn.sources)


@st.composite
def graphs(draw: st.DrawFn) -> list[Drawn]:
    size = draw(st.integers(1, 14))
    graph: list[Drawn] = []
    for index in range(size):
        deps = sorted(draw(st.sets(st.integers(0, index - 1), max_size=4))) if index else []
        join = draw(st.sampled_from(["all", "any", "quorum"])) if deps else "all"
        quorum = draw(st.integers(1, len(deps))) if join == "quorum" else 1 if join == "any" else None
        sources = sorted(draw(st.sets(st.sampled_from(deps)))) if deps else []
        graph.append(Drawn(deps, join, quorum, draw(st.booleans()), sources, draw(st.booleans())))
    return graph


def play(graph: list[Drawn], seed: int, *, pauses: bool = False) -> Run:
    """Let running tasks end in random batches until there are none; a workflow that pauses is resumed."""
    chance, run = random.Random(seed), Run(graph, pauses)
    for _ in range(10 * len(graph)):
        if run.flow.status == "PAUSED" and (not run.running or chance.random() < 0.3):
            run.take([WorkflowStarted(FLOW)])
            run.flow.pauses = chance.random() < 0.5
        if not run.running:
            break
        run.end(*chance.sample(run.running, chance.randint(1, len(run.running))))
    return run


@given(graphs(), st.integers(), st.integers(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_order_of_events_leads_to_the_same_end(
    graph: list[Drawn], one: int, other: int, pauses: bool
) -> None:
    first, second = play(graph, one), play(graph, other, pauses=pauses)

    for run in (first, second):
        assert all(node.has_ended for node in run.nodes)
        assert run.flow.open_tasks == 0
        assert len(run.started) == len(set(run.started))
    assert first.statuses == second.statuses
    assert sorted(first.started) == sorted(second.started)


@given(graphs(), st.integers())
@settings(max_examples=100, deadline=None)
def test_an_end_that_is_told_twice_changes_nothing(graph: list[Drawn], seed: int) -> None:
    run = play(graph, seed)
    before = (run.statuses, run.flow.open_tasks, list(run.started))

    run.end(*range(len(graph)))

    assert (run.statuses, run.flow.open_tasks, run.started) == before


def test_a_step_touches_only_what_waits_for_it() -> None:
    run = Run([Drawn([]), *(Drawn([index]) for index in range(999))])
    first = {(FLOW, 0): run.nodes[0], (FLOW, 1): run.nodes[1]}

    changes = advance({FLOW: run.flow}, first, [NodeEnded(FLOW, 0, COMPLETED)])

    assert [(change.task_index, change.starts) for change in changes.nodes] == [(0, False), (1, True)]


def test_a_failure_skips_all_that_needs_it_and_nothing_else() -> None:
    run = Run([Drawn([], fails=True), Drawn([0]), Drawn([1]), Drawn([0], allow_failed=True), Drawn([])])

    run.end(0)

    assert run.statuses == [FAILED, SKIPPED, SKIPPED, ENQUEUED, ENQUEUED]


def test_a_join_of_all_waits_for_the_last_even_after_a_failure() -> None:
    run = Run([Drawn([], fails=True), Drawn([]), Drawn([0, 1]), Drawn([2])])

    run.end(0)
    waiting = run.statuses[2:]
    run.end(1)

    assert waiting == [PENDING, PENDING]
    assert run.statuses[2:] == [SKIPPED, SKIPPED]


def test_any_runs_after_the_first_that_completes() -> None:
    run = Run([Drawn([], fails=True), Drawn([]), Drawn([]), Drawn([0, 1, 2], "any", 1)])

    run.end(0)
    after_a_failure = run.statuses[3]
    run.end(1)

    assert after_a_failure == PENDING
    assert run.statuses[3] == ENQUEUED


def test_any_is_skipped_when_none_has_completed() -> None:
    run = Run([Drawn([], fails=True), Drawn([], fails=True), Drawn([0, 1], "any", 1)])

    run.end(0, 1)

    assert run.statuses[2] == SKIPPED


def test_a_quorum_is_skipped_as_soon_as_it_cannot_be_met() -> None:
    run = Run([Drawn([], fails=True), Drawn([], fails=True), Drawn([]), Drawn([0, 1, 2], "quorum", 2)])

    run.end(0)
    may_be_met = run.statuses[3]
    run.end(1)

    assert may_be_met == PENDING
    assert run.statuses[3] == SKIPPED


def test_what_a_node_looks_at_must_have_ended_whatever_its_join() -> None:
    run = Run([Drawn([]), Drawn([]), Drawn([0, 1], "any", 1, sources=[1])])

    run.end(0)
    before = run.statuses[2]
    run.end(1)

    assert before == PENDING
    assert run.statuses[2] == ENQUEUED


def test_a_paused_workflow_starts_nothing_until_it_goes_on() -> None:
    run = Run([Drawn([], fails=True), Drawn([]), Drawn([1])], pauses=True)

    run.end(0, 1)
    paused = (run.flow.status, run.statuses[2])
    run.take([WorkflowStarted(FLOW)])

    assert paused == ("PAUSED", READY)
    assert (run.flow.status, run.statuses[2]) == ("RUNNING", ENQUEUED)


@pytest.mark.parametrize(("deps", "failed", "allow"), list(product(range(3), range(3), [False, True])))
def test_all_is_decided_when_everything_has_ended(deps: int, failed: int, allow: bool) -> None:
    node = Node(FLOW, 0, Kind.TASK, PENDING, "all", None, allow, deps, 0, failed, 0, [], [])

    assert can_start(node) is (None if deps else allow or not failed)


def test_without_a_policy_the_first_failed_node_is_to_blame() -> None:
    assert decide_end(None, set(), {4, 2}) == WorkflowEnd(False, 2)
    assert decide_end(None, set(), set()) == WorkflowEnd(True)


def test_a_policy_is_met_by_one_case_whatever_else_failed() -> None:
    assert decide_end([[0, 1], [2]], {2}, {0, 1}) == WorkflowEnd(True)


def test_a_policy_that_is_not_met_blames_a_required_node_if_one_failed() -> None:
    assert decide_end([[0, 1], [2]], {0}, {2, 7}) == WorkflowEnd(False, 2)
    assert decide_end([[0, 1]], {0}, {7}) == WorkflowEnd(False, None)
