"""Fits the step-level critic to convergence, calibrates it and freezes it behind its contract.

Inside the training split whole companies are kept apart: most fit the critic, some decide when it has
converged, some calibrate it. Nothing here sees `val` or an unseen split.

    make critic CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critics.splits import split_clusters
from pipeline.errors import ArtifactError
from pipeline.runner import Stage, Start, run_stage
from pipeline.tables import labels_from, rollouts_from, tasks_from
from stages.backends import make_trainer, policy_of
from stages.settings import Config, Critic

if TYPE_CHECKING:
    from pipeline.models import Policy


def trunk_of(start: Start, policy: Policy) -> Path:
    """Returns the folder of the critic's trunk.

    Raises:
        ArtifactError: no model there, or one that reads other token ids than the policy writes.
    """
    named = start.config.critic.trunk
    if named == "policy":
        return policy.folder
    from pipeline.models import load_tokenizer, tokenizer_digest

    trunk = Path(named)
    if tokenizer_digest(load_tokenizer(trunk)) != policy.tokenizer_digest:
        raise ArtifactError(
            f"critic.trunk = {trunk} has another tokenizer than the policy, so it would read other words "
            "than were said. Allowed: 'policy', or a model with the policy's tokenizer. Name such a folder"
        )
    return trunk


def make(start: Start) -> None:
    """Splits the labelled rollouts by company, fits, calibrates, freezes."""
    settings: Critic = start.config.critic
    start.plan([["critic"]], unit="critics", estimate={"epochs_at_most": settings.max_epochs})
    from transformers import AutoModelForSequenceClassification

    from critics.calibration import fit_calibrator
    from critics.contract import Contract, save
    from critics.fitting import fit, held_out, schedule
    from critics.model import make_critic
    from critics.rows import critic_rows
    from critics.targets import check_labels

    tasks = tasks_from(start.inputs["tasks"].table("tasks"))
    cluster = {task.task_id: task.cluster for task in tasks}
    labels = labels_from(start.inputs["labels"].table("labels"))
    source = start.inputs["rollouts"]
    labelled = {label.rollout_id for label in labels}
    rollouts = [
        r for r in rollouts_from(source.table("rollouts"), source.table("steps")) if r.rollout_id in labelled
    ]
    policy = policy_of(start)
    # Whose chances the labels count; whoever uses the critic compares it with the policy that plays there.
    label_policy = labels[0].label_policy_digest if labels else policy.policy_digest
    check_labels(labels, rollouts, tasks, label_policy_digest=label_policy)
    part_of = split_clusters(
        {cluster[r.task_id] for r in rollouts},
        fit_share=settings.fit_share,
        validate_share=settings.validate_share,
        seed=start.seed,
    )
    members = {
        part: [r for r in rollouts if part_of[cluster[r.task_id]] == part]
        for part in ("fit", "validate", "calibrate")
    }
    label_lists = {
        part: [label for label in labels if label.rollout_id in {r.rollout_id for r in own}]
        for part, own in members.items()
    }

    model = make_critic(trunk_of(start, policy))
    trainer: Any = make_trainer(start.config, model, head="critic", weight_decay=settings.weight_decay)
    kept = start.folder / "_evaluations"  # weights that may still become the best; gone at the end
    state: dict[str, Any] | None = None
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])
        state = found[1]["fit"]
    elif kept.exists():
        shutil.rmtree(kept)

    def keep(number: int) -> None:
        if (kept / str(number)).exists():
            shutil.rmtree(kept / str(number))
        trainer.export(kept / str(number))

    rows = critic_rows(members["fit"], label_lists["fit"])
    most = schedule(rows, settings).total
    with start.progress(most, "updates at most", initial=trainer.num_updates) as advance:

        def checkpoint(now: dict[str, Any]) -> None:
            start.checkpoints.save(now["num_updates"], trainer.save_checkpoint, {"fit": now})

        def on_update(metrics: dict[str, float]) -> None:
            start.metrics(metrics)
            advance(1)
            start.stop_if_asked()

        def on_evaluation(entry: dict[str, Any]) -> None:
            start.metrics(
                {f"critic_train/{name}": value for name, value in entry.items()} | {"update": entry["update"]}
            )
            start.say(
                f"epoch {entry['epoch']:.1f}: validation Brier {entry['brier']:.4f}, "
                f"standard error {entry['brier_se']:.4f}"
            )

        result = fit(
            trainer,
            rows,
            held_out(members["validate"], label_lists["validate"]),
            settings,
            seed=start.seed,
            keep=keep,
            drop=lambda number: shutil.rmtree(kept / str(number), ignore_errors=True),
            state=state,
            checkpoint=checkpoint,
            on_update=on_update,
            on_evaluation=on_evaluation,
        )

    folder = start.output("critic")
    shutil.copytree(kept / str(result.best), folder)
    policy.tokenizer.save_pretrained(folder)
    calibration = held_out(members["calibrate"], label_lists["calibrate"])
    frozen = make_trainer(
        start.config, AutoModelForSequenceClassification.from_pretrained(folder), head="critic"
    )
    calibrator = fit_calibrator(
        calibration.logits(frozen),
        calibration.num_success,
        calibration.num_samples,
        base_logit=result.base_logit,
    )
    first = rollouts[0]
    family = start.config.tasks.environment
    digest = save(
        folder,
        Contract(
            tokenizer_digest=first.tokenizer_digest,
            template_digest=first.template_digest,
            label_policy_digest=label_policy,
            labels_digest=start.inputs["labels"].content_digest,
            splitter={"rule": "assistant message"},
            families=(family,),
            contexts=tuple(sorted({label.context for label in labels})),
            reward="success",
            gamma=1.0,
            temperature=first.temperature,
            top_p=first.top_p,
            top_k=first.top_k,
            max_response_tokens=first.max_response_tokens,
            calibrators={family: calibrator},
            converged=result.converged,
            convergence={"best": result.best, "updates": result.num_updates},
        ),
    )
    (folder / "evaluations.json").write_text(json.dumps(result.evaluations, indent=1) + "\n")
    start.finish(
        done=1,
        report={
            "critic_digest": digest,
            "converged": result.converged,
            "updates": result.num_updates,
            "clusters": {part: sum(v == part for v in part_of.values()) for part in members},
            "labelled_rollouts": {part: len(own) for part, own in members.items()},
            "calibrator": {
                "slope": calibrator.slope,
                "shift": calibrator.shift,
                "states": calibrator.num_states,
            },
        },
    )
    shutil.rmtree(kept)


STAGE = Stage(
    name="critic",
    code_version=1,
    inputs=lambda config: ("tasks", "sft", "rollouts", "labels"),
    sections=("critic", "training"),
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
