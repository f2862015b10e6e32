"""Small worlds written out by hand, generated tasks of one level, and episodes played by commands."""

import hashlib
import math
from dataclasses import astuple
from functools import cache
from itertools import combinations

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.solver.solver import Move, optimal_move, optimal_value, play, tool_call
from env.phone.tasks import generate_tasks
from env.phone.world.companies import Company, Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import minimal_sets
from env.phone.world.world import Request, World, WorldKey, make_world
from pipeline.ids import canonical_json

STYLE = CompactStyle()
LEVELS = (1, 2, 3, 4, 5)
SERVICE, BILLING, FRAUD = "555-0001", "555-0002", "555-0003"
VOCABULARY = ("email", "full_name", "member_id", "last_payment", "order_number")
USUAL = {
    "customer_service": (SERVICE, {"wants": [("email",)]}),
    "billing": (BILLING, {"wants": [("full_name",)]}),
    "fraud": (FRAUD, {"wants": [("email", "member_id")], "after": "customer_service"}),
}


def state_digest(env: PhoneEnv) -> str:
    """Returns the SHA-256 of all that an episode's future and its verdict follow from."""
    state, held = env.state, env.state.held
    value = {
        "speaker": [env._speaker._key, env._speaker.counter],
        "form": None if state.form is None else sorted(state.form),
        "served": sorted(state.served),
        "strikes": [list(pair) for pair in state.strikes],
        "tick": state.tick,
        "ended": state.ended,
        "referred": sorted(map(list, state.referred)),
        "rung": sorted(state.rung),
        "held": held and [env._call_id, held.phone, held.request_id, *map(sorted, astuple(held.sent))],
        "events": [[e.code, e.turn, e.target, list(e.fields), e.detail] for e in env.events],
    }
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def small_world(level=3, wants=("fraud",), lacking=(), lines=None, busy=(), closings=()):
    """Fraud after Service, and Billing by itself; `lines` says what differs of them: kind -> facts."""
    departments = []
    for kind, (phone, facts) in USUAL.items():
        facts = facts | (lines or {}).get(kind, {})
        sets = minimal_sets(facts.pop("wants"))
        if facts.get("wants_reference"):
            sets = tuple(needed | {REFERENCE} for needed in sets)
        name = kind.replace("_", " ").title().split()[-1]
        departments.append(Department(name, kind, phone, kind, sets=sets, **facts))
    company = Company("Blue Hill One", "banking", level, tuple(departments), VOCABULARY)
    requests = tuple(Request(f"R{i}", kind, "x") for i, kind in enumerate(wants, start=1))
    profile = {field: field.upper() for field in VOCABULARY if field not in lacking}
    return World(company, requests, profile, "cooperative", "R1 x", frozenset(busy), closings)


@cache
def mixed_tasks(count, companies, seed=0, levels=LEVELS, others=1):
    """Training tasks of several levels, then as many `others` of each other split as are asked for."""
    sizes = {"num_companies": companies, "num_train": count, "num_val": others, "num_test": others}
    return generate_tasks(**sizes, level_shares=dict.fromkeys(levels, 1 / len(levels)), seed=seed)


def level_tasks(level, count, companies=40, seed=2):
    """Training tasks of one level."""
    return mixed_tasks(count, companies, seed, (level,))[:count]


def world_of(task):
    return make_world(WorldKey.from_text(task.ground_truth))


def started(task, seed=0, **kind):
    env = PhoneEnv(**kind)
    env.reset(task, seed)
    return env


class Desk:
    """One episode played by commands, with what the first request's line wants."""

    def __init__(self, task, seed=0, **kind):
        self.env = started(task, seed, **kind)
        self.world = self.env.world
        self.path = self.world.path(self.world.requests[0])
        self.line = self.path[-1]
        self.needed = sorted(next(iter(self.line.sets)))
        self.spare = [field for field in self.world.profile if field not in self.needed]

    def say(self, text):
        """Returns the codes of what happened."""
        self.last = self.env.step(STYLE.parse(text))
        self.heard = self.last.messages[0]["content"] if self.last.messages else ""
        return [event.code for event in self.last.events]

    def play_best(self, until=None):
        """Plays a shortest plan up to the first event of a kind; returns the codes."""
        codes = []
        while until not in codes and (move := optimal_move(self.world, self.env.state)) is not None:
            codes += self.say(STYLE.action_of(tool_call(self.world, move)).text)
        return codes


def values_of(env):
    """V* before each message of an episode, and after the last."""
    return [optimal_value(env.world, state) for state in env.states]


def first_fatal(env):
    """The message after which V* is lower, or None."""
    values = values_of(env)
    return next((i for i in range(len(values) - 1) if values[i + 1] < values[i]), None)


def every_move(world, state, every_part):
    """All moves that can matter: every form; every line for every request, with nothing or all that there is.

    With `every_part`, calls with any part of it too.
    """
    yield Move("search")
    yield Move("wait")
    if state.form is None:
        for fields in subsets(world.company.vocabulary, world.level.max_form_fields):
            yield Move("form", fields)
    have = state.form or frozenset()
    for line in world.company.departments:
        for request in world.requests:
            own = have
            if any((request.request_id, x.phone) in state.referred for x in world.company.departments):
                own |= {REFERENCE}
            for given in subsets(own, len(own)) if every_part else {frozenset[str](), have, own}:
                yield Move("call", given, line.phone, request.request_id)


def subsets(fields, most):
    return [frozenset(chosen) for n in range(most + 1) for chosen in combinations(sorted(fields), n)]


def exhaustive(world, start, deepest, every_part=False):
    """Least messages to success by trying everything, up to a depth."""
    layer, seen = {start}, set()
    for depth in range(deepest + 1):
        if any(len(state.served) == len(world.requests) for state in layer):
            return depth
        layer = {
            play(world, state, move)
            for state in layer
            if not state.ended
            for move in every_move(world, state, every_part)
        } - seen
        seen |= layer
    return math.inf
