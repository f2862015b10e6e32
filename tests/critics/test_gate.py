from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from critics.audit.measures import measure
from critics.report import gate
from pipeline.statistics import Interval


def failed(conditions: list[gate.Condition]) -> set[str]:
    return {c.name for c in conditions if c.passed is False}


def good(V: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return V + rng.normal(0, 0.03, V.shape)


def judged(audit, **options):
    return gate.judge({"bare": measure(audit, num_resamples=300)}, **{"converged": True} | options)


def test_a_good_critic_passes_and_says_what_was_not_measured(make_audit) -> None:
    audit, _ = make_audit(good)
    conditions = judged(audit)
    assert gate.passed(conditions)
    assert {c.name for c in conditions if c.passed == gate.NOT_MEASURED} == {"sibling_top1", "probes"}


def test_an_imprecise_but_calibrated_critic_passes(make_audit) -> None:
    """E[V | what it sees]: off in single states, right on average; sampling of states must not fail it."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(60_000, 4))
    z = rng.normal(size=(60_000, 1)) + rng.normal(size=(60_000, 4))
    V, seen = 1 / (1 + np.exp(-z)), z + noise
    edges = np.quantile(seen, np.linspace(0, 1, 60))
    place = np.searchsorted(edges, seen.ravel())
    means = np.bincount(place, V.ravel(), 61) / np.maximum(np.bincount(place, minlength=61), 1)

    def blurred(V: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return means[np.searchsorted(edges, np.log(V / (1 - V)) + rng.normal(size=V.shape))]

    audit, _ = make_audit(blurred, num_rollouts=200)
    assert failed(judged(audit)) == set()


def test_an_unconverged_critic_fails_only_convergence(make_audit) -> None:
    audit, _ = make_audit(good)
    assert failed(judged(audit, converged=False)) == {"converged"}


def test_an_overconfident_critic_fails_only_calibration(make_audit) -> None:
    def overconfident(V: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 1 / (1 + np.exp(-2.2 * np.log(V / (1 - V))))

    audit, _ = make_audit(overconfident)
    assert failed(judged(audit)) == {"ece_excess"}


def test_a_critic_that_knows_only_the_rollout_fails_only_the_step_conditions(make_audit) -> None:
    audit, _V = make_audit(lambda V, rng: np.broadcast_to(V.mean(1, keepdims=True), V.shape))
    assert failed(judged(audit)) >= {"ev_within", "rho_a"}
    assert not failed(judged(audit)) & {"ev", "skill_over_task_rate", "ece_excess", "converged"}


def test_a_critic_with_weak_steps_fails_only_advantage_correlation(make_audit) -> None:
    """It follows slow changes within a rollout but jitters from step to step.

    Values drift over 12 steps, so that EV_within is won by the drift; neighbours differ mostly by noise.
    """
    rng = np.random.default_rng(0)
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=300, num_steps=12)
    drift = np.linspace(-1, 1, 12) * rng.choice([-1, 1], size=(300, 1))
    V = 1 / (1 + np.exp(-2.5 * drift))
    p = np.clip(V + rng.choice([-0.12, 0.12], size=V.shape), 0.01, 0.99).ravel()
    k = rng.binomial(32, V).ravel()
    # Recalibrate by bins, so that only the jitter is wrong.
    order = np.argsort(p)
    for at in np.array_split(order, 40):
        p[at] = V.ravel()[at].mean()
    audit = replace(audit, p=p, k=k)
    conditions = judged(audit, min_advantage_correlation=0.8)
    assert failed(conditions) == {"rho_a"}


def test_a_critic_worse_than_the_tasks_own_rate_fails_only_that_skill(make_audit) -> None:
    """Tasks differ a lot and many rollouts tell how; the critic sees steps well but tasks dimly."""
    rng = np.random.default_rng(2)
    audit, _ = make_audit(good, num_rollouts=600, rollouts_per_task=10)
    task = np.repeat(rng.choice([-1.5, 1.5], size=(60, 1)), 10, axis=0)
    steps = 0.6 * rng.normal(size=(600, 4))
    V = 1 / (1 + np.exp(-(task + steps)))
    seen = 0.6 * task + np.repeat(rng.normal(size=(60, 1)), 10, axis=0) + steps
    p = 1 / (1 + np.exp(-seen)).ravel()
    for at in np.array_split(np.argsort(p), 30):  # calibrated on average
        p[at] += V.ravel()[at].mean() - p[at].mean()
    outcomes = rng.random(600) < V[:, 0]
    rollouts = tuple(replace(r, reward=float(x)) for r, x in zip(audit.rollouts, outcomes, strict=True))
    audit = replace(audit, p=np.clip(p, 0.01, 0.99), k=rng.binomial(32, V).ravel(), rollouts=rollouts)
    # 60 tasks do not settle whether it is calibrated.
    assert failed(judged(audit)) - {"ece_excess"} == {"skill_over_task_rate"}


@pytest.mark.parametrize(
    "name",
    ["ev", "ev_within", "rho_a", "skill_over_task_rate", "skill_over_constant", "skill_over_position"],
)
def test_each_lower_bound_is_asked_for_by_itself(make_audit, name) -> None:
    bare = measure(make_audit(good)[0], num_resamples=100)
    conditions = gate.judge({"bare": bare | {name: Interval(0.3, -0.01, 0.6)}}, converged=True)
    assert failed(conditions) == {name}


def test_an_undefined_measure_does_not_pass(make_audit) -> None:
    audit, _ = make_audit(good)
    bare = measure(audit, num_resamples=100)
    undefined = Interval(float("nan"), float("nan"), float("nan"))
    conditions = gate.judge({"bare": bare | {"rho_a": undefined}}, converged=True)
    assert failed(conditions) == {"rho_a"}
    assert "undefined" in next(c.reason for c in conditions if c.name == "rho_a")


def test_one_cluster_has_no_bounds_and_does_not_pass(make_audit) -> None:
    audit, _ = make_audit(good)
    one = replace(audit, cluster=np.full(len(audit), "c"))
    assert "ev" in failed(judged(one))


def test_bounds_that_nobody_knows_are_not_told_as_numbers(make_audit) -> None:
    """A figure that is undefined in some resamples is bounded by infinities."""
    bare = measure(make_audit(good)[0], num_resamples=100)
    unbounded = {name: Interval(0.3, -np.inf, np.inf) for name in ("ev", "ece_excess")}
    conditions = gate.judge({"bare": bare | unbounded}, converged=True)
    assert failed(conditions) == {"ev", "ece_excess"}
    assert not any("inf" in c.reason for c in conditions)
    assert "0.300 without bounds" in next(c.reason for c in conditions if c.name == "ev")


def test_guided_states_are_judged_only_when_asked(make_audit) -> None:
    audit, _ = make_audit(good)
    bare = measure(audit, num_resamples=100)
    flat = bare | {"ev_within": Interval(0.0, -0.1, 0.1)}
    assert gate.passed(gate.judge({"bare": bare}, converged=True))
    assert failed(gate.judge({"bare": bare, "guided": flat}, converged=True)) == {"ev_within (guided)"}
    with pytest.raises(ValueError, match="bare"):
        gate.judge({"guided": bare}, converged=True)


def test_gate_json_is_strict_json_with_the_verdict_and_the_reasons(make_audit) -> None:
    audit, _ = make_audit(good)
    measures = measure(audit, num_resamples=100)
    conditions = gate.judge({"bare": measures}, converged=False)
    content = json.loads(
        json.dumps(
            gate.gate_dict(conditions, measures, contexts=("bare",), policy_digest="p", critic_digest="c"),
            allow_nan=False,
        )
    )
    assert content["verdict"] == "FAIL"
    assert content["passed"] is False
    assert content["reasons"] == ["converged: fitting ran out of epochs before it converged"]
    assert content["adv_rmse"] == pytest.approx(measures["adv_rmse"].value)


def test_the_opening_says_verdict_policy_and_limits_in_words(make_audit) -> None:
    audit, _ = make_audit(good)
    measures = measure(audit, num_resamples=100)
    passing = gate.opening(
        gate.judge({"bare": measures}, converged=True),
        measures,
        policy_digest="abcdef" * 5,
        weakest="level 3",
    )
    assert passing.startswith(
        "PASS. This critic estimates the chance that policy abcdefabcdef solves an unseen task"
    )
    assert "Weakest: level 3." in passing
    assert "Not measured: sibling_top1, probes." in passing
    assert passing.endswith("It does not judge step correctness.")
    failing = gate.opening(
        gate.judge({"bare": measures}, converged=False), measures, policy_digest="p", weakest=None
    )
    assert failing.startswith("FAIL.")
    assert "ran out of epochs" in failing


def test_how_far_a_share_is_below_minus_100_percent_is_not_told(make_audit) -> None:
    measures = measure(make_audit(good)[0], num_resamples=100)
    measures = {**measures, "ev_within": Interval(-3.2, -7.0, -0.4)}
    told = gate.opening([], measures, policy_digest="p", weakest=None)
    assert "below -100 % [below -100, -40] within one rollout" in told
