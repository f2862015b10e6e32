"""The difficulty table, a row per knob and a column per level, and the price list."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError

Edges = dict[str, str]
"""kind of department -> kind of department that must have referred the customer first."""


@dataclass(frozen=True, slots=True)
class Level:
    """What one level of difficulty means; ranges are (least, most), both included."""

    num_requests: tuple[int, int]  # things the customer wants
    num_needed: tuple[int, int]  # departments to call for them, those that refer the customer on included
    num_departments: tuple[int, int]  # that a company lists
    num_fields: int  # that a usual department wants
    num_fields_strict: int  # that fraud, claims and accounts want
    vocabulary: int  # fields that a customer of the company may have
    deviates: float  # probability that a department's rule departs from its industry's prior
    second_alternative: float  # probability that another set of fields will do as well
    k_of_n: float  # probability that any k of n fields will do
    disclosure: dict[str, float]  # probability of each way to say what is missing
    edges: Edges  # where a company lists both
    tokens: frozenset[str]  # kinds that want the reference of the line that referred the customer
    names_prerequisite: bool  # whether a line says who must be called first
    wrong_department: str  # named: says who serves the request; transfer: goes on there; vague: says no more
    has_twins: bool  # whether two departments of a company have one name
    screen_first: float  # probability that a line checks what it serves before who is calling
    on_hold: float  # probability that a needed line puts the first call on hold
    closed: float  # probability that a needed line opens late
    strikes_to_lock: int | None  # failed identifications that lock a line, or the company; None never
    locks_company: bool  # whether strikes count over all lines and lock them all
    probe_is_strike: bool  # whether a call without values counts as a failed identification
    users: dict[str, float]  # probability of each kind of user
    lacking: float  # probability that the profile lacks a field that some needed line accepts
    partial_is_needed: bool  # whether a partial user may lack such a field too
    max_form_fields: int
    max_turns: int  # assistant messages in an episode
    has_wait: bool  # whether the tool `wait` is there, and the directory lists hours


_ROUTED: Edges = dict.fromkeys(("fraud", "claims", "billing"), "customer_service")
_CHAINED: Edges = _ROUTED | {"accounts": "billing"}

_TABLE: dict[str, tuple[Any, ...]] = {
    "num_requests": ((1, 1), (1, 1), (1, 2), (1, 2), (2, 3)),
    "num_needed": ((1, 1), (1, 1), (2, 2), (2, 3), (3, 5)),
    "num_departments": ((2, 2), (3, 3), (4, 4), (5, 5), (6, 7)),
    "num_fields": (1, 2, 2, 2, 2),
    "num_fields_strict": (2, 3, 3, 3, 4),
    "vocabulary": (8, 10, 12, 16, 24),
    "deviates": (0.0, 0.1, 0.2, 0.3, 0.3),
    "second_alternative": (0.0, 0.0, 0.5, 0.7, 0.8),
    "k_of_n": (0.0, 0.0, 0.0, 0.15, 0.15),
    "disclosure": (
        {"all": 1.0},
        {"all": 1.0},
        {"all": 0.7, "first": 0.3},
        {"all": 0.4, "first": 0.4, "count": 0.2},
        {"all": 0.4, "first": 0.3, "count": 0.2, "vague": 0.1},
    ),
    "edges": ({}, {}, _ROUTED, _CHAINED, _CHAINED),
    "tokens": (frozenset(), frozenset(), frozenset(), frozenset({"fraud"}), frozenset({"fraud", "accounts"})),
    "names_prerequisite": (False, False, True, False, False),
    "wrong_department": ("named", "transfer", "named", "vague", "vague"),
    "has_twins": (False, False, False, False, True),
    "screen_first": (1.0, 1.0, 0.7, 0.5, 0.5),
    "on_hold": (0.0, 0.0, 0.2, 0.3, 0.3),
    "closed": (0.0, 0.0, 0.0, 0.1, 0.2),
    "strikes_to_lock": (None, 5, 3, 3, 5),
    "locks_company": (False, False, False, False, True),
    "probe_is_strike": (False, False, False, True, True),
    "users": (
        {"cooperative": 1.0},
        {"cooperative": 0.9, "partial": 0.1},
        {"cooperative": 0.7, "partial": 0.2, "difficult": 0.1},
        {"cooperative": 0.6, "partial": 0.25, "difficult": 0.15},
        {"cooperative": 0.5, "partial": 0.3, "difficult": 0.2},
    ),
    "lacking": (0.0, 0.0, 0.15, 0.5, 1.0),
    "partial_is_needed": (False, False, True, True, True),
    "max_form_fields": (3, 4, 5, 6, 8),
    "max_turns": (8, 8, 12, 16, 24),
    "has_wait": (False, False, True, True, True),
}
LEVELS: dict[int, Level] = {
    level: Level(**{knob: row[level - 1] for knob, row in _TABLE.items()}) for level in range(1, 6)
}
OPENS = (4, 7)
"""Ticks at which a line that opens late may open, at every level."""

LEVEL_SHARES: dict[int, float] = {1: 0.2, 2: 0.3, 3: 0.3, 4: 0.1, 5: 0.1}
"""Share of companies, and so of tasks, unless a configuration says otherwise."""

COSTS: dict[str, float] = {
    "over_collected": 0.05,  # per field that no line needs, up to OVER_COLLECTED_CAP
    "form_too_long": 0.05,
    "form_already_submitted": 0.10,
    "strike": 0.05,
    "fabricated_auth": 0.10,
    "probe": 0.03,
    "wrong_department": 0.05,
    "must_call_first": 0.10,  # nothing more than the probe's price where the call was one
}
OVER_COLLECTED_CAP = 0.30
MAX_PRICE = 0.50
"""The priced reward takes off this much at most, so no failure beats a success."""


def level_settings(level: int) -> Level:
    """Returns a level's knobs; raises ConfigError where there is no such level."""
    if level not in LEVELS:
        raise ConfigError(
            f"phone level {level} does not exist; levels: {', '.join(map(str, LEVELS))}. "
            "Give tasks.level_shares only these levels."
        )
    return LEVELS[level]


def most_turns(levels: Iterable[int]) -> int:
    """Returns the most messages that an episode of these levels may have."""
    return max(level_settings(level).max_turns for level in levels)
