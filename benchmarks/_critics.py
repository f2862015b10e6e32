"""Critics that are fitted on a seed's samples in this process, and judged on its audit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._material import Material
from critics.audit.data import AuditData, audited_states
from critics.fit.data import fit_data
from critics.fit.loop import calibrate, fit
from critics.fit.schedule import PATIENCE, WEIGHT_DECAY
from critics.labels.samples import rewards_of
from critics.privileged import Kind, Privileged
from pipeline.types import Label, StateRef
from stages.wiring.audit import solver_values
from stages.wiring.critic_data import fit_settings


def fitted(
    material: Material,
    labels: list[Label],
    rule: str,
    trunk: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    by_heart: bool = False,
) -> tuple[Any, Any, dict[str, Any]]:
    """Returns a trainer with the best weights, the calibrator, and how the fit went.

    What is fitted, validated and calibrated on is what the critic stage would take.

    Args:
        material: of the seed.
        labels: of all parts.
        rule: of the labels.
        trunk: model folder to start from.
        changes: settings of the critic section, `patience` or `weight_decay` that are other ones.
        by_heart: keep the last weights in place of the best, and calibrate on the rollouts that were fitted.
    """
    import torch

    from critics.frozen.model import make_critic
    from stages.wiring.build import make_trainer

    config = material.config
    changes = dict(changes or {})
    weight_decay = changes.pop("weight_decay", WEIGHT_DECAY)
    patience = changes.pop("patience", PATIENCE)
    settings = config.critic.model_copy(update=changes)
    if rule != "soft":
        settings = settings.model_copy(update={"fit_continuations": False})  # as the configuration demands
    # A share of the budget bought no other continuations than those that its labels count.
    bought = {StateRef(x.rollout_id, x.step_index, x.context) for x in labels if x.num_continuations}
    sampled = [
        r
        for r in material.sampled
        if StateRef(r.parent_rollout_ids[0], r.start_step_index, r.context) in bought
    ]
    data = fit_data(
        labels,
        material.rollouts,
        material.tasks,
        material.part_of(settings.fit_share),
        rule=rule,
        continuations=sampled if settings.fit_continuations else [],
        calibrating=("fit",) if by_heart else ("validate", "calibrate"),
        privileged=Privileged.of(settings.privileged, material.folder / "sft" / "policy"),
    )
    model = make_critic(trunk)
    trainer: Any = make_trainer(
        config, model, head="critic", learning_rate=lambda _: 0.0, weight_decay=weight_decay
    )
    stored: dict[int, dict[str, Any]] = {}

    def drop(number: int) -> None:
        stored.pop(number, None)

    def keep(number: int) -> None:
        stored[number] = {name: weight.clone() for name, weight in trainer.weights().items()}

    result = fit(
        trainer,
        data.fit,
        data.validation,
        replace(fit_settings(settings), patience=patience),
        seed=config.run.seed,
        keep=keep,
        drop=drop,
        bootstrap=data.bootstrap,
    )
    if not by_heart:
        with torch.no_grad():
            model.load_state_dict(stored[result.best])
    by_verdicts = settings.privileged == "features"
    calibrator = calibrate(trainer, data.calibration, base_logit=result.base_logit, by_verdicts=by_verdicts)
    facts = {"converged": result.converged, "updates": result.num_updates, "fitted_rows": len(data.fit)}
    return trainer, calibrator, facts


def values_of(material: Material, trainer: Any, calibrator: Any, told: Kind) -> dict[str, np.ndarray]:
    """Returns the calibrated values of the audit's bare rollouts by a critic that is `told` so much."""
    from critics.frozen.critic import read_value_logits
    from critics.readouts import value_positions
    from pipeline.training import TrainingRow

    bare = [r for r in material.audited if r.kind == "whole" and not r.guided]
    whole = [r for r in bare if r.reward is not None and r.steps]
    privileged = Privileged.of(told, material.folder / "sft" / "policy")
    read = privileged.as_read(whole)
    rows = [TrainingRow(np.array(r.token_ids, dtype=np.int32)) for r in read]
    z = read_value_logits(
        trainer.model, rows, [value_positions(r) for r in read], material.config.training.micro_batch_tokens
    )
    return {
        r.rollout_id: calibrator(
            logits, step_index=np.array([step.step_index for step in r.steps]), told=counts
        )
        for r, logits, counts in zip(whole, z, privileged.told(whole), strict=True)
    }


def audit_of(material: Material, values: dict[str, np.ndarray]) -> AuditData:
    """Returns the seed's audit of a critic, bare states."""
    bare = [r for r in material.audited if not r.guided and r.kind == "whole" and r.rollout_id in values]
    exact = solver_values(material.config, bare, material.tasks)
    rewards = rewards_of(material.audited, values)
    return audited_states(bare, rewards, values, material.tasks, solver_values=exact)


def with_layers(policy: Path, num_layers: int, folder: Path) -> Path:
    """Returns a folder with the first layers of a policy."""
    import torch
    from transformers import AutoModelForCausalLM

    from pipeline.models.policy import load_tokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32, local_files_only=True)
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    model.config.layer_types = model.config.layer_types[:num_layers]
    model.save_pretrained(folder / f"layers{num_layers}")
    load_tokenizer(policy).save_pretrained(folder / f"layers{num_layers}")
    return folder / f"layers{num_layers}"


def parameters_of(folder: Path) -> int:
    """Returns the parameters of a model folder, by the planner."""
    from transformers import AutoConfig

    from pipeline.planner.memory import shape_of

    return shape_of(AutoConfig.from_pretrained(folder, local_files_only=True)).parameters
