"""The difficulty table and the prices, written out once more as the specification has them."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from env.phone.world.levels import COSTS, LEVELS, MAX_PRICE, OVER_COLLECTED_CAP, Level

KINDS = ("all", "first", "count", "vague")
USERS = ("cooperative", "partial", "difficult")
SERVICE = "customer_service"
ROUTES = {"fraud": SERVICE, "claims": SERVICE, "billing": SERVICE}
CHAINED = {**ROUTES, "accounts": "billing"}

TABLE = {
    "num_requests": [(1, 1), (1, 1), (1, 2), (1, 2), (2, 3)],
    "num_needed": [(1, 1), (1, 1), (2, 2), (2, 3), (3, 5)],
    "num_departments": [(2, 2), (3, 3), (4, 4), (5, 5), (6, 7)],
    "num_fields": [1, 2, 2, 2, 2],
    "num_fields_strict": [2, 3, 3, 3, 4],
    "vocabulary": [8, 10, 12, 16, 24],
    "deviates": [0, 0.1, 0.2, 0.3, 0.3],
    "second_alternative": [0, 0, 0.5, 0.7, 0.8],
    "k_of_n": [0, 0, 0, 0.15, 0.15],
    "disclosure": [(1, 0, 0, 0), (1, 0, 0, 0), (0.7, 0.3, 0, 0), (0.4, 0.4, 0.2, 0), (0.4, 0.3, 0.2, 0.1)],
    "edges": [{}, {}, ROUTES, CHAINED, CHAINED],
    "tokens": [set(), set(), set(), {"fraud"}, {"fraud", "accounts"}],
    "names_prerequisite": [False, False, True, False, False],
    "wrong_department": ["named", "transfer", "named", "vague", "vague"],
    "has_twins": [False, False, False, False, True],
    "screen_first": [1, 1, 0.7, 0.5, 0.5],
    "on_hold": [0, 0, 0.2, 0.3, 0.3],
    "closed": [0, 0, 0, 0.1, 0.2],
    "strikes_to_lock": [None, 5, 3, 3, 5],
    "locks_company": [False, False, False, False, True],
    "probe_is_strike": [False, False, False, True, True],
    "users": [(1, 0, 0), (0.9, 0.1, 0), (0.7, 0.2, 0.1), (0.6, 0.25, 0.15), (0.5, 0.3, 0.2)],
    "lacking": [0, 0, 0.15, 0.5, 1],
    "partial_is_needed": [False, False, True, True, True],
    "max_form_fields": [3, 4, 5, 6, 8],
    "max_turns": [8, 8, 12, 16, 24],
    "has_wait": [False, False, True, True, True],
}
UNTABLED = {"opens"}
"""Not in the specification: when a closed line opens."""


def test_the_table_has_a_row_for_every_knob_and_a_column_for_every_level():
    assert {knob.name for knob in fields(Level)} == TABLE.keys() | UNTABLED
    assert list(LEVELS) == [1, 2, 3, 4, 5]
    assert all(len(row) == 5 for row in TABLE.values())


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_a_level_has_the_knobs_of_the_table(level):
    knobs = asdict(LEVELS[level]) | {"tokens": set(LEVELS[level].tokens)}
    for name, names in (("disclosure", KINDS), ("users", USERS)):
        assert set(knobs[name]) <= set(names)
        knobs[name] = tuple(knobs[name].get(key, 0) for key in names)
    assert {name: knobs[name] for name in TABLE} == {name: row[level - 1] for name, row in TABLE.items()}


def test_the_prices_are_the_tables():
    assert COSTS == {
        "over_collected": 0.05,
        "form_too_long": 0.05,
        "form_already_submitted": 0.10,
        "strike": 0.05,
        "fabricated_auth": 0.10,
        "probe": 0.03,
        "wrong_department": 0.05,
        "must_call_first": 0.10,
    }
    assert (OVER_COLLECTED_CAP, MAX_PRICE) == (0.3, 0.5)
