"""What a machine may draw: tasks to send, claims to make, tickets to hold up."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from horsies.db.queries.tasks import NO_LIMIT
from tests.model.ledger import NOT_YET, Expiry, due_at

BOTH_QUEUES_AND_KINDS = [("a", False), ("b", True), ("a", True), ("b", False)]

Pick = tuple[int, int]
Limit = tuple[str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a claim asks for, without saying of whom."""

    lanes: list[tuple[tuple[str, bool], int]]
    rooms: tuple[
        tuple[int, int, int], ...
    ]  # for each pool its room, its pids, and how many of those are idle
    limit: int = 100
    batch: int = NO_LIMIT  # without limits there is another statement
    caps: tuple[Limit, ...] = ()


few = st.integers(0, 4)
someone = st.integers(0, 2)
some_row = st.integers(0, 20)
# Which ticket, and how far its number is off.
pick = st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 0, -1, 1]))
picks = st.lists(pick, min_size=1, max_size=4)
room = st.tuples(few, few, few).map(lambda room: (room[0], min(room[:2]), min(room)))
wishes = st.builds(
    Wish,
    lanes=st.lists(
        st.tuples(st.sampled_from(BOTH_QUEUES_AND_KINDS), st.integers(1, 4)),
        min_size=1,
        max_size=4,
        unique_by=lambda lane: lane[0],
    ),
    rooms=st.tuples(room, room),
    limit=st.integers(1, 8),
)
caps = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), few, st.booleans()), max_size=2, unique_by=lambda cap: cap[0]
).map(tuple)
facts = st.fixed_dictionaries(
    {
        "queue_name": st.sampled_from("ab"),
        "is_async": st.booleans(),
        "priority": st.sampled_from([1, 50, 100]),
        "enqueued_at": st.sampled_from([due_at(0), due_at(1), due_at(2), NOT_YET]),
        "expiry": st.sampled_from([Expiry.NEVER, Expiry.LATER]),
        "idempotent": st.booleans(),
    }
)

COMMON = {
    "queue_name": "a",
    "is_async": False,
    "priority": 50,
    "enqueued_at": due_at(0),
    "expiry": Expiry.LATER,
    "idempotent": True,
}
