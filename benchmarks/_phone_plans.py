"""Whole plans and exact values of the phone: what its environment and critics are held against."""

from collections.abc import Callable, Mapping

from env.phone.episode.calls import State
from env.phone.solver.solver import Move, optimal_move, play
from env.phone.world.world import World

MarkovPolicy = Callable[[World, State], Mapping[Move, float]]
"""(world, state) -> probability of each move; they add up to 1."""


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
