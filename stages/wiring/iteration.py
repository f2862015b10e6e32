"""From an iteration's rollouts to optimizer steps: baseline sets, credit, rows. Blind to the credit mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from pipeline.credit import Credit, CreditSet, SetKind, baseline_sets, credit_set
from pipeline.engines import Engine, GenerationRequest
from pipeline.ids import seed_of
from pipeline.training import Trainer, TrainingRow
from pipeline.training.rows import policy_rows, with_column
from pipeline.types import Rollout

PROBE_TOKENS = 16  # sampled after each fixed prompt

ValuesOf = Callable[[Sequence[Rollout]], list[np.ndarray]]
"""Rollouts -> [T_i] calibrated critic values of each."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An iteration's rollouts as baseline sets.

    Attributes:
        rollouts: everything that was sampled, surplus included.
        values: rollout_id -> [T] calibrated critic values; None without a critic.
        kept: the sets that are trained on, as rollouts and as credit sees them.
        left_out: kind -> number of the sets that credit does not train on.
    """

    rollouts: list[Rollout]
    values: dict[str, np.ndarray] | None
    kept: list[tuple[list[Rollout], CreditSet]]
    left_out: Counter[SetKind]

    @classmethod
    def of(cls, rollouts: Iterable[Rollout], values_of: ValuesOf | None, credit: Credit) -> Batch:
        """Returns the batch that `credit` keeps of these rollouts."""
        rollouts = list(rollouts)
        sets = baseline_sets(rollouts)
        scored = [rollout for members in sets for rollout in members]
        values = None
        if values_of is not None:
            values = {r.rollout_id: v for r, v in zip(scored, values_of(scored), strict=True)}
        credit_sets = [credit_set(members, values=values) for members in sets]
        keep = credit.keep(credit_sets)
        kept = [pair for pair, kept in zip(zip(sets, credit_sets, strict=True), keep, strict=True) if kept]
        left_out = Counter(s.kind for s, kept in zip(credit_sets, keep, strict=True) if not kept)
        return cls(rollouts, values, kept, left_out)

    @property
    def trained_on(self) -> list[Rollout]:
        """The rollouts of all kept sets."""
        return [rollout for members, _ in self.kept for rollout in members]

    @property
    def num_kept_tasks(self) -> int:
        """Tasks with at least one kept set."""
        return len({members[0].task_id for members, _ in self.kept})

    def metrics(self) -> dict[str, float]:
        """Returns what the iteration looks like, under the names that verl and TRL users know.

        `critic/rise`, where there is a critic: mean of V_{T-1} - V_0 over graded rollouts, how much better it
        thinks of them before their last step than at their start. No outcome is in it.
        """
        graded = [r for r in self.rollouts if r.reward is not None]
        first = [float(r.reward or 0) for r in graded if not r.guided]
        later = [float(r.reward or 0) for r in graded if r.guided]
        lengths = [r.num_trainable_tokens for r in graded]
        steps = [len(r.steps) for r in graded]
        metrics = {
            "critic/rewards/mean": float(np.mean([r.reward for r in graded])) if graded else float("nan"),
            "rollouts/first_try": float(np.mean(first)) if first else float("nan"),
            "rollouts/with_feedback": float(np.mean(later)) if later else float("nan"),
            "rollouts/ungraded": float(len(self.rollouts) - len(graded)),
            "response_length/mean": float(np.mean(lengths)) if lengths else 0.0,
            "steps/mean": float(np.mean(steps)) if steps else 0.0,
            "response_length/clip_ratio": float(np.mean([r.finish_reason == "max_tokens" for r in graded]))
            if graded
            else 0.0,
            "rollouts/count": float(len(self.rollouts)),
            "rollouts/sampled_tokens": float(sum(r.num_trainable_tokens for r in self.rollouts)),
            "sets/kept": float(len(self.kept)),
            "sets/kept_tasks": float(self.num_kept_tasks),
            **{f"sets/left_out/{kind}": float(self.left_out[kind]) for kind in get_args(SetKind)},
        }
        if self.values:
            metrics["critic/rise"] = float(np.mean([V[-1] - V[0] for V in self.values.values()]))
        return {name: value for name, value in metrics.items() if not np.isnan(value)}

    def parts(self, num: int, seed: int) -> list[list[tuple[list[Rollout], CreditSet]]]:
        """Returns the kept sets in `num` parts of whole tasks, in an order that follows from the seed."""
        tasks = sorted(
            {members[0].task_id for members, _ in self.kept}, key=lambda t: seed_of(seed, "part", t)
        )
        place = {task: i % num for i, task in enumerate(tasks)}
        return [[pair for pair in self.kept if place[pair[0][0].task_id] == part] for part in range(num)]


def train_on(
    part: list[tuple[list[Rollout], CreditSet]],
    *,
    credit: Credit,
    state: dict[str, float],
    trainer: Trainer,
    reference: Trainer | None,
    old_logprobs: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Takes one optimizer step on some sets; returns metrics and credit's next state.

    Args:
        part: sets of rollouts.
        credit: who gets how much advantage.
        state: credit's, from the update before.
        trainer: of the actor.
        reference: of the reference policy; needed if the loss has a KL term.
        old_logprobs: rollout_id -> the trainer's own log-probabilities before this iteration's updates; None
            takes the engine's, which are the same in fp32.
    """
    from pipeline.training.losses import (
        policy_loss,  # imports torch, which an up-to-date actor must not wait for
    )

    rollouts = [rollout for members, _ in part for rollout in members]
    advantages, metrics, state = credit.credit([credit_set for _, credit_set in part], state)
    rows = policy_rows(rollouts, advantages, aggregation=credit.loss.aggregation)
    if old_logprobs is not None:
        rows = with_column(rows, "old_logprobs", [old_logprobs[r.rollout_id] for r in rollouts])
    if credit.loss.kl > 0:
        assert reference is not None
        rows = with_column(rows, "ref_logprobs", [out["logprobs"] for out in reference.forward(rows)])
    return {**metrics, **trainer.update(rows, policy_loss(credit.loss))}, state


def own_logprobs(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, np.ndarray]:
    """Returns rollout_id -> [T] the trainer's log-probabilities of its sampled tokens, 0 elsewhere."""
    rows = policy_rows(rollouts, [np.zeros(len(r.steps)) for r in rollouts])
    outputs = trainer.forward(rows)
    return {r.rollout_id: out["logprobs"] for r, out in zip(rollouts, outputs, strict=True)}


def probe(engine: Engine, trainer: Trainer, prompts: Sequence[Sequence[int]], stop_token_id: int) -> float:
    """Returns the mean absolute gap of engine and trainer log-probabilities on fixed prompts, in nats.

    Asked right after a hand-off of weights, before anything expensive is sampled with them.
    """
    asked = {
        f"probe:{i}": GenerationRequest(
            f"probe:{i}", prompt, seed=i, max_new_tokens=PROBE_TOKENS, stop_token_ids=(stop_token_id,)
        )
        for i, prompt in enumerate(prompts)
    }
    engine.submit(list(asked.values()))
    rows, sampled = [], []
    while generations := engine.collect():
        for generation in generations:
            prompt = asked[generation.request_id].prompt_token_ids
            want = np.zeros(len(prompt) + len(generation.token_ids), np.float32)
            want[len(prompt) :] = 1
            rows.append(TrainingRow(np.array([*prompt, *generation.token_ids], np.int32), {"want": want}))
            sampled.append(generation.logprobs)
    gaps = [
        np.abs(outputs["logprobs"][-len(logprobs) :] - logprobs)
        for outputs, logprobs in zip(trainer.forward(rows), sampled, strict=True)
    ]
    return float(np.concatenate(gaps).mean())


def logprob_gap(trainer: Trainer, rollouts: Sequence[Rollout]) -> float:
    """Returns the mean absolute gap of engine and trainer log-probabilities on sampled tokens, in nats.

    Only meaningful while the trainer still holds the weights that sampled the rollouts.
    """
    rows = policy_rows(rollouts, [np.zeros(len(r.steps)) for r in rollouts])
    gaps = [
        np.abs(outputs["logprobs"] - row.columns["old_logprobs"])[row.columns["weight"] > 0]
        for row, outputs in zip(rows, trainer.forward(rows), strict=True)
    ]
    return float(np.concatenate(gaps).mean())
