import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics

from critics.audit import forecast
from critics.audit import measures as quality
from critics.audit.baselines import PRIORS, constant, position_only, task_rate
from critics.audit.calibration_error import calibration, equal_mass_bins
from critics.audit.data import AuditData, audited_states
from critics.audit.own_start import beyond_start
from pipeline.statistics import ClusterBootstrap
from pipeline.types import StateRef
from tests.critics.conftest import make_audit, make_rollout, make_task


def true_measures(p: np.ndarray, V: np.ndarray) -> dict[str, float]:
    """What the report says of p with V known exactly, both [R, T]."""
    pc, Vc = p - p.mean(1, keepdims=True), V - V.mean(1, keepdims=True)
    A, B = np.diff(p, axis=1).ravel(), np.diff(V, axis=1).ravel()
    brier, mean = np.mean((p - V) ** 2 + V * (1 - V)), V.mean()
    order = np.argsort(p.ravel())
    above, below = V.ravel()[order], np.cumsum((1 - V).ravel()[order])
    return {
        "skill_over_constant": 1 - brier / (mean * (1 - mean)),
        "auroc": (above * below).sum() / (above.sum() * below[-1]),
        "ev": 1 - np.mean((p - V) ** 2) / np.var(V),
        "ev_within": 1 - np.mean((pc - Vc) ** 2) / np.mean(Vc**2),
        "rho_a": np.corrcoef(A, B)[0, 1],
        "adv_rmse": math.sqrt(np.mean((A - B) ** 2)),
        "rmse": math.sqrt(np.mean((p - V) ** 2)),
        "flattening": A.std() / B.std(),
        "cov_a": np.cov(A, B, ddof=0)[0, 1],
        "bias": np.mean(p - V),
        "brier": brier,
    }


def by_task(audit: AuditData, V: np.ndarray) -> dict[str, float]:
    """What the report says with V known exactly of tasks and of the references as they are."""
    p, flat = audit.p, V.ravel()
    wins = pairs = 0.0
    for task in set(audit.task_id.tolist()):
        at = audit.task_id == task
        weight = flat[at][:, None] * (1 - flat[at])[None, :]
        wins, pairs = wins + (weight * (p[at][:, None] > p[at][None, :])).sum(), pairs + weight.sum()
    ours = np.mean((p - flat) ** 2 + flat * (1 - flat))
    own = 0.5 * (flat * (1 - flat)).sum() / pairs  # a state's own successes and failures are a tie
    return {
        "auroc_within_task": wins / pairs + own,
        **{
            f"skill_over_{name}": 1 - ours / np.mean((theirs - flat) ** 2 + flat * (1 - flat))
            for name, theirs in (("task_rate", task_rate(audit)), ("position", position_only(audit)))
        },
    }


@pytest.mark.parametrize("K", [8, 32])
def test_debiased_measures_recover_the_truth_at_any_number_of_continuations(K) -> None:
    audit, V = make_audit(lambda V, rng: 0.15 + 0.6 * V + rng.normal(0, 0.08, V.shape), K=K)
    found = quality.measure(audit, num_resamples=400)
    for name, truth in (true_measures(audit.p.reshape(V.shape), V) | by_task(audit, V)).items():
        assert found[name].low < truth < found[name].high, (name, truth, found[name])
        assert found[name].value == pytest.approx(truth, abs=0.05)
    gaps = np.bincount(equal_mass_bins(audit.p), weights=audit.p - V.ravel()) / audit.p.size
    assert found["ece"].value == pytest.approx(np.abs(gaps).sum(), abs=0.02)


@pytest.mark.parametrize("won", [0, 1])
def test_where_all_states_are_alike_no_share_of_any_error_can_be_gained(won: int) -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=120)
    rollouts = tuple(replace(rollout, reward=float(won)) for rollout in audit.rollouts)
    alike = replace(audit, k=won * audit.K, rollouts=rollouts)
    boot = ClusterBootstrap(alike.cluster, 100)
    found = {name: x for name, x in quality.skills(alike, boot).items() if "over" in name}
    assert len(found) == 5
    for name, interval in (found | {"beyond_start": beyond_start(alike, boot)}).items():
        assert math.isnan(interval.value), name


def test_a_constant_critic_explains_nothing_and_has_undefined_step_correlation() -> None:
    audit, _ = make_audit(lambda V, rng: np.full(V.shape, V.mean()))
    found = quality.measure(audit, num_resamples=100)
    assert found["ev"].value == pytest.approx(0, abs=0.01)
    assert found["ev_within"].value == pytest.approx(0, abs=1e-9)
    assert math.isnan(found["rho_a"].value)
    assert found["auroc"].value == pytest.approx(0.5)
    assert found["flattening"].value == pytest.approx(0)
    # States without spread leave nothing to explain.
    alike, _ = make_audit(lambda V, rng: V, spread=0.0, within=0.0, seed=3)
    assert not quality.explained_variance(alike, ClusterBootstrap(alike.cluster)).low > 0


def test_graded_rewards_are_fractions_of_a_success_and_their_own_noise_is_taken_out() -> None:
    """Rewards vary half as much as coins would: taking a coin's noise out would make the critic too good."""
    audit, V = make_audit(lambda V, rng: 0.15 + 0.6 * V, K=4, num_rollouts=2000)
    mean = np.clip(V.ravel(), 0.02, 0.98)[:, None]
    rewards = np.random.default_rng(0).beta(mean, 1 - mean, size=(len(audit), 4))
    graded = replace(audit, k=rewards.sum(axis=1), squares=(rewards**2).sum(axis=1))
    found = quality.measure(graded, num_resamples=200)
    truth = true_measures(audit.p.reshape(V.shape), mean.reshape(V.shape))
    for name in ("ev", "ev_within", "rho_a", "rmse", "adv_rmse", "bias", "auroc"):
        assert found[name].value == pytest.approx(truth[name], abs=0.03), name
    as_coins = quality.measure(replace(graded, squares=None), num_resamples=200)
    assert as_coins["ev"].low > truth["ev"]
    fair = replace(graded, p=mean.ravel())
    assert abs(calibration(fair, num_resamples=200)["ece_excess"].value) < 0.003
    outcomes, p = np.tile([1, 0], len(graded)), np.repeat(graded.p, 2)
    weights = np.stack([graded.k, graded.K - graded.k], axis=1).ravel()
    expected = metrics.roc_auc_score(outcomes, p, sample_weight=weights)
    assert found["auroc"].value == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1.0, 0.5])
def test_the_brier_score_and_clear_steps_of_graded_rewards_are_of_their_own_spread(unit) -> None:
    """A reward that is always one half has no spread, and a coin of 0 and `unit` has that of a coin."""
    audit, V = make_audit(lambda V, rng: V, K=8)
    rng = np.random.default_rng(0)
    rewards = unit * (rng.random((len(audit), 8)) < V.ravel()[:, None])
    graded = replace(audit, p=unit * audit.p, k=rewards.sum(axis=1), squares=(rewards**2).sum(axis=1))
    boot = ClusterBootstrap(audit.cluster, 20)
    samples = ((graded.p[:, None] - rewards) ** 2).mean()
    assert quality.skills(graded, boot)["brier"].value == pytest.approx(samples)
    plain = replace(audit, k=rewards.sum(axis=1) / unit)
    exact = replace(plain, squares=plain.k)
    assert quality.skills(plain, boot) == quality.skills(exact, boot)
    assert quality.steps(plain, boot) == quality.steps(exact, boot)
    # Steps between states that are always .3 and .7 are clear, though coins of these chances would not be.
    fixed = np.where(audit.step_index % 2, 0.7, 0.3)
    steady = replace(audit, p=fixed, k=8 * fixed, squares=8 * fixed**2)
    assert quality.steps(steady, boot)["sign_agreement"].value == 1
    assert math.isnan(quality.steps(replace(steady, squares=None), boot)["sign_agreement"].value)


def test_an_audit_pairs_neighbours_of_one_rollout_and_refuses_impossible_counts() -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=3)
    first, second = audit.pairs()
    assert len(first) == 3 * 3
    assert (audit.rollout_id[first] == audit.rollout_id[second]).all()
    assert (audit.step_index[first] + 1 == audit.step_index[second]).all()
    assert len(audit.where(audit.step_index != 1).pairs()[0]) == 3
    for changes, problem in (
        ({"k": audit.K + 1}, "k <= K"),
        ({"p": audit.p + 1}, "probabilities"),
        ({"step_index": np.zeros(len(audit), dtype=int)}, "once"),
    ):
        with pytest.raises(ValueError, match=problem):
            replace(audit, **changes)


def test_audited_states_are_those_with_two_graded_continuations() -> None:
    """Steps begin at tokens 0, 4, 8, 12 of a budget of 64."""
    rollout = make_rollout("r")

    def audited(*rewards: list[float]) -> AuditData:
        at = {StateRef("r", i, "bare"): own for i, own in enumerate(rewards)}
        values, exact = {"r": np.array([0.1, 0.2, 0.3, 0.4])}, {"r": [0.5, 0.6, 0.7, 0.8]}
        return audited_states([rollout], at, values, {"t0": make_task("t0", "val")}, solver_values=exact)

    found = audited([1.0, 1.0, 0.0], [1.0], [0.0, 0.0])
    assert found.step_index.tolist() == [0, 2]
    assert found.position.tolist() == [0, 8 / 64]
    assert (found.p.tolist(), found.v_star.tolist()) == ([0.1, 0.3], [0.5, 0.7])
    assert (found.k.tolist(), found.K.tolist()) == ([2, 0], [3, 2])
    assert found.squares is None  # of 0 and 1 they are k
    assert audited([0.5, 1.0]).squares.tolist() == [1.25]  # type: ignore[union-attr]
    assert len(audited([1.0])) == 0
    assert [r.rollout_id for r in audited([1.0]).rollouts] == ["r"]


def test_the_task_rate_counts_rollouts_of_the_states_own_context() -> None:
    """A task fails bare and succeeds after feedback; neither says anything of the other."""
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=8, rollouts_per_task=8)
    context = np.array(["bare", "guided"] * 4)
    rollouts = tuple(
        replace(r, context=str(c), reward=float(c == "guided"))
        for r, c in zip(audit.rollouts, context, strict=True)
    )
    audit = replace(audit, context=np.repeat(context, 4), rollouts=rollouts)
    audit = replace(audit, k=np.where(audit.context == "bare", 0, audit.K))
    assert task_rate(audit) == pytest.approx(np.where(audit.context == "bare", 0, 1), abs=0.05)


def test_the_task_rate_leaves_the_states_own_rollout_out() -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=4)
    rewards = [r.reward for r in audit.rollouts]
    others, mean = sum(rewards[1:]), audit.v_hat.mean()
    assert any(task_rate(audit)[0] == pytest.approx((others + s * mean) / (3 + s)) for s in PRIORS)


@pytest.mark.parametrize("rollouts_per_task", [1, 4])
def test_a_constant_has_no_skill_over_the_task_rate_where_success_is_rare(rollouts_per_task) -> None:
    audit, _ = make_audit(lambda V, rng: np.full_like(V, 0.1), rollouts_per_task=rollouts_per_task)
    rare = replace(audit, k=np.random.default_rng(1).binomial(audit.K, 0.1))
    rollouts = tuple(replace(r, reward=float(i % 10 == 0)) for i, r in enumerate(rare.rollouts))
    found = quality.skills(replace(rare, rollouts=rollouts), ClusterBootstrap(rare.cluster, 20))
    assert found["skill_over_task_rate"].value < 0.02
    never = quality.skills(replace(audit, k=np.zeros_like(audit.k)), ClusterBootstrap(audit.cluster, 20))
    assert math.isnan(never["skill_over_task_rate"].value)  # the reference makes all but no error


@pytest.mark.parametrize(("K", "least"), [(8, 0.88), (32, 0.95)])
def test_a_perfect_critic_sees_the_direction_of_clear_steps(K, least) -> None:
    audit, _ = make_audit(lambda V, rng: V, K=K)
    found = quality.steps(audit, ClusterBootstrap(audit.cluster, 100))
    assert found["sign_agreement"].value > least
    audit, _ = make_audit(lambda V, rng: V, K=2)
    few = quality.steps(audit, ClusterBootstrap(audit.cluster, 100))
    assert math.isnan(few["sign_agreement"].value)  # two samples each make no step clear


def test_baselines_get_the_best_constant_and_the_trend_of_the_position() -> None:
    audit, _ = make_audit(lambda V, rng: V)
    assert constant(audit)[0] == pytest.approx(audit.v_hat.mean())
    p = position_only(replace(audit, k=np.round(audit.K * (1 - audit.position)).astype(int)))
    assert p[0] > 0.9 > 0.4 > p[3]
    uneven = replace(audit, k=np.where(audit.step_index % 2, audit.K, 0))  # no line follows it
    np.testing.assert_allclose(position_only(uneven)[:4], [0, 1, 0, 1], atol=0.05)
    nothing = audit.where(np.zeros(len(audit), dtype=bool))
    assert len(position_only(nothing)) == 0


def test_slices_cover_every_state_once_per_kind() -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=60)
    rows = quality.slices(audit, num_resamples=100)
    for kind in ("level", "position", "split"):
        assert sum(row["num_states"] for row in rows if row["kind"] == kind) == len(audit)
    late = next(row for row in rows if (row["kind"], row["name"]) == ("position", "60-80 %"))
    alone = quality.measure(audit.where(quality.position_bins(audit) == 3), num_resamples=100)
    assert all(late[name] == alone[name] for name in ("ev", "rho_a", "auroc"))


def test_a_gain_within_rollouts_is_the_difference_of_two_explained_shares() -> None:
    audit, V = make_audit(lambda V, rng: 0.2 + 0.6 * V + rng.normal(0, 0.05, V.shape), K=4, num_rollouts=800)
    other = np.random.default_rng(2).normal(0.5, 0.05, len(audit)) + 0.3 * (V.ravel() - 0.5)
    boot = ClusterBootstrap(audit.cluster, 200)
    gain = quality.gained_within(audit, other, boot)
    own, theirs = (
        quality.explained_variance_within(replace(audit, p=p), boot) for p in (audit.p, np.clip(other, 0, 1))
    )
    assert gain.value == pytest.approx(own.value - theirs.value, abs=1e-9)
    assert gain.high - gain.low < own.high - own.low  # what both have in common is no noise
    truth = true_measures(audit.p.reshape(V.shape), V)["ev_within"]
    truth -= true_measures(other.reshape(V.shape), V)["ev_within"]
    assert gain.low < truth < gain.high


@pytest.mark.parametrize("K", [2, 16])
def test_the_forecast_width_of_rho_a_is_that_of_audits(K, monkeypatch) -> None:
    """Also where nothing but chance spreads, and it is no normal one."""
    audits = [
        make_audit(lambda V, rng: V + rng.normal(0, 0.12, V.shape), K=K, seed=seed) for seed in range(20)
    ]
    V = np.stack([V for _, V in audits])
    monkeypatch.setattr(forecast, "SPREAD", np.diff(V, axis=2).var())
    monkeypatch.setattr(forecast, "NOISE", (V * (1 - V)).mean())
    values = [quality.steps(a, ClusterBootstrap(a.cluster, 2))["rho_a"].value for a, _ in audits]
    monkeypatch.setattr(forecast, "EXPECTED", float(np.mean(values)))
    seen = 1.96 * np.std(values)
    planned = forecast.half_width(400, K, 3)
    assert planned / 2 < seen < 1.3 * planned
