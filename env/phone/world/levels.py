"""The difficulty table and the price list: one row per level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pipeline.errors import ConfigError

Edges = dict[str, str]
"""kind of department -> kind of department that must have referred the customer first."""

_UNCHAINED: Edges = dict.fromkeys(("fraud", "claims", "billing"), "customer_service")
_CHAINED: Edges = _UNCHAINED | {"accounts": "billing"}


@dataclass(frozen=True, slots=True)
class Level:
    """What one level of difficulty means; ranges are (least, most), both included.

    Attributes:
        num_requests: things the customer wants.
        num_needed: departments to be called for them, those that must refer the customer first included.
        num_departments: departments a company lists.
        num_fields: fields a usual department wants.
        num_fields_strict: fields that fraud, claims and accounts want.
        vocabulary: fields that a customer of the company may have.
        deviates: probability that a department's rule departs from its industry's prior.
        second_alternative: probability that another set of fields will do as well.
        k_of_n: probability that any k of n fields will do.
        disclosure: probability of each way to say what is missing.
        edges: which department must refer the customer to which, where a company lists both.
        tokens: kinds that want the reference of the line that referred the customer.
        names_prerequisite: whether a line says who must be called first.
        wrong_department: "named" says who serves the request, "transfer" goes on at the right line, "vague"
            says nothing more.
        has_twins: whether two departments of a company have one name.
        screen_first: probability that a line checks what it serves before who is calling.
        on_hold: probability that a needed line puts the first call on hold.
        closed: probability that a needed line opens late.
        opens: ticks at which such a line may open.
        strikes_to_lock: failed identifications that lock a line, or the company; None never.
        locks_company: whether strikes count over all lines and lock them all.
        probe_is_strike: whether a call without values counts as a failed identification.
        users: probability of each kind of user.
        lacking: probability that the profile lacks a field that some needed line accepts.
        partial_is_needed: whether a partial user may lack such a field too.
        max_form_fields: most fields in the form.
        max_turns: assistant messages in an episode.
        has_wait: whether the tool `wait` is there, and the directory lists hours.
    """

    num_departments: tuple[int, int]
    num_fields: int
    num_fields_strict: int
    vocabulary: int
    deviates: float
    disclosure: dict[str, float]
    wrong_department: str
    screen_first: float
    strikes_to_lock: int | None
    users: dict[str, float]
    max_form_fields: int
    max_turns: int
    num_requests: tuple[int, int] = (1, 1)
    num_needed: tuple[int, int] = (1, 1)
    second_alternative: float = 0.0
    k_of_n: float = 0.0
    edges: Edges = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    names_prerequisite: bool = False
    has_twins: bool = False
    on_hold: float = 0.0
    closed: float = 0.0
    opens: tuple[int, int] = (4, 7)
    locks_company: bool = False
    probe_is_strike: bool = False
    lacking: float = 0.0
    partial_is_needed: bool = False
    has_wait: bool = False


_ONE = Level(
    num_departments=(2, 2),
    num_fields=1,
    num_fields_strict=2,
    vocabulary=8,
    deviates=0.0,
    disclosure={"all": 1.0},
    wrong_department="named",
    screen_first=1.0,
    strikes_to_lock=None,
    users={"cooperative": 1.0},
    max_form_fields=3,
    max_turns=8,
)
_TWO = replace(
    _ONE,
    num_departments=(3, 3),
    num_fields=2,
    num_fields_strict=3,
    vocabulary=10,
    deviates=0.1,
    wrong_department="transfer",
    strikes_to_lock=5,
    users={"cooperative": 0.9, "partial": 0.1},
    max_form_fields=4,
)
_THREE = replace(
    _TWO,
    num_requests=(1, 2),
    num_needed=(2, 2),
    num_departments=(4, 4),
    vocabulary=12,
    deviates=0.2,
    second_alternative=0.5,
    disclosure={"all": 0.7, "first": 0.3},
    edges=_UNCHAINED,
    names_prerequisite=True,
    wrong_department="named",
    screen_first=0.7,
    on_hold=0.2,
    strikes_to_lock=3,
    users={"cooperative": 0.7, "partial": 0.2, "difficult": 0.1},
    lacking=0.15,
    partial_is_needed=True,
    max_form_fields=5,
    max_turns=12,
    has_wait=True,
)
_FOUR = replace(
    _THREE,
    num_needed=(2, 3),
    num_departments=(5, 5),
    vocabulary=16,
    deviates=0.3,
    second_alternative=0.7,
    k_of_n=0.15,
    disclosure={"all": 0.4, "first": 0.4, "count": 0.2},
    edges=_CHAINED,
    tokens=frozenset({"fraud"}),
    names_prerequisite=False,
    wrong_department="vague",
    screen_first=0.5,
    on_hold=0.3,
    closed=0.1,
    probe_is_strike=True,
    users={"cooperative": 0.6, "partial": 0.25, "difficult": 0.15},
    lacking=0.5,
    max_form_fields=6,
    max_turns=16,
)
_FIVE = replace(
    _FOUR,
    num_requests=(2, 3),
    num_needed=(3, 5),
    num_departments=(6, 7),
    num_fields_strict=4,
    vocabulary=24,
    second_alternative=0.8,
    disclosure={"all": 0.4, "first": 0.3, "count": 0.2, "vague": 0.1},
    tokens=frozenset({"fraud", "accounts"}),
    has_twins=True,
    closed=0.2,
    strikes_to_lock=5,
    locks_company=True,
    users={"cooperative": 0.5, "partial": 0.3, "difficult": 0.2},
    lacking=1.0,
    max_form_fields=8,
    max_turns=24,
)

LEVELS: dict[int, Level] = {1: _ONE, 2: _TWO, 3: _THREE, 4: _FOUR, 5: _FIVE}

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
    """Returns the row of a level.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in LEVELS:
        raise ConfigError(
            f"phone level {level} does not exist; levels: {', '.join(map(str, LEVELS))}. "
            "Give tasks.level_shares only these levels."
        )
    return LEVELS[level]


def most_turns(levels: Iterable[int]) -> int:
    """Returns the most messages that an episode of these levels may have."""
    return max(level_settings(level).max_turns for level in levels)
