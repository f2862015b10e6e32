"""What an episode earns: success, its price, and the ladder of a request as a potential."""

from collections.abc import Sequence
from typing import Literal

from env.phone.episode.calls import State
from env.phone.world.levels import COSTS, MAX_PRICE, OVER_COLLECTED_CAP
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import sufficient_forms
from env.phone.world.world import Request, World
from pipeline.types import Event

RewardStyle = Literal["terminal", "priced", "ladder"]


def episode_cost(events: Sequence[Event]) -> float:
    """Returns the price of an episode's faults and probes; a probe pays its own price alone."""
    probes = {event.turn for event in events if event.code == "probe"}
    cost = 0.0
    extra = 0
    for event in events:
        if event.code == "over_collected":
            extra += len(event.fields)
        elif event.turn in probes and event.code in ("auth_missing", "must_call_first"):
            continue
        elif event.code in ("auth_mismatch", "auth_missing"):
            cost += COSTS["strike"]
        else:
            cost += COSTS.get(event.code, 0.0)
    return round(cost + min(extra * COSTS["over_collected"], OVER_COLLECTED_CAP), 6)


def final_reward(style: RewardStyle, success: bool, events: Sequence[Event]) -> float:
    """Returns success, or with "priced" success * (1 - min(cost, MAX_PRICE)): no failure beats a success."""
    if not success:
        return 0.0
    return 1.0 - min(episode_cost(events), MAX_PRICE) if style == "priced" else 1.0


def potential(world: World, state: State) -> float:
    """Returns Phi(s) in [0, 1]: how far up the ladder the requests are, as a mean; 0 once all is over.

    Rungs of a request: 0.2 some field that it needs, 0.3 all of them, 0.5 identified on its path, 0.7 its own
    line comes next, 1 served. Added to a reward as F = gamma * Phi(s') - Phi(s), it telescopes: nothing can
    be farmed, and what is optimal stays so (Ng, Harada and Russell 1999).
    """
    if state.ended or state.tick >= world.level.max_turns:
        return 0.0
    return sum(_rung(world, state, request) for request in world.requests) / len(world.requests)


def _rung(world: World, state: State, request: Request) -> float:
    if request.request_id in state.served:
        return 1.0
    path = world.path(request)
    referred = [(request.request_id, line.phone) in state.referred for line in path[:-1]]
    if any(referred):
        return 0.7 if all(referred) else 0.5
    form = state.form or frozenset()
    rules = [line.sets for line in path]
    if form and sufficient_forms(rules, form, len(form)):
        return 0.3
    needed = {field for sets in rules for fields in sets for field in fields - {REFERENCE}}
    return 0.2 if form & needed else 0.0
