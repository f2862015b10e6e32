"""What labels must be before anything is paid for or fitted on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from critics.labels.named_targets import OUTCOME_TURNS, RULES
from critics.labels.soft_targets import kinds_of, soft_target
from pipeline.errors import ArtifactError, ExitCode
from pipeline.steps import check_tiling
from pipeline.types import Label, Rollout, StateRef, Task

EXACT = 1e-9
"""Targets and weights are compared to this."""


def check_labels(
    labels: Sequence[Label],
    rollouts: Sequence[Rollout],
    tasks: Sequence[Task],
    *,
    label_policy_digest: str,
    min_base_rate: float = 0.02,
    max_base_rate: float = 0.98,
) -> dict[str, Any]:
    """Returns counts of the labels (as in `build_labels`' report) once they pass; no others are fitted on.

    Raises:
        ArtifactError: no labels; counts with k > n or negative; a target outside [0, 1], or that its counts
            cannot give; a source that they do not have; a weight that is not finite; a state that its
            rollout does not have or that stands in another context; an outcome on a bare state of a guided
            rollout, of another policy, or that is not the rollout's reward; a null reward; another or
            several label policies; mixed or truncated sampling; steps that do not tile the loss mask; a
            duplicate row; a task in two splits, or of another split than train; a cluster in a test split and
            another one; with code QUALITY, a base rate outside the bounds.
    """

    def refuse(problem: str, remedy: str = "make labels SET=--fresh") -> NoReturn:
        raise ArtifactError(f"labels: {problem}. The critic would learn from wrong targets; run: {remedy}")

    if not labels:
        refuse("there are none")
    splits: dict[str, str] = {}
    rows: dict[str, int] = {}
    sides: dict[tuple[str, str], tuple[int, str]] = {}
    for row, task in enumerate(tasks):
        first = rows.setdefault(task.task_id, row)
        if splits.setdefault(task.task_id, task.split) != task.split:
            refuse(
                f"task {task.task_id} is in splits {splits[task.task_id]} and {task.split} (rows {first} and "
                f"{row} of the tasks)",
                "make tasks SET=--fresh, and all after it",
            )
        unseen = task.split.startswith("test")
        other, its_split = sides.setdefault((task.data_source, task.cluster), (row, task.split))
        if its_split.startswith("test") != unseen:
            refuse(
                f"cluster {task.cluster} is in splits {its_split} and {task.split} (rows {other} and {row} "
                "of the tasks); test splits hold clusters that were never trained on",
                "make tasks SET=--fresh, and all after it",
            )
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    seen: dict[StateRef, int] = {}
    row_of: dict[str, int] = {}
    for row, label in enumerate(labels):
        state = StateRef(label.rollout_id, label.step_index, label.context)
        row_of.setdefault(label.rollout_id, row)
        if (first := seen.setdefault(state, row)) != row:
            refuse(f"{state} has two rows, {first} and {row}")
        if (rollout := by_id.get(label.rollout_id)) is None:
            refuse(f"row {row}: {state} lies in no rollout that was given")
        if label.label_policy_digest != label_policy_digest:
            refuse(
                f"row {row}: {state} is labelled for policy {label.label_policy_digest}, the actor starts "
                f"from {label_policy_digest}"
            )
        if rollout.task_id not in splits:
            refuse(f"row {row}: task {rollout.task_id} of {state} is in no split")
        if splits[rollout.task_id] != "train":
            refuse(
                f"row {row}: task {rollout.task_id} of {state} is of split {splits[rollout.task_id]}, which "
                "critics are audited and actors evaluated on; labels are of train alone"
            )
        for problem in _label_problems(label, rollout):
            refuse(f"row {row}: {state}: {problem}")
    used = [by_id[rollout_id] for rollout_id in row_of]
    for rollout in used:
        for problem in _rollout_problems(rollout, used[0]):
            refuse(
                f"row {row_of[rollout.rollout_id]}: rollout {rollout.rollout_id}: {problem}",
                "make rollouts SET=--fresh, and all after it",
            )
    audit = kinds_of(labels)
    rate = audit["base_rate"]
    if rate is None or not min_base_rate <= rate <= max_base_rate:
        raise ArtifactError(
            f"labels: base rate of success {rate} is outside [{min_base_rate}, {max_base_rate}]: with almost "
            "no success, or no failure, there is nothing for a critic to tell apart. Next: a better starting "
            "policy (make sft), or tasks of another level",
            code=ExitCode.QUALITY,
        )
    return audit


def check_outcomes_differ(rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, code QUALITY, if all graded rollouts have the same reward.

    What `check_labels` would say after the continuations, while nothing has been paid for them.
    """
    rewards = {rollout.reward for rollout in rollouts if rollout.reward is not None}
    if len(rewards) < 2:
        words = {0.0: "succeeded", 1.0: "failed"}
        word = (
            "could be graded"
            if not rewards
            else words.get(min(rewards), f"has another reward than {min(rewards):g}")
        )
        raise ArtifactError(
            f"labels: none of {len(rollouts)} rollouts {word}: there is nothing for a critic to tell apart. "
            "Next: a better starting policy (make sft), or tasks of another level",
            code=ExitCode.QUALITY,
        )


def check_continuations(continuations: Sequence[Rollout], first: Rollout) -> None:
    """Raises ArtifactError, naming the rollout, unless continuations were sampled as the rollouts were.

    Args:
        continuations: that label the states that they came to.
        first: one of the rollouts.
    """
    for row, continuation in enumerate(continuations):
        for problem in _rollout_problems(continuation, first):
            raise ArtifactError(
                f"continuations: row {row}: rollout {continuation.rollout_id}: {problem}. Next: make labels "
                "SET=--fresh from these rollouts"
            )


def _label_problems(label: Label, rollout: Rollout) -> list[str]:
    problems = []
    if not 0 <= label.num_success <= label.num_continuations:
        problems.append(f"{label.num_success:g} successes of {label.num_continuations} continuations")
    if not 0 <= label.target <= 1:  # also catches NaN
        problems.append(f"target {label.target} is outside [0, 1]")
    if not 0 < label.weight < math.inf:
        problems.append(f"weight {label.weight} is not positive and finite")
    if not any(step.step_index == label.step_index for step in rollout.steps):
        problems.append(f"the rollout has no step {label.step_index}")
    if rollout.reward is None:
        problems.append("the rollout could not be graded (null reward)")
    if label.outcome is not None:
        if label.context == "bare" and rollout.guided:
            problems.append("a guided rollout's outcome on a bare state")
        if rollout.policy_digest != label.label_policy_digest:
            problems.append(
                f"the outcome is of policy {rollout.policy_digest}, not {label.label_policy_digest}"
            )
        if label.outcome != rollout.reward:
            problems.append(f"outcome {label.outcome} is not the rollout's reward {rollout.reward}")
        if label.step_index not in OUTCOME_TURNS:
            problems.append("an own outcome where the state may have been chosen by it")
    if label.context != rollout.context:
        problems.append(f"the rollout's context is {rollout.context}")
    return problems or _source_problems(label)


def _source_problems(label: Label) -> list[str]:
    """Returns what target and source claim that the counts do not bear out; a rule's may be any."""
    if label.label_source in RULES:
        return []
    k, n, outcome = label.num_success, label.num_continuations, label.outcome
    source = "continuation" if n else "outcome" if outcome is not None else "recovery"
    if label.label_source != source:
        return [f"its source is {label.label_source}, its counts make it {source}"]
    kappa = label.weight - n - (outcome is not None)
    if kappa < -EXACT:
        return [f"weight {label.weight} is less than its {n + (outcome is not None)} samples"]
    low, high = (soft_target(k, n, outcome, prior, max(kappa, 0.0)) for prior in (0.0, max(kappa, 0.0)))
    if not low - EXACT <= label.target <= high + EXACT:
        of = f"{k:g} of {n} continuations" + ("" if outcome is None else f", outcome {outcome:g}")
        return [f"target {label.target} cannot come of {of} and {kappa:g} pseudo-counts"]
    return []


def _rollout_problems(rollout: Rollout, first: Rollout) -> list[str]:
    problems = []
    sampling = (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens)
    expected = (first.temperature, first.top_p, first.top_k, first.max_response_tokens)
    if sampling != expected:
        problems.append(
            f"sampled with (temperature, top_p, top_k, budget) {sampling}, others with {expected}"
        )
    if rollout.top_p != 1 or rollout.top_k != -1:
        problems.append(f"truncated sampling: top_p {rollout.top_p}, top_k {rollout.top_k}")
    try:
        check_tiling(rollout)
    except ValueError as error:
        problems.append(str(error))
    return problems
