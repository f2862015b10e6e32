"""The upper bound of any critic: the present actor's chance of success from each state, by trying."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from env.play.team import Team
from pipeline.steps import state_tokens
from pipeline.types import Rollout
from stages.wiring.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Oracle:
    """Values of an iteration's states as means of fresh continuations.

    V is the present actor's: it is what the policy gradient asks for, and its weights are in the engine. A
    solver's V* is the value of perfect play that knows the hidden rules: of no policy here.
    """

    sampling: Sampling
    team: Team
    iteration: int
    each: int  # continuations of a rollout's state
    played: list[Rollout] = field(default_factory=list)  # all of them so far

    @property
    def whose_values(self) -> str:
        """What the values table calls the estimates."""
        return f"{self.each} continuations by {self.team.recipe.policy_digest}"

    def values(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Returns the values [T] of each rollout's states; rollouts that share a state share its samples."""
        fresh = self.sampling.continue_all(self.team, rollouts, self.iteration, each=self.each)
        self.played.extend(fresh)
        rewards: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for continuation in fresh:
            if continuation.reward is not None:
                rewards[continuation.prompt_token_ids].append(continuation.reward)
        every = [reward for some in rewards.values() for reward in some]
        mean = fmean(every) if every else 0.5  # of a state whose continuations all failed: it says nothing
        return [
            np.array(
                [fmean(rewards[state_tokens(rollout, step.step_index)] or [mean]) for step in rollout.steps]
            )
            for rollout in rollouts
        ]
