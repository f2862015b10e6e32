"""What the watch over a critic remembers and decides: a frozen state, and a pure function to the next.

What is decided in an iteration counts from the next one on: no baseline then has seen its own outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from critics.drift.checks import (
    Correction,
    FreeCheck,
    fit_correction,
    is_measured,
    level_is_off,
    steps_are_off,
)
from pipeline.statistics import Interval, interval_words

REFIT_ITERATIONS = 3
"""Level and slope are refitted to this many iterations: one alone was found off for being extreme, in part
by chance (start value)."""


@dataclass(frozen=True, slots=True)
class DriftRules:
    """How a watch acts; the fields are those of the settings' section, but for `refresh_tasks`."""

    react: Literal["never", "correct", "refresh_once", "refresh", "refresh_first"] = "refresh_once"
    paid_every: int = 20
    states: int = 256
    num_continuations: int = 16


@dataclass(frozen=True, slots=True)
class DriftState:
    """Everything that later iterations depend on; JSON in checkpoints."""

    next_check: int = 0  # number of updates from which on a paid check is due
    slope: float = 1.0  # of the correction of the critic's values, as is the shift
    shift: float = 0.0
    recent: Sequence[Any] = ()  # of the last iterations: [values as frozen, rewards] of bare rollouts
    steps_off: bool = False  # whether step advantages have no weight
    wants_refresh: bool = False  # whether a critic of the present actor is to be made next
    refresh_runs: Sequence[str] = ()  # that made one; the last one's critic is watched
    refused_runs: Sequence[str] = ()  # that could not
    adv_rmse: float | None = None  # of the refreshed critic
    critic_policy: str | None = None  # digest of the policy that it was made for; None: the starting policy

    @classmethod
    def before(cls, rules: DriftRules) -> Self:
        """Returns the state before the first iteration."""
        return cls(next_check=rules.paid_every, wants_refresh=rules.react == "refresh_first")

    @property
    def correction(self) -> Correction:
        """Of the critic's values."""
        return Correction(self.slope, self.shift)

    def may_refresh(self, rules: DriftRules) -> bool:
        """Returns whether the rules allow another refresh."""
        done = len(self.refresh_runs) + len(self.refused_runs)
        return rules.react == "refresh" or (rules.react == "refresh_once" and not done)

    def check_is_due(self, num_updates: int, alpha: float, rules: DriftRules) -> bool:
        """Returns whether a paid check is due before the next update.

        A critic without weight is not checked, unless one that is found off is to be refreshed again.
        """
        asked = alpha > 0 or (self.steps_off and self.may_refresh(rules))
        return bool(rules.paid_every and asked and num_updates >= self.next_check)

    def refreshed(self, run: str, adv_rmse: float, *, allowed: bool, policy_digest: str) -> Self:
        """Returns the state after a run made this policy's critic; the step weight returns if `allowed`."""
        return type(self)(
            next_check=self.next_check,
            steps_off=not allowed,
            refresh_runs=(*self.refresh_runs, run),
            refused_runs=self.refused_runs,
            adv_rmse=adv_rmse,
            critic_policy=policy_digest,
        )

    def not_refreshed(self, run: str) -> Self:
        """Returns the state after a run could make none: the critic stays, without step weight."""
        return replace(self, wants_refresh=False, steps_off=True, refused_runs=(*self.refused_runs, run))


@dataclass(frozen=True, slots=True)
class Checks:
    """What was checked in an iteration."""

    values: Sequence[np.ndarray]  # [T_i] of its bare rollouts, corrected as credit was given with them
    rewards: Sequence[float]  # of the same
    free: FreeCheck | None  # of them; None without rollouts
    paid: Mapping[str, Interval] | None  # by fresh continuations; None where none was due
    num_updates: int  # taken before the iteration's own


def decide(state: DriftState, checks: Checks, rules: DriftRules) -> tuple[DriftState, list[str]]:
    """Returns the state from the next iteration on, and what to say of it."""
    said: list[str] = []
    if checks.free is not None and rules.react != "never":
        frozen = [state.correction.undo(v).tolist() for v in checks.values]
        recent = (*state.recent, [frozen, list(checks.rewards)])[-REFIT_ITERATIONS:]
        state = replace(state, recent=recent)
        if level_is_off(checks.free):
            values = [np.array(v) for of_iteration, _ in recent for v in of_iteration]
            fitted = fit_correction(values, [r for _, of_iteration in recent for r in of_iteration])
            state = replace(state, slope=fitted.slope, shift=fitted.shift)
            said.append(
                f"drift: bias {checks.free.bias.value:+.3f}, slope {checks.free.slope.value:.2f}; the critic "
                f"is recalibrated from the next iteration on (slope {fitted.slope:.2f}, shift "
                f"{fitted.shift:+.2f}, fitted to the last {len(recent)})"
            )
    if (paid := checks.paid) is None:
        return state, said
    state, after = replace(state, next_check=checks.num_updates + rules.paid_every), checks.num_updates
    if not is_measured(paid):
        said.append(
            f"drift: the check after {after} updates says nothing of steps: no two states in a row, one "
            "cluster, or no step that clearly changed the chance"
        )
    elif steps_are_off(paid):
        state = replace(
            state, steps_off=state.steps_off or rules.react != "never", wants_refresh=state.may_refresh(rules)
        )
        said.append(
            f"drift: after {after} updates Cov(A, Ahat) is {interval_words(paid['cov_a'], 4)} (off at or "
            f"below 0), signs agree in {interval_words(paid['sign_agreement'], 2)}, rho_A is "
            f"{interval_words(paid['rho_a'], 2)}: the critic no longer knows this actor's steps"
            + ("; its step weight is 0 from the next iteration on" if state.steps_off else "")
        )
    return state, said
