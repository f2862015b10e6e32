"""States with samples that a fit is judged or calibrated on."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critics.labels.soft_targets import label_counts, soft_target
from critics.privileged import counts_of
from critics.readouts import value_positions
from pipeline.errors import ArtifactError, ExitCode
from pipeline.training import Trainer, TrainingRow
from pipeline.types import Label, Rollout


@dataclass(frozen=True, slots=True)
class HeldOut:
    """States that the critic is looked at on, one entry in every array [N]; `fresh`: continuations alone."""

    rows: tuple[TrainingRow, ...]  # forward passes, one for each rollout with a state
    row: np.ndarray  # which of these the state lies in
    position: np.ndarray  # token at which it is read
    step_index: np.ndarray
    context: np.ndarray
    task_id: np.ndarray
    num_success: np.ndarray
    num_samples: np.ndarray  # >= 1
    fresh_success: np.ndarray
    fresh_samples: np.ndarray
    told: np.ndarray  # `Counts` of the verdicts before the state

    def logits(self, trainer: Trainer) -> np.ndarray:
        """Returns the raw value logits z [N] of a trainer's present weights."""
        scores = [outputs["scores"][:, 0] for outputs in trainer.forward(list(self.rows))]
        return np.array(
            [scores[r][t] for r, t in zip(self.row, self.position, strict=True)], dtype=np.float64
        )


Counts = tuple[float, int, float, int]
"""k and n of all samples of a state, and of fresh ones."""


def held_out(rollouts: Sequence[Rollout], labels: Sequence[Label]) -> HeldOut:
    """Returns the labelled states of the rollouts that have at least one sample.

    Beside continuations an own outcome has the share of `soft_target`: as one of n + 1 samples it would weigh
    less where continuations were asked for, so just before errors, and what is held out would be too hopeful.
    """
    counts: dict[str, dict[int, Counts]] = defaultdict(dict)
    for label in labels:
        k, n = label_counts(label)
        fresh = label.num_success, label.num_continuations
        if fresh[1] and label.outcome is not None:
            k = n * soft_target(*fresh, label.outcome, 0.0, 0.0)
        if n > 0:
            counts[label.rollout_id][label.step_index] = (k, n, *fresh)
    return _held_out(rollouts, counts)


def outcome_states(rollouts: Sequence[Rollout]) -> HeldOut:
    """Returns every state of the graded rollouts, each with the rollout's own outcome as its one sample.

    What calibrates. A state lies here because its rollout came by, whatever came after, as in an audit and in
    the actor's training. Continuations are asked for at states that are chosen by how the rollout went
    on, which tells of what the state does not show: of a task that is harder than it looks, for one.
    """
    counts = {
        r.rollout_id: {step.step_index: (r.reward, 1, 0.0, 0) for step in r.steps}
        for r in rollouts
        if r.reward is not None
    }
    return _held_out(rollouts, counts)


def _held_out(rollouts: Sequence[Rollout], counts: Mapping[str, Mapping[int, Counts]]) -> HeldOut:
    """Returns the states of `counts`, rollout_id -> step_index -> counts, in order."""
    rows: list[TrainingRow] = []
    entries: list[tuple[Any, ...]] = []
    for rollout in rollouts:
        if not (of := counts.get(rollout.rollout_id)):
            continue
        at, told = value_positions(rollout), counts_of(rollout)
        for i in sorted(of):
            place = i - rollout.start_step_index
            entries.append((len(rows), at[place], i, rollout.context, rollout.task_id, *of[i], told[place]))
        tokens = np.array(rollout.token_ids, dtype=np.int32)
        rows.append(TrainingRow(tokens, {"weight": np.zeros(len(tokens), dtype=np.float32)}))
    nothing = [np.zeros(0, dtype=np.int64)] * 10
    return HeldOut(tuple(rows), *([np.array(column) for column in zip(*entries, strict=True)] or nothing))


def check_enough(fit_rows: Sequence[TrainingRow], validation: HeldOut, *, continued: bool) -> None:
    """Raises ArtifactError if there is nothing to fit, or nothing to judge convergence on.

    That takes 2 tasks, and samples that do not all end alike (else with code QUALITY): any values fit such
    samples once their level is right, so a fit would seem to have converged whatever it had learned.
    `continued` says whether states were, which decides what makes more labels.
    """
    num_tasks = len(set(validation.task_id.tolist()))
    if not fit_rows or num_tasks < 2:
        raise ArtifactError(
            f"{len(fit_rows)} labelled rollouts to fit and {num_tasks} validation tasks with a sampled "
            "state; at least 1 and 2 are needed. Next: more rollouts (rollouts.num_tasks), "
            + "more continued states (labels.max_states), " * continued
            + "tasks of more clusters (section tasks), or other critic.fit_share and critic.validate_share"
        )
    won, sampled = float(validation.num_success.sum()), int(validation.num_samples.sum())
    if won <= 0 or math.isclose(won, sampled):
        raise ArtifactError(
            f"all {sampled} samples of the {num_tasks} validation tasks {'succeed' if won else 'fail'}; "
            "convergence can be judged on samples that end differently. Next: tasks of another difficulty "
            "(tasks.level_shares), another starting policy, or more clusters and a larger "
            "critic.validate_share",
            code=ExitCode.QUALITY,
        )
