"""Small worlds written out by hand: who refers whom, what each line wants, who is busy or closed."""

from __future__ import annotations

from env.phone.rules import AllOf, Token, minimal_sets
from env.phone.world import Company, Department, Request, World

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
