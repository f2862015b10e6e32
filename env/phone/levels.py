"""The difficulty table and the price list: one row per level, so that a new level is a new row."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Level:
    """What one level of difficulty means.

    Attributes:
        num_departments: departments a company lists.
        num_fields: fields a usual department wants.
        num_fields_strict: fields that fraud, claims and accounts want.
        vocabulary: fields that a customer of the company may have.
        deviates: probability that a department's rule departs from its industry's prior.
        disclosure: probability of each way to say what is missing.
        wrong_department: "named" says who serves the request, "transfer" goes on at the right line.
        screen_first: probability that a line checks what it serves before who is calling.
        strikes_to_lock: failed identifications that lock a line; None never.
        probe_is_strike: whether a call without values counts as a failed identification.
        users: probability of each kind of user.
        max_form_fields: most fields in the form.
        max_turns: assistant messages in an episode.
    """

    num_departments: int
    num_fields: int
    num_fields_strict: int
    vocabulary: int
    deviates: float
    disclosure: dict[str, float]
    wrong_department: str
    screen_first: float
    strikes_to_lock: int | None
    probe_is_strike: bool
    users: dict[str, float]
    max_form_fields: int
    max_turns: int


LEVELS: dict[int, Level] = {
    1: Level(
        num_departments=2,
        num_fields=1,
        num_fields_strict=2,
        vocabulary=8,
        deviates=0.0,
        disclosure={"all": 1.0},
        wrong_department="named",
        screen_first=1.0,
        strikes_to_lock=None,
        probe_is_strike=False,
        users={"cooperative": 1.0},
        max_form_fields=3,
        max_turns=8,
    ),
    2: Level(
        num_departments=3,
        num_fields=2,
        num_fields_strict=3,
        vocabulary=10,
        deviates=0.1,
        disclosure={"all": 1.0},
        wrong_department="transfer",
        screen_first=1.0,
        strikes_to_lock=5,
        probe_is_strike=False,
        users={"cooperative": 0.9, "partial": 0.1},
        max_form_fields=4,
        max_turns=8,
    ),
}

MAX_TURNS = 8
"""Most turns of any level that is built."""

COSTS: dict[str, float] = {
    "over_collected": 0.05,  # per field that no line needs, up to OVER_COLLECTED_CAP
    "form_too_long": 0.05,
    "form_already_submitted": 0.10,
    "strike": 0.05,
    "fabricated_auth": 0.10,
    "probe": 0.03,
    "wrong_department": 0.05,
}
OVER_COLLECTED_CAP = 0.30
MAX_PRICE = 0.50
"""The priced reward takes off this much at most, so no failure beats a success."""


def level_settings(level: int) -> Level:
    """Returns the row of a level.

    Raises:
        ConfigError: the level is not built.
    """
    if level not in LEVELS:
        raise ConfigError(
            f"phone level {level} is not built yet; built: {sorted(LEVELS)}. "
            "Give tasks.level_shares only these levels."
        )
    return LEVELS[level]
