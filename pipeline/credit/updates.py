"""An iteration's rollouts as baseline sets, and what each optimizer step trains on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import get_args

import numpy as np

from pipeline.credit.options import Aggregation
from pipeline.credit.protocol import Credit
from pipeline.credit.reliance import reliance
from pipeline.credit.sets import UNIFORM, CreditSet, SetKind, baseline_sets, credit_set, thinned
from pipeline.credit.stripped import Gain, Strip, gains_over_bare, total_and_scale
from pipeline.ids import seed_of
from pipeline.types import Rollout

ScoredSet = tuple[list[Rollout], CreditSet]
"""A baseline set, as rollouts and as credit sees it."""
ValuesOf = Callable[[Sequence[Rollout]], list[np.ndarray]]
"""Rollouts -> [T_i] calibrated critic values of each."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimizer step trains on: the kept sets, and stripped rollouts beside them.

    Attributes:
        set_weights: how many candidate sets each of them stands for, see `sets.thinned`.
        num_tokens: trainable tokens of all candidates, dropped ones included: the loss is a mean over them.
        num_rollouts: of all candidates.
        stripped: guided successes on the bare prompt, with their advantage.
    """

    sets: list[ScoredSet]
    set_weights: list[float]
    num_tokens: int
    num_rollouts: int
    stripped: list[Gain] = field(default_factory=list)

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts of the kept sets, in their order, then the stripped ones."""
        return [*(rollout for members, _ in self.sets for rollout in members), *(r for r, _ in self.stripped)]

    def token_weights(self, aggregation: Aggregation) -> list[float]:
        """Returns for each rollout the weight of each of its trainable tokens in the update's loss.

        "token": set weight / tokens of all candidates; "rollout": set weight / (tokens of the rollout *
        rollouts of all candidates). They sum to 1 over the update's tokens; with thinning, in expectation.
        Stripped rollouts have a part of that 1, see `stripped.total_and_scale`.
        """
        by_token = aggregation == "token"
        more = sum(r.num_trainable_tokens for r, _ in self.stripped) if by_token else len(self.stripped)
        total, scale = total_and_scale(self.num_tokens if by_token else self.num_rollouts, more)
        weighed = [(r, w) for (of, _), w in zip(self.sets, self.set_weights, strict=True) for r in of]
        weighed += [(r, scale) for r, _ in self.stripped]
        return [weight / (total if by_token else r.num_trainable_tokens * total) for r, weight in weighed]

    def stripped_shares(self, aggregation: Aggregation) -> dict[str, float]:
        """Returns the stripped rollouts' share of rows, trainable tokens and weight; nothing without any."""
        if not self.stripped:
            return {}
        sizes = np.array([r.num_trainable_tokens for r in self.rollouts])
        parts = {
            "rows": np.ones(len(sizes)),
            "tokens": sizes,
            "weight": sizes * self.token_weights(aggregation),
        }
        own = slice(-len(self.stripped), None)
        return {f"stripped/{name}": float(part[own].sum() / part.sum()) for name, part in parts.items()}


def scored(rollouts: Iterable[Rollout], values_of: ValuesOf) -> dict[str, np.ndarray]:
    """Returns rollout_id -> [T] critic values of the rollouts that can be in a baseline set."""
    members = [rollout for of_set in baseline_sets(list(rollouts)) for rollout in of_set]
    return {r.rollout_id: v for r, v in zip(members, values_of(members), strict=True)}


@dataclass(frozen=True, slots=True)
class BaselineSets:
    """An iteration's rollouts as baseline sets."""

    rollouts: list[Rollout]  # everything that was sampled, surplus included
    values: dict[str, np.ndarray] | None  # rollout_id -> [T] calibrated critic values
    candidates: list[ScoredSet]  # the sets that the credit mode can learn from
    left_out: Counter[SetKind]  # kind -> number of the others
    stripped: list[Gain]  # beside them; nothing if guided rollouts are in sets of their own
    not_stripped: Counter[str]  # reason -> guided successes that teach nothing on the bare prompt

    @classmethod
    def of(
        cls,
        rollouts: Iterable[Rollout],
        values: Mapping[str, np.ndarray] | None,
        credit: Credit,
        strip: Strip | None = None,
    ) -> BaselineSets:
        """Returns these rollouts as `credit` sees them, with values from `scored`, None without a critic.

        With `strip` sets are of bare rollouts alone, and guided successes lose their feedback.
        """
        rollouts = list(rollouts)
        candidates: list[ScoredSet] = []
        left_out: Counter[SetKind] = Counter()
        stripped, not_stripped = list[Gain](), Counter[str]()
        if strip is not None:
            found, told = strip(rollouts)
            stripped = gains_over_bare(found, rollouts)
            not_stripped.update(told_by_feedback=told, bare_succeeds=len(found) - len(stripped))
        for members in baseline_sets([r for r in rollouts if strip is None or not r.guided]):
            seen = credit.view(members)
            s = credit_set(seen or members, values=values, overlong_factor=credit.overlong_factor)
            if seen and credit.trains_on(s):
                candidates.append((seen, s))
            else:
                left_out[s.kind] += 1
        values = None if values is None else dict(values)
        return cls(rollouts, values, candidates, left_out, stripped, not_stripped)

    @property
    def _kept_tasks(self) -> set[str]:
        return {members[0].task_id for members, s in self.candidates if s.kind not in UNIFORM}

    @property
    def num_kept_tasks(self) -> int:
        """Tasks that dynamic sampling counts: with a set of rewards that differ, or a usable set of one."""
        return len(self._kept_tasks)

    def updates(self, num: int, *, max_uniform_share: float, seed: int) -> list[Update]:
        """Returns `num` updates of whole tasks, each thinned; tasks that count are spread evenly.

        Stripped rollouts go with their task, those of a task without a set to any update.
        """
        counted = self._kept_tasks
        tasks = {members[0].task_id for members, _ in self.candidates}
        order = sorted(
            tasks | {r.task_id for r, _ in self.stripped},
            key=lambda task: (task not in tasks, task not in counted, seed_of(seed, "part", task)),
        )
        place = {task: i % num for i, task in enumerate(order)}
        found = []
        for part in range(num):
            sets = [pair for pair in self.candidates if place[pair[0][0].task_id] == part]
            weights = thinned(
                [s.kind for _, s in sets],
                [seed_of(seed, "thinning", members[0].seed) for members, _ in sets],
                max_uniform_share=max_uniform_share,
            )
            found.append(
                Update(
                    list(compress(sets, weights)),
                    [float(weight) for weight in weights if weight],
                    sum(r.num_trainable_tokens for members, _ in sets for r in members),
                    sum(len(members) for members, _ in sets),
                    [pair for pair in self.stripped if place[pair[0].task_id] == part],
                )
            )
        return found

    def passes(self, passes: int, num: int, *, max_uniform_share: float, seed: int) -> list[list[Update]]:
        """Returns the updates of each pass: the first as `updates` has it, later ones cut and thinned anew.

        An update with nothing to train on is there only of an iteration that has no other, so that it counts
        once: few tasks are dealt to the first updates.
        """
        seeds = [seed, *(seed_of(seed, "pass", i) for i in range(1, passes))]
        first, *later = (self.updates(num, max_uniform_share=max_uniform_share, seed=s) for s in seeds)
        trained = [[update for update in of_pass if update.rollouts] for of_pass in (first, *later)]
        return trained if trained[0] else [first[:1], *trained[1:]]

    def metrics(self, continuations: Sequence[Rollout] = ()) -> dict[str, float]:
        """Returns what the iteration looks like, under the names that verl and TRL users know.

        Means are of whole rollouts, without the branches of trees; counts are of all, and apart of the
        continuations that were sampled beside them. `critic/rise`, where there is a critic: mean of
        V_{T-1} - V_0 over graded rollouts, how much better it thinks of them before their last step than at
        their start. No outcome is in it.
        """
        graded = [(r, r.reward) for r in self.rollouts if r.reward is not None and r.kind == "whole"]
        means: dict[str, list[float]] = {
            "critic/rewards/mean": [reward for _, reward in graded],
            "rollouts/first_try": [reward for r, reward in graded if not r.guided],
            "rollouts/with_feedback": [reward for r, reward in graded if r.guided],
            "response_length/mean": [float(r.num_trainable_tokens) for r, _ in graded] or [0.0],
            "response_length/clip_ratio": [float(r.finish_reason == "max_tokens") for r, _ in graded]
            or [0.0],
            "steps/mean": [float(len(r.steps)) for r, _ in graded] or [0.0],
            "critic/rise": [float(V[-1] - V[0]) for V in (self.values or {}).values()],
        }
        kinds = Counter(s.kind for _, s in self.candidates)
        asked = Counter(r.feedback_status for r in self.rollouts if r.feedback_status)
        return {
            **{name: float(np.mean(numbers)) for name, numbers in means.items() if numbers},
            "rollouts/ungraded": float(sum(r.reward is None for r in self.rollouts)),
            "rollouts/count": float(len(self.rollouts)),
            "rollouts/sampled_tokens": float(sum(r.num_trainable_tokens for r in self.rollouts)),
            "continuations/count": float(len(continuations)),
            "continuations/sampled_tokens": float(sum(r.num_trainable_tokens for r in continuations)),
            "sets/kept": float(len(self.candidates)),
            "sets/kept_mixed": float(kinds["mixed"]),
            "sets/kept_tasks": float(self.num_kept_tasks),
            **{f"sets/left_out/{kind}": float(self.left_out[kind]) for kind in get_args(SetKind)},
            **{f"feedback/{status}": float(number) for status, number in asked.items()},
            **reliance(self.rollouts),
            **{f"stripped/left_out/{reason}": float(n) for reason, n in self.not_stripped.items()},
            **({"stripped/count": float(len(self.stripped))} if self.not_stripped else {}),
        }
