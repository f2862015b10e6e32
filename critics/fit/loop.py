"""Fitting a critic to convergence: head only, then all weights; held-out Brier decides when to stop.

Every update is a function of (seed, epoch, place in the epoch), and everything else lives in a plain
dictionary, so a killed fit goes on as if it had never stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from critics.fit.convergence import FRESH, best_of, evaluate
from critics.fit.held_out import HeldOut
from critics.fit.schedule import FitSettings, learning_rate, rows_of_update, schedule
from critics.fit.td_targets import Bootstrap
from critics.frozen.calibrator import Calibrator, fit_calibrator
from critics.logit import logit
from pipeline.artifacts.signals import StopRequested
from pipeline.processes.failpoints import failpoint
from pipeline.training import Trainer, TrainingRow
from pipeline.training.losses import critic_loss


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a fit went: `converged` if `patience` evaluations running gained less than one standard error.

    `best` is the number of the evaluation with the critic's weights: within one standard error of the lowest
    Brier the highest EV_within, or the lowest Brier where that could not be measured.
    """

    converged: bool
    best: int
    evaluations: tuple[dict[str, Any], ...]
    base_logit: float  # b0
    num_updates: int


def _nothing(*_: Any) -> None:
    pass


def fit(
    trainer: Trainer,
    fit_rows: Sequence[TrainingRow],
    validation: HeldOut,
    settings: FitSettings,
    *,
    seed: int,
    keep: Callable[[int], None],
    drop: Callable[[int], None] = _nothing,
    state: dict[str, Any] | None = None,
    checkpoint: Callable[[dict[str, Any]], None] = _nothing,
    on_update: Callable[[dict[str, float]], None] = _nothing,
    on_evaluation: Callable[[dict[str, Any]], None] = _nothing,
    bootstrap: Bootstrap | None = None,
) -> FitResult:
    """Returns how the fit went; the weights of `result.best` are those that `keep(result.best)` stored.

    `trainer` is of a critic; its schedule, and which weights it trains, are set here. Rows and states have
    passed `check_enough`. `keep` stores the present weights as an evaluation's, again under the same number
    after a kill; `drop` forgets one that can no longer become the best. `on_update`, which sees each update's
    metrics, may raise StopRequested. Then, and after each evaluation, `checkpoint` is given all but the
    trainer, JSON-serialisable: it is the `state` from which a trainer restored to the same moment goes on.
    `bootstrap` makes the rows' targets from the critic's own values at the start of each epoch.
    """
    plan = schedule(fit_rows, settings)
    shift = base_logit(fit_rows)
    # Without any error verdict the error head learns nothing.
    error_weight = settings.error_weight if any(row.columns["error_weights"].any() for row in fit_rows) else 0
    loss = critic_loss(base_logit=shift, error_weight=error_weight)
    trainer.learning_rate = learning_rate(plan, settings)
    now = dict(state or FRESH)
    rows: list[TrainingRow] | None = None
    while True:
        taken, looks = trainer.num_updates, now["evaluations"]
        if taken in plan.evaluations and (not looks or looks[-1]["update"] < taken):
            dropped = evaluate(trainer, validation, plan, shift, now, seed)
            looks, latest = now["evaluations"], now["evaluations"][-1]
            if latest["number"] in now["kept"]:
                keep(latest["number"])
            on_evaluation(latest)
            given_up = now.get("given_up", [])
            now |= {"loss_sum": 0.0, "loss_count": 0, "given_up": dropped}
            checkpoint(dict(now))
            for number in given_up:  # by the look before: if this state is damaged, the one before is read
                drop(number)
        converged = looks[-1]["stale"] >= settings.patience
        if converged or taken >= plan.total:
            break
        trainer.set_head_only(taken < plan.head)
        if bootstrap is not None:
            epoch = list(plan.place_of(taken)[:2])
            if now.get("bootstrap_epoch") != epoch:
                now |= {"bootstrap_epoch": epoch, "bootstrap": bootstrap.values(trainer, fit_rows, shift)}
                rows = None
            if rows is None:
                rows = bootstrap.retargeted(fit_rows, now["bootstrap"])
        failpoint("critic.update.before")
        metrics = trainer.update(rows_of_update(rows or fit_rows, plan, taken, seed), loss)
        failpoint("critic.update.after")
        now["loss_sum"] += metrics["value_loss"]
        now["loss_count"] += 1
        try:
            on_update(metrics | {"update": taken + 1, "epoch": plan.epochs(taken + 1)})
        except StopRequested:
            checkpoint(dict(now))
            raise
    return FitResult(converged, best_of(now), tuple(looks), shift, taken)


def base_logit(rows: Sequence[TrainingRow]) -> float:
    """Returns b0, the logit of the weighted mean target of the rows."""
    total = sum(float(row.columns["weight"].sum()) for row in rows)
    mean = sum(float((row.columns["weight"] * row.columns["targets"]).sum()) for row in rows) / total
    return float(logit(mean, floor=1e-3))


def calibrate(
    trainer: Trainer, states: HeldOut, *, base_logit: float, by_verdicts: bool = False
) -> Calibrator:
    """Returns the calibrator of a trainer's present weights, fitted on `outcome_states`.

    `by_verdicts` says whether it is told of those before a state, as the privileged input `features` wants.
    """
    return fit_calibrator(
        states.logits(trainer),
        states.num_success,
        states.num_samples,
        base_logit=base_logit,
        step_index=states.step_index,
        guided=states.context == "guided",
        rollout=states.row,
        told=states.told.tolist() if by_verdicts else None,
    )
