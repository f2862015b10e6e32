"""What a critic is fitted, validated and calibrated on: labelled rollouts split by cluster, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from critics.fit.held_out import HeldOut, check_enough, held_out, outcome_states
from critics.fit.rows import critic_rows
from critics.fit.td_targets import Bootstrap
from critics.frozen.calibrator import check_states
from critics.labels.checks import check_continuations
from critics.labels.named_targets import BOOTSTRAPPED, RULES, TD_LAM
from critics.labels.samples import graded, samples_of
from critics.labels.soft_targets import continued_labels
from critics.labels.splits import Part, Shares, parts_of
from pipeline.errors import ArtifactError
from pipeline.training import TrainingRow
from pipeline.types import Label, Rollout, Task


@dataclass(frozen=True, slots=True)
class FitData:
    """What the critic is made from. Fit, validate and calibrate are parts that share no cluster.

    Attributes:
        labels: all of them.
        first: a labelled rollout; all were sampled alike.
        clusters: number of each part.
        num_rollouts: labelled ones of each part.
        contexts: of the states that move the weights.
        num_continued: continuations that are fitted as well.
        fit: rows that move the weights.
        validation: states of `validate` that decide convergence.
        calibration: states that calibrate, of both parts that move no weight.
        bootstrap: makes the fit rows' targets from the critic itself; None for targets that are labels.
    """

    labels: list[Label]
    first: Rollout
    clusters: dict[str, int]
    num_rollouts: dict[str, int]
    contexts: tuple[str, ...]
    num_continued: int
    fit: list[TrainingRow]
    validation: HeldOut
    calibration: HeldOut
    bootstrap: Bootstrap | None = None


def fit_data(
    labels: list[Label],
    rollouts: Sequence[Rollout],
    tasks: Mapping[str, Task],
    shares: Shares,
    *,
    rule: str,
    seed: int,
    continuations: Sequence[Rollout] = (),
    calibrating: Sequence[Part] = ("validate", "calibrate"),
) -> FitData:
    """Returns labelled rollouts as rows and states, split by cluster.

    Args:
        labels: that passed `check_labels`; those of one target policy.
        rollouts: of the rollouts stage.
        tasks: by id.
        shares: of the parts.
        rule: the labels' target.
        seed: of the split.
        continuations: what the labels stage sampled; those of the part that fits are fitted as well.
        calibrating: parts that calibrate.

    Raises:
        ArtifactError: continuations that were sampled otherwise, or too few labels to fit, validate and
            calibrate on.
    """
    if not labels:
        raise ArtifactError("there are no labels to fit, validate and calibrate on. Next: make labels")
    labelled, policy = {label.rollout_id for label in labels}, labels[0].label_policy_digest
    part_of = parts_of(rollouts, tasks, shares, seed=seed)
    members: dict[Part, list[Rollout]] = {"fit": [], "validate": [], "calibrate": []}
    for rollout in rollouts:
        if rollout.rollout_id in labelled:
            members[part_of[rollout.rollout_id]].append(rollout)
    labels_of: dict[Part, list[Label]] = {part: [] for part in members}
    for label in labels:
        labels_of[part_of[label.rollout_id]].append(label)
    first = next(rollout for rollout in rollouts if rollout.rollout_id in labelled)
    fitted = [label for label in labels_of["fit"] if rule not in RULES or label.label_source == rule]
    continued = graded(samples_of(continuations, {rollout.rollout_id for rollout in members["fit"]}), policy)
    check_continuations(continued, first)
    later = continued_labels(continued, label_policy_digest=policy)
    data = FitData(
        labels=labels,
        first=first,
        clusters={part: len({tasks[r.task_id].cluster for r in own}) for part, own in members.items()},
        num_rollouts={part: len(own) for part, own in members.items()},
        contexts=tuple(sorted({label.context for label in (*fitted, *later)})),
        num_continued=len({label.rollout_id for label in later}),
        fit=critic_rows(members["fit"], [*fitted, *later], continuations=continued),
        validation=held_out(members["validate"], labels_of["validate"]),
        calibration=outcome_states(
            [r for part in calibrating for r in members[part] if r.policy_digest == policy]
        ),
        bootstrap=_bootstrap(members["fit"], fitted, rule),
    )
    check_enough(data.fit, data.validation)
    check_states(len(data.calibration.row))
    return data


def _bootstrap(rollouts: Sequence[Rollout], labels: Sequence[Label], rule: str) -> Bootstrap | None:
    """Returns what makes the targets of `critic_rows(rollouts, labels)`; None if the labels hold them."""
    if rule not in BOOTSTRAPPED:
        return None
    labelled = {label.rollout_id for label in labels}
    rows = [rollout for rollout in rollouts if rollout.rollout_id in labelled]
    return Bootstrap.of(rows, 0.0 if rule == "td" else TD_LAM)
