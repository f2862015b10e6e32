"""Fits the critic, calibrates it and freezes it behind its contract."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification

from critics.fit.loop import calibrate, fit
from critics.fit.schedule import WEIGHT_DECAY, schedule
from critics.frozen.contract import REWARD, Contract, save
from critics.frozen.model import make_critic
from env.catalog import ENVIRONMENTS
from pipeline.artifacts.disk import fsync_file, fsync_folder
from pipeline.artifacts.runner import Start
from pipeline.errors import ArtifactError
from pipeline.models.policy import load_tokenizer
from stages.settings import Config
from stages.wiring.build import make_trainer
from stages.wiring.critic_data import Data, fit_settings


def make(start: Start[Config], work: tuple[Data, Path]) -> None:
    """Fits, calibrates, freezes."""
    settings = start.config.critic
    data, trunk = work
    how = fit_settings(settings)
    model = make_critic(trunk)
    trainer: Any = make_trainer(
        start.config,
        model,
        head="critic",
        learning_rate=lambda done: settings.learning_rate,  # `fit` sets its own schedule
        weight_decay=WEIGHT_DECAY,
    )
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

    most = schedule(data.fit, how).total
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
            data.fit,
            data.validation,
            how,
            seed=start.seed,
            keep=keep,
            drop=lambda number: shutil.rmtree(kept / str(number), ignore_errors=True),
            state=state,
            checkpoint=checkpoint,
            on_update=on_update,
            on_evaluation=on_evaluation,
            bootstrap=data.bootstrap,
        )

    if not result.converged:
        start.say(
            f"fitting ran out of epochs before it converged (critic.max_epochs = {settings.max_epochs:g}), "
            "and the gate will refuse this critic; more of them may spare an audit"
        )
    trainer.close()
    folder = weights_of_best(start, kept, result.best)
    load_tokenizer(Path(start.inputs["sft"].path("policy"))).save_pretrained(folder)
    frozen = make_trainer(
        start.config, AutoModelForSequenceClassification.from_pretrained(folder), head="critic"
    )
    calibrator = calibrate(frozen, data.calibration, base_logit=result.base_logit)
    frozen.close()
    first = data.first
    family = start.config.tasks.environment
    digest = save(
        folder,
        Contract(
            tokenizer_digest=first.tokenizer_digest,
            template_digest=first.template_digest,
            label_policy_digest=data.labels[0].label_policy_digest,
            labels_digest=start.inputs["labels"].content_digest,
            splitter=ENVIRONMENTS[family].splitter,
            families=(family,),
            contexts=data.contexts,
            reward=REWARD,
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
    remove_kept(kept, folder)
    start.finish(
        done=1,
        report={
            "critic_digest": digest,
            "converged": result.converged,
            "updates": result.num_updates,
            "clusters": data.clusters,
            "labelled_rollouts": data.num_rollouts,
            **({"continuations": data.num_continued} if settings.fit_continuations else {}),
            "calibrator": {
                "slope_low": calibrator.slope_low,
                "slope_high": calibrator.slope_high,
                "shift": calibrator.shift,
                "guided_shift": calibrator.guided_shift,
                "position_shifts": calibrator.position_shifts,
                "states": calibrator.num_states,
            },
        },
    )


def weights_of_best(start: Start, kept: Path, best: int) -> Path:
    """Returns the output folder, holding nothing but the best evaluation's weights.

    Raises:
        ArtifactError: they are lost.
    """
    final = start.folder / "critic"
    if not (kept / str(best)).exists() and final.exists():
        # Stopped after `remove_kept`: the output was whole then, so it is the best evaluation's copy.
        kept.mkdir(exist_ok=True)
        os.replace(final, kept / str(best))
    folder = start.output("critic")
    if not (kept / str(best)).exists():
        raise ArtifactError(
            f"{kept / str(best)}, the weights of the best evaluation, are gone. Next: make critic SET=--fresh"
        )
    shutil.copytree(kept / str(best), folder)
    return folder


def remove_kept(kept: Path, final: Path) -> None:
    """Removes the kept evaluations before the stage is complete, for afterwards nobody would.

    The output is made durable first, and the folder goes in one move, so that a start after a stop finds the
    best weights either here or there, whole.
    """
    for path in final.rglob("*"):
        (fsync_folder if path.is_dir() else fsync_file)(path)
    fsync_folder(final)
    removed = kept.with_name("_evaluations_removed")
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(kept, removed)
    fsync_folder(kept.parent)
    shutil.rmtree(removed)
