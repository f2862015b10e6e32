"""Numbered rounds: what they keep, what they change in the rest of a configuration."""

from pydantic import JsonValue

from pipeline.settings import Section, setting

CHANGES: dict[str, JsonValue] = {
    "stored.objective": {"kind": "likelihood"},
    "stored.learning_rate": 1e-6,
    "stored.max_epochs": 1,
    "evaluation.of": "stored",
}
"""What a round changes unless `round.changes` says otherwise: a single careful epoch over what is stored."""


class Replay(Section):
    """Rollouts of a round and of those before it, which the stored phase of the round learns from."""

    capacity: int = setting(10_000, "rollouts that are kept; the oldest go first", ge=1)
    newest: int = setting(1_000, "of these, how many the stored phase takes", ge=1)


class Round(Section):
    """A round: an ordinary run that begins with the policy that is served."""

    changes: dict[str, JsonValue] = setting(
        {},
        "what rounds change in the rest of the file, as section.key: value; without it they train one epoch "
        "of the stored phase's likelihood at learning rate 1e-6",
    )
