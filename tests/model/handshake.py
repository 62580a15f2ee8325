"""The handshake between a worker and one of its serial children, small enough to look at every order of its steps.

The worker sends frames of calls, and then a token for each call. The child takes a token before it begins a call; the worker takes
tokens to take calls back. Each read or write of a pipe is one step. Each rule of the handshake is a switch, so that the
tests can show why it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# A message by which the child says that it retires. All other messages are tickets of calls that have ended.
RETIRING = 0
NO_CALL = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of the handshake."""

    child_needs_a_token: bool = True
    child_drops_older_calls: bool = True
    child_waits_for_the_call: bool = True
    worker_needs_a_token: bool = True
    worker_hears_all_before_it_judges: bool = True
    retiring_child_takes_no_token: bool = True


class State(NamedTuple):
    """The pipes, and what the worker and the child know. Calls are known by their tickets: 1, 2, …"""

    frames: tuple[tuple[int, ...], ...] = ()  # sent to the child and not read
    tokens: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()  # sent to the worker and not read
    # The worker
    sent: int = 0
    to_give: tuple[int, ...] = ()  # tokens of the frame that was written last
    held: tuple[int, ...] = ()  # calls that the worker counts as the child's
    returned: frozenset[int] = frozenset()  # calls that it has taken back
    crashed: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    is_child_gone: bool = False  # it has died or retires: no more calls are sent to it
    # The child
    is_alive: bool = True
    is_retiring: bool = False
    calls: tuple[int, ...] = ()  # received
    token: int = NO_CALL
    running: int = NO_CALL
    begun: tuple[int, ...] = ()
    done: frozenset[int] = frozenset()


class Outcome(NamedTuple):
    """The number of states; the problem found, if any, and the steps that lead to it."""

    states: int
    problem: str | None = None
    trace: tuple[str, ...] = ()


Step = tuple[str, State]


def explore(calls: int, rules: Rules) -> Outcome:
    """Visit every state that so many calls can lead to; return the first problem."""
    first = State()
    seen: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        following = list(_steps(state, calls, rules))
        problem = _problem(state) or (None if following else _problem_at_rest(state, calls))
        if problem is not None:
            return Outcome(len(seen), problem, _trace(seen, state))
        for name, after in (*following, *_deaths(state)):
            if after not in seen:
                seen[after] = (state, name)
                queue.append(after)
    return Outcome(len(seen))


def _trace(seen: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names: list[str] = []
    while (before := seen[state]) is not None:
        state, name = before
        names.append(name)
    return tuple(reversed(names))


def _problem(state: State) -> str | None:
    if len(set(state.begun)) < len(state.begun):
        return "a call was begun twice"
    if state.returned & set(state.begun):
        return "a call was begun and taken back"
    if len(state.crashed) > 1:
        return "two calls were blamed for one crash"
    if state.crashed & state.done:
        return "a call that had ended was blamed for a crash"
    return None


def _problem_at_rest(state: State, calls: int) -> str | None:
    """Return the problem of a state in which nothing more happens, unless the child dies."""
    settled = state.ended | state.returned | state.crashed
    return None if len(settled) == calls else "a call was left to nobody"


def _deaths(state: State) -> Iterator[Step]:
    if state.is_alive:
        yield "the child dies", state._replace(is_alive=False, calls=(), token=NO_CALL, running=NO_CALL)


def _steps(state: State, calls: int, rules: Rules) -> Iterator[Step]:
    yield from _worker_steps(state, calls, rules)
    if state.is_alive:
        yield from _child_steps(state, rules)


def _worker_steps(state: State, calls: int, rules: Rules) -> Iterator[Step]:
    if state.to_give:
        given = state._replace(tokens=state.tokens + state.to_give, to_give=())
        yield "the worker writes tokens", given
        return  # it does nothing between the calls and their tokens
    if state.messages:
        yield "the worker reads a message", _heard(state)
    elif not state.is_alive and not state.is_child_gone:
        yield "the worker notices the death", _judged(state)
    if not rules.worker_hears_all_before_it_judges and not state.is_alive and not state.is_child_gone:
        yield "the worker notices the death", _judged(state)
    if state.is_child_gone:
        if state.sent < calls:  # the rest goes to other children
            rest = frozenset(range(state.sent + 1, calls + 1))
            yield "the worker sends elsewhere", state._replace(sent=calls, returned=state.returned | rest)
        return
    for size in range(1, calls - state.sent + 1):
        frame = tuple(range(state.sent + 1, state.sent + size + 1))
        yield (
            f"the worker sends {size}",
            state._replace(
                frames=(*state.frames, frame), to_give=frame, sent=frame[-1], held=state.held + frame
            ),
        )
    if rules.worker_needs_a_token:
        if state.tokens:
            yield "the worker takes a token", _taken_back(state, state.tokens[0])
    elif len(state.held) > 1:  # it trusts its own view: the child runs the first call
        yield "the worker takes a call back", _taken_back(state, state.held[-1])


def _taken_back(state: State, ticket: int) -> State:
    return state._replace(
        tokens=tuple(each for each in state.tokens if each != ticket),
        held=tuple(each for each in state.held if each != ticket),
        returned=state.returned | {ticket},
    )


def _heard(state: State) -> State:
    message, *rest = state.messages
    heard = state._replace(messages=tuple(rest))
    if message != RETIRING:
        left = tuple(each for each in state.held if each != message)
        return heard._replace(held=left, ended=state.ended | {message})
    # The child begins nothing more: all of its calls are the worker's again, whatever has become of their tokens.
    return heard._replace(tokens=(), held=(), returned=state.returned | set(state.held), is_child_gone=True)


def _judged(state: State) -> State:
    """Take back the calls whose tokens are left; the others were begun by the child that has died."""
    left = set(state.tokens)
    return state._replace(
        tokens=(),
        frames=(),
        messages=(),
        held=(),
        returned=state.returned | left,
        crashed=frozenset(set(state.held) - left),
        is_child_gone=True,
    )


def _child_steps(state: State, rules: Rules) -> Iterator[Step]:
    if state.frames and not state.running:
        frame, *rest = state.frames
        yield "the child reads a frame", state._replace(frames=tuple(rest), calls=state.calls + frame)
    if state.running:
        ended = state._replace(
            running=NO_CALL, messages=(*state.messages, state.running), done=state.done | {state.running}
        )
        yield "the call ends", ended
        yield (
            "the call ends and the child retires",
            ended._replace(is_retiring=True, messages=(*ended.messages, RETIRING)),
        )
        return
    if state.is_retiring and rules.retiring_child_takes_no_token:
        return
    if not rules.child_needs_a_token:
        if state.calls:
            yield "the child begins", _begun(state, state.calls[0], rules)
    elif state.token:
        if state.token in state.calls or not rules.child_waits_for_the_call:
            yield "the child begins", _begun(state, state.token, rules)
    elif state.tokens:
        yield "the child takes a token", state._replace(token=state.tokens[0], tokens=state.tokens[1:])


def _begun(state: State, ticket: int, rules: Rules) -> State:
    """Begin the call of the token. Calls with lower tickets were taken back and are dropped."""
    if ticket not in state.calls:
        return state._replace(token=NO_CALL)  # there is nothing to begin
    if not rules.child_drops_older_calls:
        ticket = state.calls[0]
    return state._replace(
        token=NO_CALL,
        running=ticket,
        calls=tuple(each for each in state.calls if each > ticket),
        begun=(*state.begun, ticket),
    )
