"""Small worlds written out by hand: who refers whom, what each line wants, who is busy or closed."""

from __future__ import annotations

import math
from itertools import combinations

from env.phone.solver.moves import Move, play
from env.phone.world.companies import Company, Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import AllOf, Token, minimal_sets
from env.phone.world.world import Request, World

SERVICE, BILLING, FRAUD = "555-0001", "555-0002", "555-0003"
VOCABULARY = ("email", "full_name", "member_id", "last_payment", "order_number")


def department(kind, phone, usual, **more):
    rule, token = more.pop("rule", usual), more.pop("token", None)
    facts = {"disclosure": "all", "screen_first": True, "deviates": False} | more
    return Department(
        name=kind.replace("_", " ").title().split()[-1],
        kind=kind,
        phone=phone,
        description=kind,
        rule=rule,
        sets=minimal_sets(rule, token),
        token=token,
        **facts,
    )


def small_world(level=3, wants=("fraud",), lacking=(), service=None, billing=None, fraud=None, **today):
    """Fraud after Service; Billing stands alone unless `billing` says otherwise."""
    lines = (
        department("customer_service", SERVICE, AllOf(("email",)), **(service or {})),
        department("billing", BILLING, AllOf(("full_name",)), **(billing or {})),
        department(
            "fraud",
            FRAUD,
            AllOf(("email", "member_id")),
            **({"after": "customer_service"} | (fraud or {})),
        ),
    )
    company = Company("Blue Hill One", ("BlueHillOne",), "banking", level, lines, VOCABULARY)
    requests = tuple(Request(f"R{i}", kind, "x") for i, kind in enumerate(wants, start=1))
    profile = {field: field.upper() for field in VOCABULARY if field not in lacking}
    return World(company, requests, profile, "cooperative", "R1 x", **today)


TOKEN = Token("customer_service")


def every_move(world, state, every_part=False):
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
