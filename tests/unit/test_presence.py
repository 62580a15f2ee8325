"""A worker declares others dead only if one server has answered it for a whole lease, without a gap."""

from __future__ import annotations

from horsies.worker.heartbeat import Presence


def answered(presence: Presence, *times: float) -> float:
    """Return for how long there was no gap after answers at these times; a gap is longer than two seconds."""
    return [presence.answered(at, 2.0) for at in times][-1]


def test_the_time_counts_from_the_first_answer() -> None:
    assert answered(Presence(), 10.0, 11.0, 12.5, 14.0) == 4.0


def test_a_gap_begins_it_anew() -> None:
    assert answered(Presence(), 10.0, 11.0, 13.5, 14.0) == 0.5


def test_another_server_begins_it_anew_however_soon_it_has_taken_over() -> None:
    presence = Presence()
    presence.connected("old")
    answered(presence, 10.0, 11.0)
    presence.connected("new")

    assert answered(presence, 11.5) == 0.0
    assert answered(presence, 12.5) == 1.0


def test_another_connection_to_the_same_server_does_not() -> None:
    presence = Presence()
    presence.connected("same")
    answered(presence, 10.0, 11.0)
    presence.connected("same")

    assert answered(presence, 12.0) == 2.0
