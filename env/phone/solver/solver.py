"""The exact solver: least turns to success, V*, optimal plans, and the first fatal message of an episode.

V* is the value under full knowledge of the world: 1 while success is still possible in the turns left,
else 0. It never rises along an episode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from env.phone.episode.calls import Sent, State, is_locked, place_call, tick, wait
from env.phone.solver.forms import sufficient_forms
from env.phone.solver.moves import Move, play
from env.phone.world.companies import Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import FieldSet
from env.phone.world.world import World
from pipeline.types import Event, StepVerdict


def _open_paths(world: World, state: State) -> list[tuple[str, tuple[Department, ...]]]:
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
    paths = _open_paths(world, state)
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


def _schedule(
    routes: tuple[tuple[str, ...], ...],
    needs_form: bool,
    unrung: frozenset[str],
    opens: dict[str, int],
    now: int,
    known: dict[tuple[object, ...], int],
) -> int:
    """Returns the least messages for a form, these calls in order, and a first call to each busy line.

    A busy line may be rung ahead, while others are closed. Nothing useful is ever put off, so a tick passes
    idle only when nothing else can be done.
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


def optimal_plan(world: World, state: State) -> list[Move]:
    """Returns a shortest plan of an agent that knows the rules; [] where none succeeds or all is done."""
    plan = []
    while (move := optimal_move(world, state)) is not None:
        plan.append(move)
        state = play(world, state, move)
    return plan


def _moves(world: World, state: State) -> Iterator[Move]:
    """Yields the messages that may belong to a shortest plan, those that do something first."""
    paths = _open_paths(world, state)
    lines = {line.phone: (line, request_id) for request_id, path in reversed(paths) for line in path}
    if state.form is None:
        rules = [line.sets for line, _ in lines.values()]
        yield from (
            Move("form", form)
            for form in sufficient_forms(rules, world.profile.keys(), world.level.max_form_fields)[:1]
        )
    for request_id, path in paths:
        yield _full_call(world, state, path[0], request_id)
    for phone in sorted((world.busy - state.rung) & lines.keys()):
        line, request_id = lines[phone]
        yield _full_call(world, state, line, request_id)
    yield Move("wait")


def _full_call(world: World, state: State, line: Department, request_id: str) -> Move:
    """Returns a call that gives all that this rollout has; if just that call is on hold, waiting for it."""
    given = state.form or frozenset()
    if line.token is not None:
        giver = next(other for other in world.company.departments if other.kind == line.after)
        if (request_id, giver.phone) in state.referred:
            given |= {REFERENCE}
    held = state.held
    if held is not None and (held.phone, held.request_id, held.sent) == (
        line.phone,
        request_id,
        Sent(given=given),
    ):
        return Move("wait")
    return Move("call", given, line.phone, request_id)


def untold_plan(world: World, state: State | None = None) -> list[Move] | None:
    """Returns a shortest plan of an agent that does not know the rules and never guesses, or None.

    It knows everything else, and its form asks only for fields that lines have named in this episode:
    breadth-first search over the state and the fields named so far, with a link back from each to the move
    that led there. Lines that name nothing (count, vague) leave no plan where no other line names enough.
    """
    start = state or State()
    if start.form is not None:
        return _told_plan(world, start, frozenset())
    nodes = [_Node(start, frozenset())]
    seen = {(start, nodes[0].told)}
    best, end = math.inf, None
    for node in nodes:  # which grows
        if node.depth + 1 >= best or node.depth >= world.level.max_turns:
            break
        if _told_form(world, node.state, node.told) is not None:
            if (turns := node.depth + fewest_turns(world, node.state)) < best:
                best, end = turns, node
            continue
        for move in _askings(world, node.state, node.told):
            follower = _asked(world, node, move)
            if (follower.state, follower.told) not in seen:
                seen.add((follower.state, follower.told))
                nodes.append(follower)
    return None if end is None else [*end.moves(), *(_told_plan(world, end.state, end.told) or [])]


def fewest_turns_untold(world: World, state: State | None = None) -> float:
    """Returns the least messages to success of that agent; infinite when it has no plan."""
    plan = untold_plan(world, state)
    return math.inf if plan is None else len(plan)


@dataclass(frozen=True, slots=True)
class _Node:
    """A place in the search: the state, the fields named so far, and the way that led there."""

    state: State
    told: FieldSet
    depth: int = 0
    before: _Node | None = None
    move: Move | None = None

    def moves(self) -> list[Move]:
        """Returns the moves from the start."""
        return [] if self.before is None or self.move is None else [*self.before.moves(), self.move]


def _told_form(world: World, state: State, told: FieldSet) -> FieldSet | None:
    """Returns the smallest form of named fields that does for all lines still to be called, if any."""
    lines = {line.phone: line for _, path in _open_paths(world, state) for line in path}
    rules = [line.sets for line in lines.values()]
    forms = sufficient_forms(rules, told & world.profile.keys(), world.level.max_form_fields)
    return forms[0] if forms else None


def _told_plan(world: World, state: State, told: FieldSet) -> list[Move] | None:
    """Returns a shortest plan of an agent to whom enough fields are told, None where none succeeds."""
    if fewest_turns(world, state) == math.inf:
        return None
    plan = []
    while (move := optimal_move(world, state)) is not None:
        if move.kind == "form":
            form = _told_form(world, state, told)
            assert form is not None  # the search ended here
            move = Move("form", form)
        plan.append(move)
        state = play(world, state, move)
    return plan


def _askings(world: World, state: State, told: FieldSet) -> Iterator[Move]:
    """Yields what an agent without a form may do to hear of rules: waiting, or probes with offers."""
    yield Move("wait")
    asked = set[str]()
    for request_id, path in _open_paths(world, state):
        for line in path:
            if line.phone in asked:
                continue
            asked.add(line.phone)
            own = told & {field for needed in line.sets for field in needed}
            # What is offered steers which of several sets a line speaks of, so every part of it may be best.
            sizes = range(len(own) + 1) if line.disclosure == "first" and len(line.sets) > 1 else [len(own)]
            for offered in (frozenset(some) for size in sizes for some in combinations(sorted(own), size)):
                yield Move("call", phone=line.phone, request_id=request_id, offered=offered)


def _asked(world: World, node: _Node, move: Move) -> _Node:
    """Returns where asking leads: what `play` makes of the state, and what the line names."""
    now = tick(node.state)
    if move.kind == "wait":
        after, outcome = wait(world, now)
    else:
        after, outcome = place_call(world, now, move.phone, move.request_id, Sent(offered=move.offered))
    said = outcome.disclosure
    named = {*said.missing, *(field for other in said.others for field in other)} - {REFERENCE}
    return _Node(after, node.told | named, node.depth + 1, node, move)


@dataclass(frozen=True, slots=True)
class Advice:
    """What would have helped, without a value: privileged.

    Attributes:
        form: the smallest form that does for all lines.
        routes: (request id, names of its lines in order) of each request that is referred on.
    """

    form: FieldSet
    routes: tuple[tuple[str, tuple[str, ...]], ...]


def advice(world: World) -> Advice:
    """Returns what would have helped; an empty form where none would do."""
    rules = [line.sets for line in world.needed_lines()]
    forms = sufficient_forms(rules, world.profile.keys(), world.level.max_form_fields)
    paths = [(request.request_id, world.path(request)) for request in world.requests]
    routes = tuple((key, tuple(line.name for line in path)) for key, path in paths if len(path) > 1)
    return Advice(forms[0] if forms else frozenset(), routes)


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
    asides = {"probe", "over_collected", "unavailable", "two_values", "max_turns"}
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
