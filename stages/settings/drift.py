"""How the critic is watched, and what ends the actor's training."""

from __future__ import annotations

from typing import Literal

from pipeline.settings import Section, runtime, setting


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    react: bool = setting(
        True,
        description="to what is found, in later iterations: level and slope are refitted when one is off; "
        "the step weight is 0 once Cov(A, Ahat) touches 0 or signs disagree, until a new critic passes",
        advanced=True,
    )
    paid_every: int = setting(
        20, ge=0, description="updates between checks by fresh continuations; 0 is never", advanced=True
    )
    states: int = setting(
        256, ge=2, description="states of a paid check, at least; whole rollouts", advanced=True
    )
    num_continuations: int = setting(
        16, ge=2, description="of each of them, by the present actor", advanced=True
    )
    refresh: Literal["never", "once", "on_drift"] = setting(
        "once",
        description="after a paid check that finds steps off, how often rollouts, labels, critic and report "
        "are made again for the present actor",
        advanced=True,
    )


class Stops(Section):
    """What ends the actor's training with exit code 4, after a checkpoint."""

    max_kl: float | None = runtime(
        0.1,
        gt=0,
        description="nats a token from the starting policy, median of three updates, where it is "
        "measured; null: no limit",
        advanced=True,
    )
    max_length_change: float | None = runtime(
        0.5,
        gt=0,
        description="of mean response length or steps since the first iteration; null: no limit",
        advanced=True,
    )
