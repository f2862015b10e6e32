"""What the critic stage fits and the trunk that it fits, of its inputs: checked before any work."""

from dataclasses import fields
from pathlib import Path

from critics.fit.data import FitData, fit_data
from critics.fit.schedule import FitSettings
from critics.labels.checks import check_labels
from critics.labels.named_targets import OF_OUTCOMES
from critics.labels.splits import parts_of
from critics.privileged import Privileged
from pipeline.errors import ArtifactError
from pipeline.runner import Start
from pipeline.tables import labels_from
from stages.settings import Config, Critic
from stages.wiring.inputs import rollouts_of, tasks_by_id


def trunk_of(start: Start[Config]) -> Path:
    """Returns the folder of the critic's trunk; its weights are read later.

    Raises ArtifactError if a setting names one without a model, or with another tokenizer than the policy's.
    """
    policy = start.inputs["sft"].path("policy")
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


def data_of(start: Start[Config]) -> FitData:
    """Returns the labelled rollouts of the stage's inputs as rows and states, split by cluster.

    Raises ArtifactError if the labels are unusable, or too few to fit, validate and calibrate on.
    """
    settings, made = start.config.critic, start.inputs["labels"]
    tasks, rollouts = tasks_by_id(start), rollouts_of(start.inputs["rollouts"])
    labels = labels_from(made.table("labels"))
    labelled = {label.rollout_id for label in labels}
    # Whose chances the labels count; whoever uses the critic compares it with the policy that plays there.
    policy = labels[0].label_policy_digest if labels else ""
    own = [r for r in rollouts if r.rollout_id in labelled]
    check_labels(labels, own, list(tasks.values()), label_policy_digest=policy)
    target = made.manifest["settings"]["labels"]["target"]
    continuations = settings.fit_continuations and target in OF_OUTCOMES
    part_of = parts_of(
        rollouts, tasks, fit_share=settings.fit_share, validate_share=settings.validate_share, seed=start.seed
    )
    return fit_data(
        labels,
        rollouts,
        tasks,
        part_of,
        rule=target,
        continuations=rollouts_of(made) if continuations else [],
        privileged=Privileged.of(settings.privileged, start.inputs["sft"].path("policy")),
    )


def fit_settings(settings: Critic) -> FitSettings:
    """Returns how the critic is fitted."""
    names = {field.name for field in fields(FitSettings)}
    return FitSettings(**settings.model_dump(include=names))
