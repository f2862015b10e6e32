"""What a critic is fitted, validated and calibrated on: labelled rollouts split by cluster, and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from critics.fit.held_out import HeldOut, check_enough, held_out, outcome_states
from critics.fit.rows import critic_rows
from critics.fit.td_targets import Bootstrap
from critics.labels.checks import check_continuations
from critics.labels.named_targets import BOOTSTRAPPED, RULES, TD_LAM
from critics.labels.samples import samples_of
from critics.labels.soft_targets import continued_labels
from critics.labels.splits import Part
from critics.privileged import NOT_TOLD, Privileged
from pipeline.errors import ArtifactError
from pipeline.training import TrainingRow
from pipeline.types import Label, Rollout, Task


@dataclass(frozen=True, slots=True)
class FitData:
    """What the critic is made from. Fit, validate and calibrate are parts that share no cluster."""

    labels: list[Label]
    first: Rollout  # a labelled one; all were sampled alike
    clusters: dict[str, int]  # number of each part
    num_rollouts: dict[str, int]  # labelled ones of each part
    contexts: tuple[str, ...]  # of the states that move the weights
    num_continued: int  # continuations that are fitted as well
    fit: list[TrainingRow]  # rows that move the weights
    validation: HeldOut  # decides convergence
    calibration: HeldOut  # of both parts that move no weight
    bootstrap: Bootstrap | None  # makes the fit rows' targets; None for targets that are labels


def fit_data(
    labels: list[Label],
    rollouts: Sequence[Rollout],
    tasks: Mapping[str, Task],
    part_of: Mapping[str, Part],
    *,
    rule: str,
    continuations: Sequence[Rollout] = (),
    calibrating: Sequence[Part] = ("validate", "calibrate"),
    privileged: Privileged = NOT_TOLD,
) -> FitData:
    """Returns labelled rollouts as rows and states, split by cluster.

    Labels have passed `check_labels`, and `rule` is their target. Of `continuations`, which the labels stage
    sampled, those of the part that fits are fitted as well. Rows are as a critic that is told `privileged`
    reads them.
    """
    if not labels:
        raise ArtifactError("there are no labels to fit, validate and calibrate on. Next: make labels")
    labelled, policy = {label.rollout_id for label in labels}, labels[0].label_policy_digest
    members: dict[Part, list[Rollout]] = {"fit": [], "validate": [], "calibrate": []}
    for rollout in privileged.as_read([r for r in rollouts if r.rollout_id in labelled]):
        members[part_of[rollout.rollout_id]].append(rollout)
    labels_of: dict[Part, list[Label]] = {part: [] for part in members}
    for label in labels:
        labels_of[part_of[label.rollout_id]].append(label)
    first = next(rollout for rollout in rollouts if rollout.rollout_id in labelled)
    fitted = [label for label in labels_of["fit"] if rule not in RULES or label.label_source == rule]
    continued = [
        sample
        for own in samples_of(continuations, {r.rollout_id for r in members["fit"]}).values()
        for sample in own
        if sample.reward is not None and sample.policy_digest == policy
    ]
    check_continuations(continued, first)
    continued = privileged.as_read(continued, {r.rollout_id: r for r in rollouts})
    later = continued_labels(continued, label_policy_digest=policy)
    bootstrap = None
    if rule in BOOTSTRAPPED:
        sources = {label.rollout_id for label in fitted}
        bootstrapped = [rollout for rollout in members["fit"] if rollout.rollout_id in sources]
        bootstrap = Bootstrap.of(bootstrapped, 0.0 if rule == "td" else TD_LAM)
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
        bootstrap=bootstrap,
    )
    continued_states = any(label.num_continuations for label in labels)
    check_enough(data.fit, data.validation, continued=continued_states)
    if not len(data.calibration.row):
        raise ArtifactError(
            "no graded rollout of the starting policy lies in the clusters that calibrate the critic. Next: "
            "more rollouts (rollouts.num_tasks), tasks of more clusters (section tasks), or a smaller "
            "critic.fit_share"
        )
    return data
