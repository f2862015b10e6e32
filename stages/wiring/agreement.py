"""Whether engine and trainer compute the same policy; nothing of an iteration counts before they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Self

from env.play.player import sampled_after_prompts
from env.play.team import Team
from pipeline.training import Trainer
from pipeline.training.policy_update import engine_trainer_gap, logprob_gap
from pipeline.types import Rollout, Task
from stages.wiring.learner import Learner
from stages.wiring.refusals import MAX_LOGPROB_GAP, refuse_disagreement

NUM_PROMPTS, PROMPT_TOKENS = 8, 16  # compared after every weight sync, unless more replicas got weights
NUM_ROLLOUTS = 16  # of an iteration, or of the last look, evenly spaced, so of most replicas
MAX_PROBE_GAP = MAX_LOGPROB_GAP | {True: 0.2}
"""On the probe alone: in bf16 few tokens make most of a gap, so a mean of so few varies much."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the engine said right after a weight sync, for the trainer to say as well.

    The trainer is asked later, when it has its turn anyway: two more turns would move weights, moments and
    cache of every GPU twice. Until then nothing that the engine samples may be kept.
    """

    team: Team  # of the weights in question
    probe: Any  # prompts, and what was sampled after each
    trainer: Trainer
    iteration: int
    half_precision: bool

    @classmethod
    def asked(cls, learner: Learner, tasks: Sequence[Task], iteration: int, *, half_precision: bool) -> Self:
        """Hands the trainer's weights over and asks the engine."""
        team = learner.synced()
        engine = team.recipe.config.engine
        replicas = engine.replicas if engine.kind == "vllm" else 1  # each with weights of its own
        # The engine spreads them evenly: each replica has one at least, of a task twice if there are few.
        some = list(islice(cycle(tasks), max(min(NUM_PROMPTS, len(tasks)), replicas)))
        probe = team.ask(partial(sampled_after_prompts, some, PROMPT_TOKENS))
        return cls(team, probe, learner.trainer, iteration, half_precision)

    def on(self, rollouts: Sequence[Rollout]) -> float:
        """Returns the gap, in nats a token, on some of what the engine has sampled since, else on the probe.

        Raises ArtifactError, code QUALITY, if it is too wide, or that on the probe is.
        """
        gap = engine_trainer_gap(self.trainer, self.probe)
        refuse_disagreement(gap, self.iteration, MAX_PROBE_GAP[self.half_precision])
        # One whose environment failed at its start, or whose prompt was too long, has no token to compare.
        sampled = [rollout for rollout in rollouts if rollout.num_trainable_tokens]
        if some := sampled[:: max(1, len(sampled) // NUM_ROLLOUTS)][:NUM_ROLLOUTS]:
            gap = logprob_gap(self.trainer, some)
            refuse_disagreement(gap, self.iteration, MAX_LOGPROB_GAP[self.half_precision])
        return gap
