"""Weights by class shift logits by what is known, and calibration takes the shift back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from critics.fit.convergence import level_shift, task_brier
from critics.fit.held_out import held_out
from critics.fit.loop import fit
from critics.fit.rows import MAX_CLASS_RATIO, class_factors, critic_rows
from critics.frozen.calibrator import fit_calibrator
from critics.logit import logit, sigmoid
from pipeline.types import Label
from tests.critics.test_fitting import NUM_CELLS, Settings, trainer_of, walks


def one_sample_each(make_rollout, V, seed):
    """Rollouts of one step, each of its own task, whose only label is one outcome of known probability."""
    outcomes = (np.random.default_rng(seed).random(len(V)) < V).astype(float)
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", num_steps=1, reward=outcomes[i]) for i in range(len(V))]
    labels = [
        Label(f"r{i}", 0, "bare", 0, 0, y, y, 1.0, "outcome", "policy-0") for i, y in enumerate(outcomes)
    ]
    return rollouts, labels


def test_classes_weigh_alike_up_to_four_to_one() -> None:
    y = np.array([1.0, 0.9, 0.1, 0.0, 0.2, 0.3, 0.4, 0.0])
    low, high = class_factors(y, np.ones(8))
    assert high / low == pytest.approx(3)
    assert 6 * low == pytest.approx(2 * high)
    assert 6 * low + 2 * high == pytest.approx(8)
    low, high = class_factors(np.array([1.0, *np.zeros(9)]), np.ones(10))
    assert high / low == pytest.approx(MAX_CLASS_RATIO)
    assert class_factors(np.zeros(3), np.ones(3)) == (1.0, 1.0)


def test_balanced_rows_keep_their_total_and_their_error_weights(make_rollout) -> None:
    rollouts, labels = one_sample_each(make_rollout, np.full(40, 0.3), 0)
    plain, balanced = (critic_rows(rollouts, labels, class_balance=how) for how in ("task", "label"))
    weight = {name: np.concatenate([r.columns["weight"] for r in rows]) for name, rows in
              (("task", plain), ("label", balanced))}  # fmt: skip
    targets = np.concatenate([row.columns["targets"] for row in plain])
    assert weight["label"].sum() == pytest.approx(weight["task"].sum(), rel=1e-6)
    assert weight["label"][targets >= 0.5].sum() == pytest.approx(weight["label"].sum() / 2, rel=1e-6)
    for one, other in zip(plain, balanced, strict=True):
        assert (one.columns["error_weights"] == other.columns["error_weights"]).all()


@pytest.mark.parametrize("base", [0.12, 0.3, 0.8])
def test_one_sample_labels_shift_logits_by_the_ratio_and_calibration_undoes_it(make_rollout, base) -> None:
    """The critic is a table of kinds of states, so that what minimises its loss is known in closed form."""
    rng = np.random.default_rng(1)
    truth = sigmoid(logit(base) + np.linspace(-1.2, 1.2, 5))
    kind = rng.integers(0, 5, 40_000)
    rollouts, labels = one_sample_each(make_rollout, truth[kind[:8000]], 2)
    rows = critic_rows(rollouts, labels, class_balance="label")
    at = len(rollouts[0].prompt_token_ids) - 1
    weights, y = (np.array([row.columns[name][at] for row in rows]) for name in ("weight", "targets"))
    ratio = weights[y == 1][0] / weights[y == 0][0]
    assert 1 / MAX_CLASS_RATIO <= ratio <= MAX_CLASS_RATIO
    assert abs(np.log(ratio)) > 0.5
    fitted = np.array([np.average(y[kind[:8000] == j], weights=weights[kind[:8000] == j]) for j in range(5)])
    noise = 4 / np.sqrt(8000 / 5 * truth * (1 - truth))  # four standard errors of a logit
    assert (np.abs(logit(fitted) - logit(truth) - np.log(ratio)) < noise).all()
    assert np.abs(fitted - truth).max() > 0.1  # uncalibrated, the level is far off
    held = kind[8000:]
    k = rng.binomial(1, truth[held])
    calibrator = fit_calibrator(logit(fitted)[held], k, np.ones(len(held)), base_logit=0.0)
    assert np.abs(calibrator(logit(fitted)) - truth).max() < 0.03


def test_a_fit_balanced_by_class_is_calibrated_and_converges(tiny_trunk, make_rollout) -> None:
    rollouts, labels = walks(make_rollout, 240, 0)
    # One sample of a state instead of eight, and few of the good states: successes are rare.
    rng = np.random.default_rng(3)
    cells = {
        r.rollout_id: [t - 20 for t in (*r.prompt_token_ids[1:], *r.response_token_ids)] for r in rollouts
    }
    single = []
    for label in labels:
        cell = cells[label.rollout_id][label.step_index]
        if cell >= 3 and rng.random() < 0.7:
            continue
        y = float(rng.random() < cell / NUM_CELLS)
        single.append(replace(label, num_continuations=1, num_success=int(y), target=y, weight=1.0))
    rows = critic_rows(rollouts, single, class_balance="label")
    validation = held_out(*walks(make_rollout, 80, 1))
    trainer = trainer_of(tiny_trunk)
    stored = {}

    def keep(number):
        stored[number] = {name: w.clone() for name, w in trainer.weights().items()}

    result = fit(trainer, rows, validation, Settings(), seed=0, keep=keep)
    assert result.evaluations[result.best]["bias"] > 0.03
    trainer.model.load_state_dict(stored[result.best])
    z = validation.logits(trainer)
    raw = sigmoid(z + result.base_logit)
    # What is judged is what calibration leaves: all but the level.
    judged = task_brier(sigmoid(z + level_shift(z, validation)), validation).mean()
    assert result.evaluations[result.best]["brier"] == pytest.approx(judged, abs=1e-6)
    assert judged < task_brier(raw, validation).mean() - 0.001
    truth = np.array(
        [
            (validation.rows[r].token_ids[p] - 20) / NUM_CELLS
            for r, p in zip(validation.row, validation.position, strict=True)
        ]
    )
    assert abs(np.mean(raw - truth)) > 0.03
    calibrator = fit_calibrator(
        z, validation.num_success, validation.num_samples, base_logit=result.base_logit
    )
    assert abs(np.mean(calibrator(z) - truth)) < 0.02
    assert np.sqrt(np.mean((calibrator(z) - truth) ** 2)) < 0.08


def test_the_level_is_that_of_the_counts(make_rollout) -> None:
    states = held_out(*walks(make_rollout, 60, 4))
    z = np.random.default_rng(0).normal(size=len(states.row)) + 2
    p = sigmoid(z + level_shift(z, states))
    assert p @ states.num_samples == pytest.approx(states.num_success.sum(), rel=1e-5)
