"""The gate against whole critics that must not pass, each for its own reason, beside one that must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from critics.audit.baselines import constant, position_only
from critics.audit.data import AuditData, AuditRollout
from critics.audit.measures import measure
from critics.labels.checks import check_labels
from critics.labels.soft_targets import build_labels
from critics.logit import logit, sigmoid
from critics.report import gate
from pipeline.errors import ArtifactError

Critic = Callable[[AuditData, np.ndarray, np.random.Generator], np.ndarray]
NUM_TASKS, PER_TASK, NUM_STEPS, K = 150, 4, 5, 16


def world(seed: int = 0) -> tuple[AuditData, np.ndarray, np.ndarray]:
    """Returns an audit without predictions, V [R, T], and what of log-odds V its rollout's own luck decides.

    logit V = what the task is like + a trend of the position + what the steps did.
    """
    rng = np.random.default_rng(seed)
    R = NUM_TASKS * PER_TASK
    task = np.repeat(rng.normal(size=NUM_TASKS), PER_TASK)[:, None]
    luck = np.cumsum(rng.normal(0, 0.8, size=(R, NUM_STEPS)), axis=1)
    V = sigmoid(task + np.linspace(-0.5, 0.5, NUM_STEPS) + luck)
    names, tasks = [f"r{i}" for i in range(R)], [f"t{i // PER_TASK}" for i in range(R)]
    rewards = (rng.random(R) < V[:, -1]).astype(float)
    return (
        AuditData(
            rollout_id=np.repeat(names, NUM_STEPS),
            step_index=np.tile(np.arange(NUM_STEPS), R),
            context=np.full(R * NUM_STEPS, "bare"),
            task_id=np.repeat(tasks, NUM_STEPS),
            cluster=np.repeat(tasks, NUM_STEPS),
            level=np.ones(R * NUM_STEPS, int),
            split=np.full(R * NUM_STEPS, "val"),
            position=np.tile(np.arange(NUM_STEPS) / NUM_STEPS, R),
            p=np.full(R * NUM_STEPS, 0.5),
            k=rng.binomial(K, V).ravel(),
            K=np.full(R * NUM_STEPS, K),
            v_star=np.full(R * NUM_STEPS, np.nan),
            rollouts=tuple(
                AuditRollout(n, t, "bare", float(x)) for n, t, x in zip(names, tasks, rewards, strict=True)
            ),
        ),
        V,
        task,
    )


AUDIT, V, TASK = world()


def recalibrated(p: np.ndarray) -> np.ndarray:
    """Returns p with each of 40 equal parts moved to the mean of V in it: off in single states alone."""
    p = p.copy()
    for part in np.array_split(np.argsort(p, kind="stable"), 40):
        p[part] += V.ravel()[part].mean() - p[part].mean()
    return np.clip(p, 0.005, 0.995)


def conditions(p: np.ndarray, *, converged: bool = True) -> dict[str, gate.Condition]:
    audit = replace(AUDIT, p=p)
    found = gate.judge({"bare": measure(audit, num_resamples=200)}, converged=converged)
    return {c.name: c for c in found if c.passed is False}


def real(rng: np.random.Generator) -> np.ndarray:
    return recalibrated(sigmoid(logit(V.ravel()) + rng.normal(0, 0.5, V.size)))


def test_the_real_one_passes() -> None:
    assert not conditions(real(np.random.default_rng(1)))


def test_a_constant_is_refused_because_it_explains_nothing() -> None:
    failed = conditions(constant(AUDIT))
    assert {"ev", "ev_within", "rho_a", "skill_over_constant"} <= set(failed)
    assert "undefined" in failed["rho_a"].reason
    assert "lower bound is not above 0" in failed["ev"].reason
    assert "ece_excess" not in failed


def test_position_alone_is_refused_because_position_is_no_skill() -> None:
    failed = conditions(position_only(AUDIT))
    assert "lower bound is not above 0" in failed["skill_over_position"].reason
    assert "rho_a" in failed
    assert "ev_within" not in failed  # it does follow the trend within a rollout
    assert "ece_excess" not in failed


def test_the_number_of_the_step_alone_is_refused_though_no_line_follows_it() -> None:
    """What calibration gives a dead network: one value a step, here up and down by turns."""
    rng = np.random.default_rng(7)
    turns = sigmoid(logit(V) + np.array([1.5, -1.5, 1.5, -1.5, 1.5]))
    audit = replace(AUDIT, k=rng.binomial(K, turns).ravel(), p=np.tile(turns.mean(axis=0), len(turns)))
    found = gate.judge({"bare": measure(audit, num_resamples=200)}, converged=True)
    failed = {c.name for c in found if c.passed is False}
    assert failed == {"skill_over_position"}


def test_the_rate_of_each_task_is_refused_because_it_knows_no_steps() -> None:
    rate = sigmoid(np.broadcast_to(TASK, V.shape)).ravel()
    failed = conditions(recalibrated(rate + np.random.default_rng(2).normal(0, 1e-6, V.size)))
    assert {"ev_within", "rho_a"} <= set(failed)
    assert not set(failed) & {"ev", "skill_over_constant", "ece_excess", "converged"}


def test_a_critic_of_shuffled_labels_is_refused_because_its_values_have_no_truth() -> None:
    rng = np.random.default_rng(3)
    failed = conditions(rng.permutation(real(rng)))
    assert {"ev", "ev_within", "rho_a", "skill_over_constant", "ece_excess"} <= set(failed)
    # A shuffled critic that was calibrated afterwards is nearly constant.
    calibrated = recalibrated(rng.permutation(real(rng)))
    assert {"ev_within", "rho_a"} <= set(conditions(calibrated))


def test_a_critic_of_guided_outcomes_is_refused_because_its_percentages_are_too_high() -> None:
    """Rollouts that were told the answer succeed more often than the states they pass through deserve."""
    told = sigmoid(logit(real(np.random.default_rng(4))) + 1.0)
    failed = conditions(told)
    assert "upper bound is not below 0.03" in failed["ece_excess"].reason
    assert not set(failed) & {"rho_a", "converged"}


def test_guided_outcomes_never_become_labels_of_bare_states(make_rollout, make_task) -> None:
    guided = make_rollout("a", guided=True)
    labels, _ = build_labels([guided], {}, kappa=0.0, label_policy_digest="policy-0", seed=0)
    smuggled = [replace(label, context="bare") for label in labels]
    with pytest.raises(ArtifactError, match=r"row 0: .*a guided rollout's outcome on a bare state"):
        check_labels(smuggled, [guided], [make_task("t0")], label_policy_digest="policy-0")


def test_an_under_trained_critic_is_refused_because_it_had_more_to_gain() -> None:
    """Its head alone has moved: it leans the right way and is calibrated, but fitting was cut short."""
    p = recalibrated(sigmoid(0.5 * logit(V.ravel()) + np.random.default_rng(5).normal(0, 0.5, V.size)))
    failed = conditions(p, converged=False)
    assert set(failed) == {"converged"}
    assert "ran out of epochs" in failed["converged"].reason


def test_an_overfitted_critic_is_refused_because_it_is_too_sure_on_unseen_tasks() -> None:
    """It learned its training states by heart; here it says 0 or 1 with little more than noise behind it."""
    rng = np.random.default_rng(6)
    failed = conditions(sigmoid(3 * (0.3 * logit(V.ravel()) + rng.normal(0, 1.0, V.size))))
    assert {"ev", "ev_within", "ece_excess", "skill_over_constant"} <= set(failed)
    assert "upper bound is not below 0.03" in failed["ece_excess"].reason
