"""What a critic is fitted, validated and calibrated on, and its trunk: checked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from critics.fit.held_out import HeldOut, held_out, outcome_states
from critics.fit.loop import check_enough
from critics.fit.rows import critic_rows
from critics.fit.schedule import FitSettings
from critics.fit.td_targets import Bootstrap
from critics.frozen.calibrator import check_states
from critics.labels.checks import check_continuations, check_labels
from critics.labels.named_targets import BOOTSTRAPPED, RULES, TD_LAM
from critics.labels.samples import graded, samples_of
from critics.labels.soft_targets import continued_labels
from critics.labels.splits import parts_of
from pipeline.artifacts.runner import Start
from pipeline.errors import ArtifactError
from pipeline.tables import labels_from, rollouts_from, tasks_from
from pipeline.training import TrainingRow
from pipeline.types import Label, Rollout, Task
from stages.settings import Critic


@dataclass(frozen=True, slots=True)
class Data:
    """What the critic is made from. Fit, validate and calibrate are parts that share no company.

    Attributes:
        labels: all of them, checked.
        first: a labelled rollout; all were sampled alike.
        clusters: companies of each part.
        num_rollouts: labelled ones of each part.
        contexts: of the states that move the weights.
        num_continued: continuations that are fitted as well; 0 without `critic.fit_continuations`.
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


def trunk_of(start: Start) -> Path:
    """Returns the folder of the critic's trunk, from which no weights have been read yet.

    The policy itself is looked at when it is loaded; a trunk that a setting names is looked at here, before
    the plan fixes that setting.

    Raises:
        ArtifactError: no model there, or one that reads other token ids than the policy writes.
    """
    policy = Path(start.inputs["sft"].path("policy"))
    if start.config.critic.trunk == "policy":
        return policy
    from critics.frozen.model import trunk_config
    from pipeline.models.policy import load_tokenizer, tokenizer_digest

    trunk = Path(start.config.critic.trunk)
    trunk_config(trunk)
    if tokenizer_digest(load_tokenizer(trunk)) != tokenizer_digest(load_tokenizer(policy)):
        raise ArtifactError(
            f"critic.trunk = {trunk} has another tokenizer than the policy, so it would read other words "
            "than were said. Allowed: 'policy', or a model with the policy's tokenizer. Name such a folder"
        )
    return trunk


def data_of(start: Start) -> Data:
    """Returns the labelled rollouts of a stage's inputs as rows and states, split by company.

    Raises:
        ArtifactError: the labels are unusable, or too few to fit, validate and calibrate on.
    """
    settings: Critic = start.config.critic
    source, made = start.inputs["rollouts"], start.inputs["labels"]
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    labels = labels_from(made.table("labels"))
    everything = rollouts_from(source.table("rollouts"), source.table("steps"))
    labelled = {label.rollout_id for label in labels}
    # Whose chances the labels count; whoever uses the critic compares it with the policy that plays there.
    policy = labels[0].label_policy_digest if labels else ""
    rollouts = [r for r in everything if r.rollout_id in labelled]
    check_labels(labels, rollouts, list(tasks.values()), label_policy_digest=policy)
    return data_from(
        labels,
        everything,
        sampled_of(start) if settings.fit_continuations else [],
        tasks,
        settings,
        made=made.manifest["settings"]["labels"],
        seed=start.seed,
    )


def data_from(
    labels: list[Label],
    everything: Sequence[Rollout],
    sampled: Sequence[Rollout],
    tasks: Mapping[str, Task],
    settings: Critic,
    *,
    made: Mapping[str, Any],
    seed: int,
    calibrating: Sequence[str] = ("validate", "calibrate"),
) -> Data:
    """Returns labelled rollouts as rows and states, split by company.

    Args:
        labels: that passed `check_labels`; those of one target policy.
        everything: of the rollouts stage.
        sampled: what the labels stage sampled; needed to fit continuations.
        tasks: by id.
        settings: how to split and what to fit.
        made: the labels stage's settings.
        seed: of the split.
        calibrating: parts that calibrate.

    Raises:
        ArtifactError: continuations that were sampled otherwise, or too few labels to fit, validate and
            calibrate on.
    """
    if not labels:
        raise ArtifactError("there are no labels to fit, validate and calibrate on. Next: make labels")
    labelled, policy = {label.rollout_id for label in labels}, labels[0].label_policy_digest
    rollouts = [r for r in everything if r.rollout_id in labelled]
    part_of = parts_of(everything, tasks, settings, seed=seed)
    members = {
        part: [r for r in rollouts if part_of[r.rollout_id] == part]
        for part in ("fit", "validate", "calibrate")
    }
    label_lists: dict[str, list[Label]] = {part: [] for part in members}
    for label in labels:
        label_lists[part_of[label.rollout_id]].append(label)
    rule = made.get("target", "soft")
    fitted = [label for label in label_lists["fit"] if rule not in RULES or label.label_source == rule]
    continued: list[Rollout] = []
    later: list[Label] = []
    if settings.fit_continuations:
        ids = {rollout.rollout_id for rollout in members["fit"]}
        continued = graded(samples_of(sampled, ids), policy)
        check_continuations(continued, rollouts[0])
        later = continued_labels(continued, label_policy_digest=policy)
    data = Data(
        labels=labels,
        first=rollouts[0],
        clusters={part: len({tasks[r.task_id].cluster for r in own}) for part, own in members.items()},
        num_rollouts={part: len(own) for part, own in members.items()},
        contexts=tuple(sorted({label.context for label in (*fitted, *later)})),
        num_continued=len({label.rollout_id for label in later}),
        fit=critic_rows(
            members["fit"],
            [*fitted, *later],
            continuations=continued,
        ),
        validation=held_out(members["validate"], label_lists["validate"]),
        calibration=outcome_states(
            [r for part in calibrating for r in members[part] if r.policy_digest == policy]
        ),
        bootstrap=bootstrap_of(members["fit"], fitted, rule),
    )
    check_enough(data.fit, data.validation)
    check_states(len(data.calibration.row))
    return data


def bootstrap_of(rollouts: Sequence[Rollout], labels: Sequence[Label], rule: str) -> Bootstrap | None:
    """Returns what makes the targets of `critic_rows(rollouts, labels)`; None if the labels hold them.

    Args:
        rollouts: that are fitted on.
        labels: of the rule.
        rule: of the labels.
    """
    if rule not in BOOTSTRAPPED:
        return None
    labelled = {label.rollout_id for label in labels}
    rows = [rollout for rollout in rollouts if rollout.rollout_id in labelled]
    return Bootstrap.of(rows, 0.0 if rule == "td" else TD_LAM)


def fit_settings(settings: Critic) -> FitSettings:
    """Returns how the critic is fitted."""
    names = [field.name for field in fields(FitSettings) if field.name in Critic.model_fields]
    return FitSettings(**{name: getattr(settings, name) for name in names})


def sampled_of(start: Start) -> list[Rollout]:
    """Returns everything that the labels stage sampled."""
    source = start.inputs["labels"]
    return rollouts_from(source.table("rollouts"), source.table("steps"))
