"""Watches the frozen critic while the actor trains: corrected values, checks, and what follows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from critics.audit.data import audited_states
from critics.drift.checks import Correction, free_check, is_measured, level_is_off, paid_check, steps_are_off
from critics.drift.state import Checks, DriftRules, DriftState, decide
from critics.frozen.critic import FrozenCritic
from critics.labels.samples import rewards_of
from pipeline.credit import Credit, VDapo
from pipeline.ids import seed_of
from pipeline.statistics import Interval, interval_dict
from pipeline.types import Rollout, Task

PREFIX = "critic_drift/"


@dataclass
class Watch:
    """A critic, as frozen or as refreshed, under watch."""

    critic: FrozenCritic
    rules: DriftRules
    tasks: Mapping[str, Task]  # by id
    seed: int
    say: Callable[[str], None]
    state: DriftState  # everything that later iterations depend on

    def values(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Returns the corrected values [T] of each rollout's states."""
        return [self.state.correction(v) for v in self.critic.values(rollouts)]

    def start_values(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns the corrected V(s_0) [N] of bare prompts in token ids."""
        return self.state.correction(self.critic.start_values(prompts))

    @property
    def whose_values(self) -> str:
        """What the values table calls the estimates: the critic's digest, and the correction if one is on."""
        how = f" slope={self.state.slope!r} shift={self.state.shift!r}"
        return self.critic.digest + (how if self.state.correction != Correction() else "")

    def credit(self, credit: Credit) -> Credit:
        """Returns the credit mode with the weight that the checks so far allow."""
        if not isinstance(credit, VDapo) or not credit.alpha:
            return credit
        adv_rmse = credit.adv_rmse if self.state.adv_rmse is None else self.state.adv_rmse
        return replace(credit, adv_rmse=adv_rmse, alpha=0.0 if self.state.steps_off else credit.alpha)

    def is_due(self, num_updates: int, credit: Credit) -> bool:
        """Returns whether a paid check is due before the next update."""
        alpha = credit.alpha if isinstance(credit, VDapo) else 0.0
        return self.state.check_is_due(num_updates, alpha, self.rules)

    def after(
        self,
        rollouts: Sequence[Rollout],
        values: Mapping[str, np.ndarray],  # rollout_id -> [T] as credit was given with them
        checked: Sequence[Rollout],  # continuations of a paid check; nothing if none was due
        num_updates: int,  # taken before the iteration's
        credit: Credit,
    ) -> dict[str, float]:
        """Returns an iteration's checks as metrics, and decides what holds from the next one on."""
        bare = [r for r in rollouts if is_bare(r)]
        own, rewards = [values[r.rollout_id] for r in bare], [float(r.reward or 0.0) for r in bare]
        clusters = [self.tasks[r.task_id].cluster for r in bare]
        free = free_check(own, rewards, clusters, seed=self.seed) if bare else None
        metrics: dict[str, float] = {}
        if free is not None:
            metrics = _metrics({"bias": free.bias, "slope": free.slope}) | {
                f"{PREFIX}rollouts": float(free.num_rollouts),
                f"{PREFIX}correction_slope": self.state.slope,
                f"{PREFIX}correction_shift": self.state.shift,
                f"{PREFIX}level_off": float(level_is_off(free)),
            }
        paid = None
        if checked:
            exact = {r.rollout_id: [math.nan] * len(r.steps) for r in bare}  # nobody knows it
            audit = audited_states(bare, rewards_of(checked, values), values, self.tasks, solver_values=exact)
            paid = paid_check(audit, seed=self.seed)
            metrics |= {f"{PREFIX}states": float(len(audit))} | _metrics(paid)
            if is_measured(paid):
                metrics[f"{PREFIX}steps_off"] = float(steps_are_off(paid))
        if isinstance(credit, VDapo):
            metrics[f"{PREFIX}alpha"] = credit.alpha
        self.state, said = decide(self.state, Checks(own, rewards, free, paid, num_updates), self.rules)
        for sentence in said:
            self.say(sentence)
        return metrics


def is_bare(rollout: Rollout) -> bool:
    """Returns whether a rollout can be checked: played from a prompt without feedback, graded, not empty."""
    return not rollout.guided and rollout.reward is not None and bool(rollout.steps)


def chosen_for_check(rollouts: Sequence[Rollout], num_states: int) -> list[Rollout]:
    """Returns whole bare rollouts, chosen by their seeds, until they have enough states."""
    chosen: list[Rollout] = []
    for rollout in sorted(filter(is_bare, rollouts), key=lambda r: seed_of("drift", r.seed)):
        if sum(len(r.steps) for r in chosen) >= num_states:
            break
        chosen.append(rollout)
    return chosen


def _metrics(found: Mapping[str, Interval]) -> dict[str, float]:
    """Returns intervals as metrics: value, and `_low`, `_high` where known."""
    return {
        f"{PREFIX}{name}" + ("" if part == "value" else f"_{part}"): number
        for name, interval in found.items()
        for part, number in interval_dict(interval).items()
        if number is not None
    }
