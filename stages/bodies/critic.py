"""Fits the critic, calibrates it and freezes it behind its contract."""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification

from critics.fit.data import FitData
from critics.fit.loop import calibrate, fit
from critics.fit.schedule import WEIGHT_DECAY, schedule
from critics.frozen.contract import REWARD, Contract, save
from critics.frozen.model import make_critic
from env.catalog import offer_of
from pipeline.models.policy import load_tokenizer
from pipeline.runner import Start
from stages.settings import Config
from stages.wiring.build import make_trainer, pace_of
from stages.wiring.critic_data import fit_settings


def make(start: Start[Config], work: tuple[FitData, Path]) -> None:
    """Fits, calibrates, freezes."""
    settings, family = start.config.critic, start.config.tasks.environment
    data, trunk = work
    how = fit_settings(settings)
    model, pace = make_critic(trunk), pace_of(start.config)
    made = make_trainer(
        start.config,
        model,
        head="critic",
        learning_rate=lambda done: settings.learning_rate,  # `fit` sets its own schedule
        weight_decay=WEIGHT_DECAY,
    )
    trainer = pace.trainer(made, model.config, "critic")
    evaluations = start.folder / "_evaluations"  # weights that may still become the best
    state: dict[str, Any] | None = None
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])
        state = found[1]["fit"]
    else:
        shutil.rmtree(evaluations, ignore_errors=True)
    most = schedule(data.fit, how).total
    with start.progress(most, "updates at most", initial=trainer.num_updates) as advance:

        def drop(number: int) -> None:
            shutil.rmtree(evaluations / str(number), ignore_errors=True)

        def keep(number: int) -> None:
            drop(number)
            trainer.export(evaluations / str(number))

        def checkpoint(now: dict[str, Any]) -> None:
            start.checkpoints.save(trainer.num_updates, trainer.save_checkpoint, {"fit": now})

        def on_update(metrics: dict[str, float]) -> None:
            start.metrics(metrics | pace.lap())
            advance(1)
            start.stop_if_asked()

        def on_evaluation(entry: dict[str, Any]) -> None:
            named = {f"critic_train/{name}": value for name, value in entry.items()}
            start.metrics(named | {"update": entry["update"]})
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
            drop=drop,
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
    folder = start.move_to_output(evaluations / str(result.best), "critic")
    load_tokenizer(start.inputs["sft"].path("policy")).save_pretrained(folder)
    best = AutoModelForSequenceClassification.from_pretrained(folder)
    frozen = make_trainer(start.config, best, head="critic")
    calibrator = calibrate(
        frozen,
        data.calibration,
        base_logit=result.base_logit,
        by_verdicts=settings.privileged == "features",
    )
    frozen.close()
    first = data.first
    contract = Contract(
        tokenizer_digest=first.tokenizer_digest,
        template_digest=first.template_digest,
        label_policy_digest=data.labels[0].label_policy_digest,
        labels_digest=start.inputs["labels"].content_digest,
        splitter=offer_of(family).splitter,
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
        privileged=settings.privileged,
        convergence={"best": result.best, "updates": result.num_updates},
    )
    digest = save(folder, contract)
    (folder / "evaluations.json").write_text(json.dumps(result.evaluations, indent=1) + "\n")
    shutil.rmtree(evaluations)
    shape = ("slope_low", "slope_high", "shift", "guided_shift", "position_shifts", "verdict_shifts")
    report = {
        "critic_digest": digest,
        "converged": result.converged,
        "updates": result.num_updates,
        "clusters": data.clusters,
        "labelled_rollouts": data.num_rollouts,
        "calibrator": {name: getattr(calibrator, name) for name in shape} | {"states": calibrator.num_states},
    }
    if settings.fit_continuations:
        report["continuations"] = data.num_continued
    start.finish(done=1, report=report)
