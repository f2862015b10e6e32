"""Whether engine and trainer compute the same policy; nothing of an iteration counts before they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from env.play.player import sampled_after_prompts
from env.play.team import Team
from pipeline.training import Trainer
from pipeline.training.policy_update import engine_trainer_gap, logprob_gap
from pipeline.types import Rollout, Task
from stages.wiring.refusals import refuse_disagreement

NUM_PROMPTS, PROMPT_TOKENS = 8, 16  # compared after every weight sync
NUM_ROLLOUTS = 16  # of an iteration


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the engine said right after a weight sync, for the trainer to say as well.

    The trainer is asked later, when it has its turn anyway: two more turns would move weights, moments and
    cache of every GPU twice.
    """

    probe: Any  # prompts, and what was sampled after each
    trainer: Trainer
    iteration: int
    half_precision: bool

    @classmethod
    def asked(
        cls, team: Team, tasks: Sequence[Task], trainer: Trainer, iteration: int, *, half_precision: bool
    ) -> Self:
        """Asks the engine."""
        prompts = partial(sampled_after_prompts, tasks[:NUM_PROMPTS], PROMPT_TOKENS)
        return cls(team.ask(prompts), trainer, iteration, half_precision)

    def on_probe(self) -> float:
        """Returns the gap on the prompts, in nats a token; ArtifactError, code QUALITY, if it is too wide."""
        return self._small(engine_trainer_gap(self.trainer, self.probe))

    def on_rollouts(self, rollouts: Sequence[Rollout]) -> float:
        """Returns the gap on some rollouts of the iteration, as `on_probe` does."""
        return self._small(logprob_gap(self.trainer, rollouts[:NUM_ROLLOUTS]))

    def _small(self, gap: float) -> float:
        refuse_disagreement(gap, self.iteration, half_precision=self.half_precision)
        return gap
