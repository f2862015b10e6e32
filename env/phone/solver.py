"""The exact solver: least turns to success, V*, and the first fatal message of an episode.

V* is the value under full knowledge of the world: 1 while success is still possible in the turns left,
else 0. It never rises along an episode.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from env.phone.calls import Sent, State, place_call, submit_form
from env.phone.world import World
from pipeline.types import Event, StepVerdict


def _moves(world: World, state: State) -> Iterator[State]:
    """Yields the states that one useful message leads to; the tick stands still."""
    open_requests = [request for request in world.requests if request.request_id not in state.served]
    lines = [world.server_of(request) for request in open_requests]
    if state.form is None:
        # A form is only worth its turn as a union of one minimal set per line still to be called.
        unions = {frozenset().union(*chosen) for chosen in product(*(line.sets for line in lines))}
        for fields in sorted(unions, key=sorted):
            after, code = submit_form(world, state, fields)
            if code == "form":
                yield after
    sent = Sent(given=state.form or frozenset())
    for request, line in zip(open_requests, lines, strict=True):
        after, outcome = place_call(world, state, line.phone, request.request_id, sent)
        if outcome.status == "served":
            yield after


def fewest_turns(world: World, state: State) -> float:
    """Returns d*: the least messages to success by breadth-first search; infinite when none succeeds."""
    if len(state.served) == len(world.requests):
        return 0
    if state.ended:
        return math.inf
    start = replace(state, tick=0)
    depth = {start: 0}
    queue = deque([start])
    while queue:
        current = queue.popleft()
        for after in _moves(world, current):
            if after in depth:
                continue
            depth[after] = depth[current] + 1
            if len(after.served) == len(world.requests):
                return depth[after]
            queue.append(after)
    return math.inf


def optimal_value(world: World, state: State) -> float:
    """Returns V*(state) = 1[d* <= turns left]."""
    return float(fewest_turns(world, state) <= world.level.max_turns - state.tick)


def optimal_turns(world: World) -> float:
    """Returns d* of the start: messages of an agent that knows the world."""
    return fewest_turns(world, State())


def values_along(world: World, states: Sequence[State]) -> list[float]:
    """Returns V* of each state."""
    return [optimal_value(world, state) for state in states]


def first_fatal(world: World, states: Sequence[State]) -> int | None:
    """Returns the index of the first message after which V* is lower, or None."""
    values = values_along(world, states)
    return next((i for i in range(len(values) - 1) if values[i + 1] < values[i]), None)


_ALWAYS_WRONG = {
    "fabricated_auth": "a value that the form did not give",
    "form_already_submitted": "a second form",
    "invalid_number": "no such number",
    "malformed_json": "malformed call",
    "unknown_tool": "malformed call",
    "bad_args": "malformed call",
    "too_many": "more than one call",
}


def step_verdicts(
    world: World, states: Sequence[State], turn_events: Sequence[Sequence[Event]]
) -> tuple[StepVerdict, ...]:
    """Returns the word on each message.

    `wrong` if it was fatal (V* fell), made a value up, or was no valid call; `ok` if d* fell; else `unknown`.

    Args:
        world: of the task.
        states: one more than messages: before each, and after the last.
        turn_events: the events of each message.
    """
    turns = [fewest_turns(world, state) for state in states]
    values = [float(d <= world.level.max_turns - state.tick) for d, state in zip(turns, states, strict=True)]
    verdicts = []
    for index, events in enumerate(turn_events):
        codes = [event.code for event in events]
        fault = next((code for code in codes if code in _ALWAYS_WRONG), None)
        if values[index + 1] < values[index]:
            code, message = _fatal(codes, is_lost=turns[index + 1] == math.inf)
            verdicts.append(StepVerdict(index, "wrong", code, message))
        elif fault is not None:
            verdicts.append(StepVerdict(index, "wrong", fault, _ALWAYS_WRONG[fault]))
        elif turns[index + 1] < turns[index]:
            verdicts.append(StepVerdict(index, "ok", _main_code(codes)))
        else:
            verdicts.append(StepVerdict(index, "unknown", _main_code(codes)))
    return tuple(verdicts)


def _main_code(codes: Sequence[str]) -> str:
    """Returns the code that says how a message ended, past those that only add to it."""
    asides = {"probe", "over_collected", "unavailable", "max_turns"}
    return [code for code in codes if code not in asides][-1]


def _fatal(codes: Sequence[str], is_lost: bool) -> tuple[str, str]:
    """Returns the code and the reason of a message that made success impossible."""
    if not is_lost:
        return "max_turns", "too few turns are left"
    if "form" in codes:
        return "form", "the one form lacks a needed field"
    if "none" in codes:
        return "none", "stopped before the request was served"
    return _main_code(codes), "the needed line is locked"
