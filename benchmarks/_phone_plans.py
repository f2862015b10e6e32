"""Whole plans and exact values of the phone: what its environment and critics are held against."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from env.phone.episode.calls import Sent, State, place_call, tick, wait
from env.phone.solver.solver import Move, fewest_turns, open_paths, optimal_move, play
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import FieldSet, sufficient_forms
from env.phone.world.world import World

MarkovPolicy = Callable[[World, State], Mapping[Move, float]]
"""(world, state) -> probability of each move; they add up to 1."""


def optimal_plan(world: World, state: State, form: FieldSet | None = None) -> list[Move]:
    """Returns a shortest plan, with another form that does if one is given; [] where none succeeds."""
    plan = []
    while (move := optimal_move(world, state)) is not None:
        if move.kind == "form" and form is not None:
            move = Move("form", form)
        plan.append(move)
        state = play(world, state, move)
    return plan


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


def policy_value(world: World, policy: MarkovPolicy, state: State | None = None) -> float:
    """Returns V^pi(s): the probability that the policy serves every request in the turns left.

        V(s) = sum_m pi(m | s) V(s after m),  V = 1 once all is served, 0 once the turns are spent

    It starts in `state`, by default where episodes do. Raises ValueError for chances that do not add up to 1.
    """
    known: dict[State, float] = {}

    def value(state: State) -> float:
        if len(state.served) == len(world.requests):
            return 1.0
        if state.ended or state.tick >= world.level.max_turns:
            return 0.0
        if state not in known:
            chances = policy(world, state)
            if abs(sum(chances.values()) - 1) > 1e-9:
                raise ValueError(f"probabilities add up to {sum(chances.values())}, not 1, at {state}")
            known[state] = sum(p * value(play(world, state, m)) for m, p in chances.items() if p > 0)
        return known[state]

    return value(state or State())


def slipping(slip: float) -> MarkovPolicy:
    """Returns a policy that plays a shortest plan, but errs with probability `slip`.

    An error is, with equal chances: a useless message, giving up, a form with one field too few, or an empty
    call to the first line of the directory. Where nothing can succeed any more, it gives up.
    """

    def policy(world: World, state: State) -> dict[Move, float]:
        best = optimal_move(world, state)
        if best is None:
            return {Move("stop"): 1.0}
        is_form = best.kind == "form" and len(best.fields) > 1
        short = Move("form", frozenset(sorted(best.fields)[1:])) if is_form else Move("search")
        probe = Move(
            "call", phone=world.company.departments[0].phone, request_id=world.requests[0].request_id
        )
        chances = {best: 1 - slip}
        for move in (Move("search"), Move("stop"), short, probe):
            chances[move] = chances.get(move, 0.0) + slip / 4
        return chances

    return policy
