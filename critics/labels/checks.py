"""What labels must be before anything is paid for or fitted on them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from critics.labels.named_targets import OUTCOME_STEPS, RULES
from critics.labels.soft_targets import label_counts, soft_target, source_of
from pipeline.errors import ArtifactError, ExitCode
from pipeline.steps import check_tiling
from pipeline.types import Label, Rollout, StateRef, Task

EXACT = 1e-9
"""Targets and weights are compared to this."""
MIN_BASE_RATE, MAX_BASE_RATE = 0.02, 0.98
REMEDY = "make labels SET=--fresh"


def check_labels(
    labels: Sequence[Label], rollouts: Sequence[Rollout], tasks: Sequence[Task], *, label_policy_digest: str
) -> dict[str, Any]:
    """Returns `kinds_of` the labels once they pass; no others are fitted on.

    Raises ArtifactError, naming the row, for what cannot be or would mislead; with code QUALITY for a base
    rate of success out of bounds.
    """
    if not labels:
        _refuse("there are none")
    splits = _splits_of(tasks)
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    seen: dict[StateRef, int] = {}
    row_of: dict[str, int] = {}
    for row, label in enumerate(labels):
        state = StateRef(label.rollout_id, label.step_index, label.context)
        row_of.setdefault(label.rollout_id, row)
        if (first := seen.setdefault(state, row)) != row:
            _refuse(f"{state} has two rows, {first} and {row}")
        if (rollout := by_id.get(label.rollout_id)) is None:
            _refuse(f"row {row}: {state} lies in no rollout that was given")
        if label.label_policy_digest != label_policy_digest:
            _refuse(
                f"row {row}: {state} is labelled for policy {label.label_policy_digest}, the actor starts "
                f"from {label_policy_digest}"
            )
        if (split := splits.get(rollout.task_id)) is None:
            _refuse(f"row {row}: task {rollout.task_id} of {state} is in no split")
        if split != "train":
            _refuse(
                f"row {row}: task {rollout.task_id} of {state} is of split {split}, which "
                "critics are audited and actors evaluated on; labels are of train alone"
            )
        if problem := _label_problem(label, rollout):
            _refuse(f"row {row}: {state}: {problem}")
    used = [by_id[rollout_id] for rollout_id in row_of]
    for rollout in used:
        if problem := _rollout_problem(rollout, used[0]):
            _refuse(
                f"row {row_of[rollout.rollout_id]}: rollout {rollout.rollout_id}: {problem}",
                "make rollouts SET=--fresh, and all after it",
            )
    kinds = kinds_of(labels)
    _check_base_rate(kinds["base_rate"], "")
    return kinds


def _check_base_rate(rate: float | None, of: str) -> None:
    if rate is None or not MIN_BASE_RATE <= rate <= MAX_BASE_RATE:
        raise ArtifactError(
            f"labels: base rate of success {rate}{of} is outside [{MIN_BASE_RATE}, {MAX_BASE_RATE}]: with "
            "almost no success, or no failure, there is nothing for a critic to tell apart. Next: a better "
            "starting policy (make sft), or tasks of another level",
            code=ExitCode.QUALITY,
        )


def kinds_of(labels: Sequence[Label]) -> dict[str, Any]:
    """Returns counts of what kinds of labels there are."""
    pairs = [label_counts(label) for label in labels]
    total = sum(n for _, n in pairs)
    return {
        "num_labels": len(labels),
        "num_by_source": dict(sorted(Counter(label.label_source for label in labels).items())),
        "num_samples": total,
        "base_rate": sum(k for k, _ in pairs) / total if total else None,
        "mean_target": float(np.mean([label.target for label in labels])),
    }


def check_outcomes_differ(rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, code QUALITY, if graded rollouts have all the same reward, or nearly so.

    What `check_labels` would say after the continuations, while nothing has been paid for them: of all states
    that an own outcome labels.
    """
    graded = [(r, r.reward) for r in rollouts if r.reward is not None]
    rewards = {reward for _, reward in graded}
    if len(rewards) >= 2:
        own = [reward for r, reward in graded for step in r.steps if step.step_index in OUTCOME_STEPS]
        _check_base_rate(float(np.mean(own)) if own else None, f" in {len(graded)} graded rollouts")
        return
    word = "could be graded"
    if rewards:
        [only] = rewards
        word = {0.0: "succeeded", 1.0: "failed"}.get(only, f"has another reward than {only:g}")
    raise ArtifactError(
        f"labels: none of {len(rollouts)} rollouts {word}: there is nothing for a critic to tell apart. "
        "Next: a better starting policy (make sft), or tasks of another level",
        code=ExitCode.QUALITY,
    )


def check_continuations(continuations: Sequence[Rollout], first: Rollout) -> None:
    """Raises ArtifactError, naming the continuation, unless they were sampled as `first`, a rollout, was."""
    for row, continuation in enumerate(continuations):
        if problem := _rollout_problem(continuation, first):
            raise ArtifactError(
                f"continuations: row {row}: rollout {continuation.rollout_id}: {problem}. Next: {REMEDY} "
                "from these rollouts"
            )


def _refuse(problem: str, remedy: str = REMEDY) -> NoReturn:
    raise ArtifactError(f"labels: {problem}. The critic would learn from wrong targets; run: {remedy}")


def _splits_of(tasks: Sequence[Task]) -> Mapping[str, str]:
    """Returns task_id -> split; refuses a task of two splits, and a cluster of a test split and another."""
    remedy = "make tasks SET=--fresh, and all after it"
    splits: dict[str, tuple[int, str]] = {}
    sides: dict[tuple[str, str], tuple[int, str]] = {}
    for row, task in enumerate(tasks):
        first, split = splits.setdefault(task.task_id, (row, task.split))
        if split != task.split:
            _refuse(
                f"task {task.task_id} is in splits {split} and {task.split} (rows {first} and {row} of the "
                "tasks)",
                remedy,
            )
        first, split = sides.setdefault((task.data_source, task.cluster), (row, task.split))
        if split.startswith("test") != task.split.startswith("test"):
            _refuse(
                f"cluster {task.cluster} is in splits {split} and {task.split} (rows {first} and {row} of "
                "the tasks); test splits hold clusters that were never trained on",
                remedy,
            )
    return {task_id: split for task_id, (_, split) in splits.items()}


def _label_problem(label: Label, rollout: Rollout) -> str | None:
    if not 0 <= label.num_success <= label.num_continuations:
        return f"{label.num_success:g} successes of {label.num_continuations} continuations"
    if not 0 <= label.target <= 1:  # also catches NaN
        return f"target {label.target} is outside [0, 1]"
    if not 0 < label.weight < math.inf:
        return f"weight {label.weight} is not positive and finite"
    if not any(step.step_index == label.step_index for step in rollout.steps):
        return f"the rollout has no step {label.step_index}"
    if rollout.reward is None:
        return "the rollout could not be graded (null reward)"
    if label.outcome is not None:
        if label.context == "bare" and rollout.guided:
            return "a guided rollout's outcome on a bare state"
        if rollout.policy_digest != label.label_policy_digest:
            return f"the outcome is of policy {rollout.policy_digest}, not {label.label_policy_digest}"
        if label.outcome != rollout.reward:
            return f"outcome {label.outcome} is not the rollout's reward {rollout.reward}"
        if label.step_index not in OUTCOME_STEPS:
            return "an own outcome where the state may have been chosen by it"
    if label.context != rollout.context:
        return f"the rollout's context is {rollout.context}"
    # The target of a rule may be any; one of counts follows from them.
    return None if label.label_source in RULES else _soft_problem(label)


def _soft_problem(label: Label) -> str | None:
    k, n, outcome = label.num_success, label.num_continuations, label.outcome
    if label.label_source != (source := source_of(n, outcome)):
        return f"its source is {label.label_source}, its counts make it {source}"
    kappa = label.weight - n - (outcome is not None)
    if kappa < -EXACT:
        return f"weight {label.weight} is less than its {n + (outcome is not None)} samples"
    low, high = (soft_target(k, n, outcome, prior, max(kappa, 0.0)) for prior in (0.0, max(kappa, 0.0)))
    if not low - EXACT <= label.target <= high + EXACT:
        of = f"{k:g} of {n} continuations" + ("" if outcome is None else f", outcome {outcome:g}")
        return f"target {label.target} cannot come of {of} and {kappa:g} pseudo-counts"
    return None


def _rollout_problem(rollout: Rollout, first: Rollout) -> str | None:
    sampling = (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens)
    expected = (first.temperature, first.top_p, first.top_k, first.max_response_tokens)
    if sampling != expected:
        return f"sampled with (temperature, top_p, top_k, budget) {sampling}, others with {expected}"
    if rollout.top_p != 1 or rollout.top_k != -1:
        return f"truncated sampling: top_p {rollout.top_p}, top_k {rollout.top_k}"
    try:
        check_tiling(rollout)
    except ValueError as error:
        return str(error)
    return None
