"""Shortest plans of an agent that does not know the rules: it asks before it sends its one form."""

import math
from collections.abc import Iterator
from itertools import combinations

from env.phone.episode.calls import Sent, State, place_call, tick, wait
from env.phone.solver.solver import Move, fewest_turns, open_paths, optimal_plan
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import FieldSet, sufficient_forms
from env.phone.world.world import World


def untold_plan(world: World) -> list[Move] | None:
    """Returns a shortest plan of an agent that does not know the rules and never guesses, or None.

    It knows everything else, and its form asks only for fields that lines have named in this episode:
    breadth-first search over the state and the fields named so far, with the moves that led there. Lines that
    name nothing (count, vague) leave no plan where no other line names enough.
    """
    best, fewest = None, math.inf
    places: list[tuple[State, FieldSet, tuple[Move, ...]]] = [(State(), frozenset(), ())]
    seen = {(State(), frozenset[str]())}
    for state, told, moves in places:  # which grows
        if len(moves) + 1 >= fewest or len(moves) >= world.level.max_turns:
            break
        if (form := _form_of(world, state, told)) is not None:
            if (turns := len(moves) + fewest_turns(world, state)) < fewest:
                best, fewest = [*moves, *optimal_plan(world, state, form)], turns
            continue
        for move in _askings(world, state, told):
            after, named = _asked(world, state, move)
            if (after, told | named) not in seen:
                seen.add((after, told | named))
                places.append((after, told | named, (*moves, move)))
    return best


def _form_of(world: World, state: State, told: FieldSet) -> FieldSet | None:
    """Returns the smallest form of named fields that does for all lines still to be called, if any."""
    lines = {line.phone: line for _, path in open_paths(world, state) for line in path}
    rules = [line.sets for line in lines.values()]
    forms = sufficient_forms(rules, told & world.profile.keys(), world.level.max_form_fields)
    return forms[0] if forms else None


def _askings(world: World, state: State, told: FieldSet) -> Iterator[Move]:
    """Yields what an agent without a form may do to hear of rules: waiting, or probes with offers."""
    yield Move("wait")
    asked = set[str]()
    for request_id, path in open_paths(world, state):
        for line in path:
            if line.phone in asked:
                continue
            asked.add(line.phone)
            own = told & {field for needed in line.sets for field in needed}
            # What is offered steers which of several sets a line speaks of, so every part of it may be best.
            sizes = range(len(own) + 1) if line.disclosure == "first" and len(line.sets) > 1 else [len(own)]
            for offered in (frozenset(some) for size in sizes for some in combinations(sorted(own), size)):
                yield Move("call", phone=line.phone, request_id=request_id, offered=offered)


def _asked(world: World, state: State, move: Move) -> tuple[State, FieldSet]:
    """Returns where asking leads: what `play` makes of the state, and the fields that the line names."""
    now = tick(state)
    if move.kind == "wait":
        after, outcome = wait(world, now)
    else:
        after, outcome = place_call(world, now, move.phone, move.request_id, Sent(offered=move.offered))
    said = outcome.disclosure
    return after, frozenset(
        {*said.missing, *(field for other in said.others for field in other)} - {REFERENCE}
    )
