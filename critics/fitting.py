"""Fitting a critic to convergence: head only, then all weights; held-out Brier decides when to stop.

Every update is a function of (seed, epoch, place in the epoch), and everything else lives in a plain
dictionary, so a killed fit goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from critics.audit import AuditData
from critics.bootstrap import Bootstrap
from critics.calibration import Calibrator, fit_calibrator
from critics.intervals import resample_counts
from critics.logistic import binomial_regression, logit, sigmoid
from critics.quality import brier_terms, explained_variance_within
from critics.ranking import RankedSet, sets_of_update, with_ranking
from critics.rows import COLUMNS, normalised, num_states, state_weight, value_positions
from critics.targets import label_counts
from pipeline.errors import ArtifactError
from pipeline.failpoints import failpoint
from pipeline.ids import seed_of
from pipeline.stopping import StopRequested
from pipeline.training import Trainer, TrainingRow
from pipeline.types import Label, Rollout

NUM_RESAMPLES = 500
MIN_GROUPS_WITHIN = 10
"""EV_within is judged on at least this many rollouts with two or more sampled states."""
FINAL_RATE = 0.1
"""The cosine ends at this share of its peak."""


class CriticTrainer(Trainer, Protocol):
    """A trainer that can hold weights still and change its schedule."""

    learning_rate: Callable[[int], float]

    def set_trainable(self, prefixes: Sequence[str] | None) -> None:
        """Trains only weights whose names start with a prefix; None: all."""
        ...


class FitSettings(Protocol):
    """How to fit; `stages.settings.Critic` is one."""

    @property
    def head_updates(self) -> int: ...  # noqa: D102
    @property
    def head_learning_rate(self) -> float: ...  # noqa: D102
    @property
    def learning_rate(self) -> float: ...  # noqa: D102
    @property
    def max_epochs(self) -> float: ...  # noqa: D102
    @property
    def batch_states(self) -> int: ...  # noqa: D102
    @property
    def evaluations_per_epoch(self) -> int: ...  # noqa: D102
    @property
    def patience(self) -> int: ...  # noqa: D102
    @property
    def error_weight(self) -> float: ...  # noqa: D102
    @property
    def value_loss(self) -> str: ...  # noqa: D102
    @property
    def rank_weight(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class HeldOut:
    """States with samples that the critic is looked at on, one entry per state in every array [N].

    Attributes:
        rows: forward passes.
        row: which of `rows` the state lies in.
        position: token at which it is read.
        rollout_id: its rollout.
        step_index: the state before this step.
        context: bare or guided.
        task_id: its task.
        num_success: k, own outcome included.
        num_samples: n >= 1, own outcome included.
        fresh_success: successes of fresh continuations alone.
        fresh_samples: fresh continuations alone.
    """

    rows: tuple[TrainingRow, ...]
    row: np.ndarray
    position: np.ndarray
    rollout_id: np.ndarray
    step_index: np.ndarray
    context: np.ndarray
    task_id: np.ndarray
    num_success: np.ndarray
    num_samples: np.ndarray
    fresh_success: np.ndarray
    fresh_samples: np.ndarray

    def logits(self, trainer: Trainer) -> np.ndarray:
        """Returns the raw value logits z [N] of a trainer's present weights."""
        scores = [outputs["scores"][:, 0] for outputs in trainer.forward(list(self.rows))]
        return np.array(
            [scores[r][t] for r, t in zip(self.row, self.position, strict=True)], dtype=np.float64
        )


def held_out(rollouts: Sequence[Rollout], labels: Sequence[Label]) -> HeldOut:
    """Returns the labelled states of the rollouts that have at least one sample."""
    counts: dict[str, dict[int, tuple[float, int, int, int]]] = defaultdict(dict)
    for label in labels:
        k, n = label_counts(label)
        if n > 0:
            counts[label.rollout_id][label.step_index] = (k, n, label.num_success, label.num_continuations)
    return _held_out(rollouts, counts)


def outcome_states(rollouts: Sequence[Rollout]) -> HeldOut:
    """Returns every state of the graded rollouts, each with the rollout's own outcome as its one sample.

    What calibrates. A state lies here because its rollout came by, whatever came after, as in an audit and in
    the actor's training. Continuations are asked for at states that are chosen by how the rollout went
    on, which tells of what the state does not show: of a task that is harder than it looks, for one.
    """
    counts = {
        r.rollout_id: {step.step_index: (r.reward, 1, 0, 0) for step in r.steps}
        for r in rollouts
        if r.reward is not None
    }
    return _held_out(rollouts, counts)


def _held_out(
    rollouts: Sequence[Rollout], counts: Mapping[str, Mapping[int, tuple[float, int, int, int]]]
) -> HeldOut:
    """Returns the states of `counts`, rollout_id -> step_index -> (k, n, fresh k, fresh n), in order."""
    rows: list[TrainingRow] = []
    entries: list[tuple[Any, ...]] = []
    for rollout in rollouts:
        if not (of := counts.get(rollout.rollout_id)):
            continue
        tokens = np.array((*rollout.prompt_token_ids, *rollout.response_token_ids), dtype=np.int32)
        at = value_positions(rollout)
        for step_index in sorted(of):
            state = (rollout.rollout_id, step_index, rollout.context, rollout.task_id)
            entries.append((len(rows), at[step_index - rollout.start_step_index], *state, *of[step_index]))
        rows.append(TrainingRow(tokens, {"weight": np.zeros(len(tokens), dtype=np.float32)}))
    columns = [np.array(column) for column in zip(*entries, strict=True)] or [
        np.zeros(0, dtype=np.int64)
    ] * 10
    return HeldOut(tuple(rows), *columns)


def calibrate(trainer: Trainer, states: HeldOut, *, base_logit: float) -> Calibrator:
    """Returns the calibrator of a trainer's present weights, fitted on `outcome_states`."""
    return fit_calibrator(
        states.logits(trainer),
        states.num_success,
        states.num_samples,
        base_logit=base_logit,
        step_index=states.step_index,
        guided=states.context == "guided",
        rollout=states.row,
    )


def check_enough(fit_rows: Sequence[TrainingRow], validation: HeldOut) -> None:
    """Raises ArtifactError if there is nothing to fit, or fewer than 2 tasks to judge convergence on."""
    num_tasks = len(set(validation.task_id.tolist()))
    if not fit_rows or num_tasks < 2:
        raise ArtifactError(
            f"{len(fit_rows)} labelled rollouts to fit and {num_tasks} validation tasks with a sampled "
            "state; at least 1 and 2 are needed. Next: more labels (labels.max_states), tasks of more "
            "companies (tasks.num_companies), or other critic.fit_share and critic.validate_share"
        )


def base_logit(rows: Sequence[TrainingRow]) -> float:
    """Returns b0, the logit of the weighted mean target of the rows."""
    total = sum(float(row.columns["weight"].sum()) for row in rows)
    mean = sum(float((row.columns["weight"] * row.columns["targets"]).sum()) for row in rows) / total
    return float(logit(mean, floor=1e-3))


@dataclass(frozen=True, slots=True)
class Schedule:
    """When what happens, in updates.

    Attributes:
        per_epoch: updates of one epoch of all labelled rows.
        head: updates of phase 1.
        total: updates of both phases at most.
        evaluations: numbers of updates after which the validation states are looked at.
    """

    per_epoch: int
    head: int
    total: int
    evaluations: frozenset[int]


def schedule(rows: Sequence[TrainingRow], settings: FitSettings) -> Schedule:
    """Returns the schedule that the settings give these rows."""
    states = sum(num_states(row) for row in rows)
    per_epoch = min(len(rows), max(1, math.ceil(states / settings.batch_states)))
    head = settings.head_updates
    total = head + max(1, math.ceil(settings.max_epochs * per_epoch))
    every = per_epoch / settings.evaluations_per_epoch
    looks = {head + math.ceil(j * every) for j in range(1, math.ceil((total - head) / every) + 1)}
    return Schedule(per_epoch, head, total, frozenset({0, head, total} | {u for u in looks if u <= total}))


def learning_rate(plan: Schedule, settings: FitSettings) -> Callable[[int], float]:
    """Returns updates taken -> rate: constant for the head, then a cosine to `FINAL_RATE` of the peak."""

    def rate(update: int) -> float:
        if update < plan.head:
            return settings.head_learning_rate
        done = (update - plan.head) / max(1, plan.total - plan.head)
        return settings.learning_rate * (
            FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(1, done)))
        )

    return rate


def rows_of_update(rows: Sequence[TrainingRow], plan: Schedule, update: int, seed: int) -> list[TrainingRow]:
    """Returns the rows of one update: a pure function of (seed, epoch, place in the epoch)."""
    phase, since = ("head", update) if update < plan.head else ("all", update - plan.head)
    epoch, place = divmod(since, plan.per_epoch)
    order = np.random.default_rng(seed_of("fit order", seed, phase, epoch)).permutation(len(rows))
    return normalised([rows[i] for i in np.array_split(order, plan.per_epoch)[place]])


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a fit went.

    Attributes:
        converged: `patience` evaluations running gained less than one standard error.
        best: number of the evaluation whose weights are the critic: within one standard error of the lowest
            Brier the highest EV_within, or the lowest Brier where that could not be measured.
        evaluations: one dictionary each: number, update, epoch, phase, train_loss, brier, brier_se,
            ev_within (these at the level of the validation counts), bias (at the level that was found), gain,
            gain_se, stale.
        base_logit: b0.
        num_updates: taken.
    """

    converged: bool
    best: int
    evaluations: tuple[dict[str, Any], ...]
    base_logit: float
    num_updates: int


def _nothing(*_: Any) -> None:
    pass


def fit(
    trainer: CriticTrainer,
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
    ranked: Sequence[RankedSet] = (),
) -> FitResult:
    """Returns how the fit went; the weights of `result.best` are those that `keep(result.best)` stored.

    Args:
        trainer: of a critic; its schedule and trainable weights are set here.
        fit_rows: `critics.rows.critic_rows` of the fit clusters.
        validation: `held_out` states of the validation clusters.
        settings: see `FitSettings`.
        seed: of the order of rows and of the resamples.
        keep: stores the present weights as those of an evaluation; called again with the same number after
            a kill, so it must overwrite.
        drop: forgets an evaluation that can no longer become the best.
        state: what `checkpoint` was last given; the trainer must have been restored to the same moment.
        checkpoint: is given everything but the trainer, JSON-serialisable, after each evaluation and where
            `on_update` was asked to stop.
        on_update: sees each update's metrics; may raise StopRequested.
        on_evaluation: sees each evaluation.
        bootstrap: makes the targets of the rows anew from the critic's own values at the start of each epoch;
            None keeps the rows' targets.
        ranked: sibling sets of the fit clusters, dealt over each epoch's updates. A set's loss is the mean
            over its pairs, and its weight makes the mean over an epoch's updates the mean over the sets.

    Raises:
        ArtifactError: nothing to fit or to validate on.
        ValueError: trainer and state disagree.
        DivergenceError: from the trainer; the weights are those before the update.
        StopRequested: from `on_update`; what was done is saved.
    """
    from pipeline.losses import critic_loss

    check_enough(fit_rows, validation)
    plan = schedule(fit_rows, settings)
    shift = base_logit(fit_rows)
    # Rows without any error verdict still need the loss's columns, which `critic_rows` always gives.
    error_weight = settings.error_weight if any(row.columns[COLUMNS[2]].any() for row in fit_rows) else 0.0
    loss = critic_loss(base_logit=shift, error_weight=error_weight, value_loss=settings.value_loss)
    trainer.learning_rate = learning_rate(plan, settings)
    now = dict(state) if state else _fresh_state()
    if now["num_updates"] != trainer.num_updates:
        raise ValueError(f"the state is of update {now['num_updates']}, the trainer of {trainer.num_updates}")
    rows: list[TrainingRow] | None = None
    while True:
        taken = trainer.num_updates
        if taken in plan.evaluations and (not now["evaluations"] or now["evaluations"][-1]["update"] < taken):
            entry = _evaluate(trainer, validation, plan, settings, shift, now, seed)
            forgotten = _retain(now)
            if entry["number"] in now["kept"]:
                keep(entry["number"])
            on_evaluation(entry)
            now |= {"num_updates": taken, "loss_sum": 0.0, "loss_count": 0}
            checkpoint(dict(now))
            for number in forgotten:  # only once no saved state names it
                if number != entry["number"]:
                    drop(number)
        if now["converged"] or taken >= plan.total:
            break
        trainer.set_trainable(["score"] if taken < plan.head else None)
        if bootstrap is not None:
            epoch = _bootstrap_epoch(taken, plan)
            if now.get("bootstrap_epoch") != epoch:
                now |= {"bootstrap_epoch": epoch, "bootstrap": bootstrap.values(trainer, fit_rows, shift)}
                rows = None
            if rows is None:
                rows = bootstrap.retargeted(fit_rows, now["bootstrap"])
        failpoint("critic.update.before")
        chosen, ranking = rows_of_update(rows or fit_rows, plan, taken, seed), {}
        if settings.rank_weight > 0 and ranked and (sets := sets_of_update(ranked, plan, taken, seed)):
            weight = settings.rank_weight * plan.per_epoch / len(ranked)
            chosen, total = with_ranking(trainer, chosen, sets, weight=weight)
            ranking = {"rank_loss": total / len(sets)}
        metrics = trainer.update(chosen, loss) | ranking
        failpoint("critic.update.after")
        now |= {
            "num_updates": trainer.num_updates,
            "loss_sum": now["loss_sum"] + metrics["value_loss"],
            "loss_count": now["loss_count"] + 1,
        }
        try:
            on_update(metrics | {"update": trainer.num_updates, "epoch": _epoch(trainer.num_updates, plan)})
        except StopRequested:
            checkpoint(dict(now))
            raise
    return FitResult(now["converged"], _best(now), tuple(now["evaluations"]), shift, trainer.num_updates)


def _fresh_state() -> dict[str, Any]:
    return {
        "num_updates": 0,
        "evaluations": [],
        "task_brier": {},
        "reference": None,
        "stale": 0,
        "converged": False,
        "kept": [],
        "loss_sum": 0.0,
        "loss_count": 0,
    }


def _epoch(update: int, plan: Schedule) -> float:
    return max(0, update - plan.head) / plan.per_epoch


def _bootstrap_epoch(taken: int, plan: Schedule) -> list[int]:
    """Returns which epoch of which phase the next update lies in: its targets are made once."""
    since = taken if taken < plan.head else taken - plan.head
    return [int(taken >= plan.head), since // plan.per_epoch]


def task_brier(p: np.ndarray, validation: HeldOut) -> np.ndarray:
    """Returns what each task adds to the weighted mean Brier of all states, tasks in sorted order.

    Their mean is that Brier. Dividing by a task's own weight instead would make the states of a rollout that
    ends early, and so is the likelier a failure, weigh more.
    """
    terms = brier_terms(p, validation.num_success / validation.num_samples)
    weights = state_weight(validation.num_samples.astype(np.float64))
    _, tasks = np.unique(validation.task_id, return_inverse=True)
    return np.bincount(tasks, weights=weights * terms) * ((tasks.max() + 1) / weights.sum())


def level_shift(logits: np.ndarray, validation: HeldOut) -> float:
    """Returns the constant that brings the logits [N] to the level of the validation counts."""
    n = validation.num_samples.astype(np.float64)
    weights = state_weight(n)  # as `task_brier` weighs them
    counts = weights * validation.num_success / n, weights
    return float(binomial_regression(np.ones((len(logits), 1)), *counts, ridge=1e-6, offset=logits)[0])


def paired_se(ours: np.ndarray, theirs: np.ndarray, seed: int) -> float:
    """Returns the bootstrap standard error, by task, of mean(ours - theirs)."""
    counts = resample_counts(len(ours), NUM_RESAMPLES, seed)
    return float((counts @ (ours - theirs) / len(ours)).std())


def _evaluate(
    trainer: Trainer,
    validation: HeldOut,
    plan: Schedule,
    settings: FitSettings,
    shift: float,
    now: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    z = validation.logits(trainer) + shift
    # Each batch moves the level of all values, which calibration sets anyway: what is left is judged.
    p = sigmoid(z + level_shift(z, validation))
    brier = task_brier(p, validation)
    update = trainer.num_updates
    # A gain counts from the last evaluation that gained a whole standard error: small gains add up.
    reference = now["reference"]
    gain = gain_se = None
    if reference is not None:
        before = np.array(now["task_brier"][str(reference)])
        gain, gain_se = float(np.mean(before - brier)), paired_se(before, brier, seed)
    number = len(now["evaluations"])
    improved = gain is None or gain_se is None or gain >= max(gain_se, 1e-12)
    # Phase 1 cannot converge: most weights have not moved yet.
    stale = 0 if improved or update <= plan.head else now["stale"] + 1
    now["stale"] = stale
    if improved:
        now["reference"] = number
    now["task_brier"] = now["task_brier"] | {str(number): brier.tolist()}
    now["converged"] = stale >= settings.patience
    n = validation.num_samples
    entry = {
        "number": number,
        "update": update,
        "epoch": _epoch(update, plan),
        "phase": "head" if update <= plan.head else "all",
        "train_loss": now["loss_sum"] / now["loss_count"] if now["loss_count"] else None,
        "brier": float(brier.mean()),
        "brier_se": paired_se(brier, np.zeros_like(brier), seed),
        "ev_within": ev_within(p, validation),
        "bias": float(np.mean(sigmoid(z) - validation.num_success / n)),
        "gain": gain,
        "gain_se": gain_se,
        "stale": stale,
    }
    # A fresh list, so that a state handed to `checkpoint` never changes afterwards.
    now["evaluations"] = [*now["evaluations"], entry]
    now["kept"] = [*now["kept"], number]
    now["seed"] = seed
    return entry


def ev_within(p: np.ndarray, validation: HeldOut) -> float | None:
    """Returns EV_within on fresh continuations; None if undefined or of too few rollouts."""
    at = validation.fresh_samples >= 2
    if not at.any():
        return None
    N = int(at.sum())
    audit = AuditData(
        rollout_id=validation.rollout_id[at],
        step_index=validation.step_index[at],
        context=validation.context[at],
        task_id=validation.task_id[at],
        cluster=validation.task_id[at],
        level=np.zeros(N, dtype=np.int64),
        split=np.full(N, ""),
        position=np.zeros(N),
        p=p[at],
        k=validation.fresh_success[at],
        K=validation.fresh_samples[at],
        v_star=np.full(N, np.nan),
    )
    if np.count_nonzero(np.bincount(audit.groups()) >= 2) < MIN_GROUPS_WITHIN:
        return None
    value = explained_variance_within(audit).value
    return float(value) if math.isfinite(value) else None


def _contenders(now: dict[str, Any]) -> list[int]:
    """Returns the kept evaluations within one paired standard error of the lowest Brier."""
    entries = now["evaluations"]
    lowest = min(now["kept"], key=lambda i: (entries[i]["brier"], i))
    best = np.array(now["task_brier"][str(lowest)])
    chosen = []
    for i in now["kept"]:
        ours = np.array(now["task_brier"][str(i)])
        if i == lowest or np.mean(ours - best) <= paired_se(ours, best, now["seed"]):
            chosen.append(i)
    return chosen


def _retain(now: dict[str, Any]) -> list[int]:
    """Keeps what may still become the best in `now`; returns what may be forgotten."""
    contenders = _contenders(now)
    dropped = [i for i in now["kept"] if i not in contenders]
    now["kept"] = contenders
    needed = {*map(str, contenders), str(now["reference"])}
    now["task_brier"] = {key: value for key, value in now["task_brier"].items() if key in needed}
    return dropped


def _best(now: dict[str, Any]) -> int:
    contenders, entries = _contenders(now), now["evaluations"]
    if all(entries[i]["ev_within"] is not None for i in contenders):
        return max(contenders, key=lambda i: (entries[i]["ev_within"], -entries[i]["brier"], i))
    return min(contenders, key=lambda i: (entries[i]["brier"], i))
