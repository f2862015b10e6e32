"""The exact solver: least turns to success, V*, best messages and verdicts, with full knowledge of the world.

V* is 1 while success is still possible in the turns left, else 0. It never rises along an episode.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from env.phone.episode.calls import Sent, State, is_locked, place_call, submit_form, tick, wait
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, WAIT
from env.phone.world.companies import Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import ordered, sufficient_forms
from env.phone.world.world import World
from env.protocol import ToolCall
from pipeline.types import Event, StepVerdict, VerifierStatus


@dataclass(frozen=True, slots=True)
class Move:
    """One message; "search" stands for any that only lets a tick pass."""

    kind: Literal["search", "form", "call", "wait", "stop"]
    fields: frozenset[str] = frozenset()  # asked for in a form; given in a call, with their right values
    phone: str = ""
    request_id: str = ""
    offered: frozenset[str] = frozenset()


def play(world: World, state: State, move: Move) -> State:
    """Returns the state after a move: a pure function, what `PhoneEnv` makes of the same message."""
    state = tick(state)
    match move.kind:
        case "form":
            state = submit_form(world, state, move.fields)[0]
        case "call":
            sent = Sent(given=move.fields, offered=move.offered)
            state = place_call(world, state, move.phone, move.request_id, sent)[0]
        case "wait":
            state = wait(world, state)[0]
        case "stop":
            state = replace(state, ended=True)
    return replace(state, ended=True) if len(state.served) == len(world.requests) else state


def tool_call(world: World, move: Move) -> ToolCall | None:
    """Returns the call that a move stands for; None stops."""
    match move.kind:
        case "search":
            return ToolCall(SEARCH, {"company_name": world.company.name})
        case "form":
            return ToolCall(FORM, {"fields": list(ordered(move.fields))})
        case "call":
            slips = dict(world.slips)
            info: dict[str, str | bool | None] = {
                field: world.profile[field] if field in slips else FROM_FORM for field in ordered(move.fields)
            }
            info |= dict.fromkeys(ordered(move.offered))
            return ToolCall(CALL, {"phone_number": move.phone, "request": move.request_id, "auth_info": info})
        case "wait":
            return ToolCall(WAIT, {})
        case _:
            return None


def open_paths(world: World, state: State) -> list[tuple[str, tuple[Department, ...]]]:
    """Returns (id, lines still to be called in order) of every request that is not served."""
    found = []
    for request in world.requests:
        if request.request_id not in state.served:
            path = world.path(request)
            done = 0
            while done < len(path) - 1 and (request.request_id, path[done].phone) in state.referred:
                done += 1
            found.append((request.request_id, path[done:]))
    return found


def fewest_turns(world: World, state: State) -> float:
    """Returns d*: the least messages to success; infinite when none succeeds.

    With the rules known, messages of a shortest plan are the form, one call for every line of every request's
    path, and one more for each busy line. Only closed lines make their order matter, which is searched.
    """
    if len(state.served) == len(world.requests):
        return 0
    if state.ended:
        return math.inf
    paths = open_paths(world, state)
    lines = {line.phone: line for _, path in paths for line in path}
    if any(is_locked(world, state, phone) for phone in lines):
        return math.inf
    available = world.profile.keys() if state.form is None else state.form
    most_fields = world.level.max_form_fields if state.form is None else len(state.form)
    if not sufficient_forms([line.sets for line in lines.values()], available, most_fields):
        return math.inf
    opens = {phone: opens for phone, opens in world.closings if phone in lines}
    routes = tuple(tuple(line.phone for line in path) for _, path in paths)
    unrung = frozenset((world.busy - state.rung) & lines.keys())
    return _schedule(routes, state.form is None, unrung, opens, state.tick, {})


def optimal_value(world: World, state: State) -> float:
    """Returns V*(state) = 1[d* <= turns left]."""
    return float(fewest_turns(world, state) <= world.level.max_turns - state.tick)


def _schedule(
    routes: tuple[tuple[str, ...], ...],
    needs_form: bool,
    unrung: frozenset[str],
    opens: dict[str, int],
    now: int,
    known: dict[tuple[object, ...], int],
) -> int:
    """Returns the least messages for a form, these calls in order, and a first call to each busy line.

    A busy line may be rung ahead, while others are closed. A tick passes idle only when nothing can be done.
    """
    now += 1
    if all(opening <= now for opening in opens.values()):
        return needs_form + sum(map(len, routes)) + len(unrung)
    key = (routes, needs_form, unrung, now)
    if key in known:
        return known[key]

    def after(routes: tuple[tuple[str, ...], ...], needs_form: bool, unrung: frozenset[str]) -> int:
        return 1 + _schedule(routes, needs_form, unrung, opens, now, known)

    options = []
    if needs_form:
        options.append(after(routes, False, unrung))
    options += [after(routes, needs_form, unrung - {phone}) for phone in unrung if opens.get(phone, 0) <= now]
    if not needs_form:
        for place, route in enumerate(routes):
            if route and route[0] not in unrung and opens.get(route[0], 0) <= now:
                rest = (*routes[:place], route[1:], *routes[place + 1 :])
                options.append(after(rest, needs_form, unrung))
    known[key] = min(options) if options else after(routes, needs_form, unrung)
    return known[key]


def optimal_move(world: World, state: State) -> Move | None:
    """Returns the first message of a shortest plan, None where none succeeds or all is done."""
    turns = fewest_turns(world, state)
    if turns in (0, math.inf):
        return None
    return next(
        move for move in _moves(world, state) if fewest_turns(world, play(world, state, move)) < turns
    )


def _moves(world: World, state: State) -> Iterator[Move]:
    """Yields the messages that may belong to a shortest plan, those that do something first."""
    paths = open_paths(world, state)
    lines = {line.phone: (line, request_id) for request_id, path in reversed(paths) for line in path}
    if state.form is None:
        rules = [line.sets for line, _ in lines.values()]
        forms = sufficient_forms(rules, world.profile.keys(), world.level.max_form_fields)
        yield from (Move("form", form) for form in forms[:1])
    for request_id, path in paths:
        yield _full_call(world, state, path[0], request_id)
    for phone in sorted((world.busy - state.rung) & lines.keys()):
        line, request_id = lines[phone]
        yield _full_call(world, state, line, request_id)
    yield Move("wait")


def _full_call(world: World, state: State, line: Department, request_id: str) -> Move:
    """Returns a call that gives all that this rollout has; if just that call is on hold, waiting for it."""
    given = state.form or frozenset()
    if line.wants_reference:
        giver = next(other for other in world.company.departments if other.kind == line.after)
        if (request_id, giver.phone) in state.referred:
            given |= {REFERENCE}
    held = state.held
    if held and (held.phone, held.request_id, held.sent) == (line.phone, request_id, Sent(given=given)):
        return Move("wait")
    return Move("call", given, line.phone, request_id)


_ALWAYS_WRONG = {
    "fabricated_auth": "a value that the form did not give",
    "form_already_submitted": "a second form",
    "invalid_number": "no such number",
    "malformed_json": "malformed call",
    "unknown_tool": "malformed call",
    "bad_args": "malformed call",
    "too_many": "more than one call",
}
_ASIDES = {"probe", "over_collected", "unavailable", "two_values", "max_turns"}


def advice(world: World) -> tuple[tuple[str, ...], list[tuple[str, list[str]]]]:
    """Returns what would have helped, privileged and without a value.

    The smallest form that does for all lines, empty where none would; and (id, names of its lines in order)
    of each request that is referred on.
    """
    rules = [line.sets for line in world.needed_lines()]
    forms = sufficient_forms(rules, world.profile.keys(), world.level.max_form_fields)
    paths = [(request.request_id, world.path(request)) for request in world.requests]
    routes = [(key, [line.name for line in path]) for key, path in paths if len(path) > 1]
    return ordered(forms[0]) if forms else (), routes


def step_verdicts(world: World, states: Sequence[State], events: Sequence[Event]) -> tuple[StepVerdict, ...]:
    """Returns the word on each message, from the states before each and after the last, and all events.

    `wrong` if it was fatal (V* fell), made a value up, or was no valid call; `ok` if d* fell; else `unknown`.
    """
    turns = [fewest_turns(world, state) for state in states]
    can_succeed = [d <= world.level.max_turns - state.tick for d, state in zip(turns, states, strict=True)]
    verdicts = []
    for index in range(len(states) - 1):
        codes = [event.code for event in events if event.turn == index]
        fault = next((code for code in codes if code in _ALWAYS_WRONG), None)
        if can_succeed[index] and not can_succeed[index + 1]:
            code, message = _fatal(codes, is_lost=turns[index + 1] == math.inf)
            verdicts.append(StepVerdict(index, "wrong", code, message))
        elif fault is not None:
            verdicts.append(StepVerdict(index, "wrong", fault, _ALWAYS_WRONG[fault]))
        else:
            status: VerifierStatus = "ok" if turns[index + 1] < turns[index] else "unknown"
            verdicts.append(StepVerdict(index, status, _main_code(codes)))
    return tuple(verdicts)


def _main_code(codes: Sequence[str]) -> str:
    """Returns the code that says how a message ended, past those that only add to it."""
    return [code for code in codes if code not in _ASIDES][-1]


def _fatal(codes: Sequence[str], is_lost: bool) -> tuple[str, str]:
    """Returns the code and the reason of a message that made success impossible."""
    if not is_lost:
        return "max_turns", "too few turns are left"
    if "form" in codes:
        return "form", "the one form lacks a needed field"
    if "none" in codes:
        return "none", "stopped before the request was served"
    return _main_code(codes), "the needed line is locked"
