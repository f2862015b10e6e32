"""The gate: whole critics that must not pass, each for its own reason, beside those that must pass."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from critics.audit.baselines import constant, errors_so_far, position_only
from critics.audit.data import AuditData, level_refitted
from critics.audit.measures import explained_variance_within, measure, steps
from critics.audit.own_start import beyond_start
from critics.logit import logit, sigmoid
from critics.privileged import Kind
from critics.report import gate
from critics.report.opening import findings, opening_of
from pipeline.statistics import ClusterBootstrap, Interval
from tests.critics.conftest import audit_of

NUM_TASKS, PER_TASK, NUM_STEPS, K = 150, 4, 5, 16


def world(seed: int = 0) -> tuple[AuditData, np.ndarray, np.ndarray]:
    """Returns an audit without predictions, V [R, T], and what of log-odds V its task decides.

    logit V = what the task is like + a trend of the position + what the steps did.
    """
    rng, R = np.random.default_rng(seed), NUM_TASKS * PER_TASK
    task = np.repeat(rng.normal(size=NUM_TASKS), PER_TASK)[:, None]
    luck = np.cumsum(rng.normal(0, 0.8, size=(R, NUM_STEPS)), axis=1)
    V = sigmoid(task + np.linspace(-0.5, 0.5, NUM_STEPS) + luck)
    audit = audit_of(V, np.full(V.shape, 0.5), rng, K=K, rollouts_per_task=PER_TASK, decided_at=-1)
    return replace(audit, cluster=audit.task_id), V, task


AUDIT, V, TASK = world()
TRUTH = V.ravel()
CODES = np.unique(AUDIT.task_id, return_inverse=True)[1]


def recalibrated(p: np.ndarray) -> np.ndarray:
    """Returns p with each of 40 equal parts moved to the mean of V in it: off in single states alone."""
    p = p.copy()
    for part in np.array_split(np.argsort(p, kind="stable"), 40):
        p[part] += TRUTH[part].mean() - p[part].mean()
    return np.clip(p, 0.005, 0.995)


def real(rng: np.random.Generator) -> np.ndarray:
    return recalibrated(sigmoid(logit(TRUTH) + rng.normal(0, 0.5, V.size)))


def failed(audit: AuditData, *, converged: bool = True, privileged: Kind = "none") -> dict[str, str]:
    """Returns the reasons of failed conditions by name."""
    measures = gate.measures_of(audit, num_resamples=200, seed=0)
    conditions = gate.judge({"bare": measures}, converged=converged, privileged=privileged)
    return {c.name: c.reason for c in conditions if c.passed is False}


def blurred(rng: np.random.Generator) -> np.ndarray:
    """E[V | what it sees]: off in single states, right on average; sampling of states must not fail it."""
    seen, p = logit(TRUTH) + rng.normal(0, 1.0, V.size), np.zeros(V.size)
    for part in np.array_split(np.argsort(seen), 60):
        p[part] = TRUTH[part].mean()
    return p


def of_the_task(rng: np.random.Generator) -> np.ndarray:
    return recalibrated(sigmoid(np.broadcast_to(TASK, V.shape)).ravel() + rng.normal(0, 1e-6, V.size))


def overfitted(rng: np.random.Generator) -> np.ndarray:
    """It learned its training states by heart; here it says 0 or 1 with little more than noise behind it."""
    return sigmoid(3 * (0.3 * logit(TRUTH) + rng.normal(0, 1.0, V.size)))


STEPS = {"ev_within", "rho_a"}
CRITICS: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], set[str], set[str]]] = {
    "the real one": (real, set(), set()),
    "imprecise but calibrated": (blurred, set(), set()),
    "too low, as outcomes would mend": (lambda rng: sigmoid(logit(real(rng)) - 0.4), set(), set()),
    "a constant": (
        lambda rng: constant(AUDIT), {"ev", *STEPS, "skill_over_constant"}, {"level", "converged"},
    ),
    "the position alone": (
        lambda rng: position_only(AUDIT), {"rho_a", "skill_over_position"}, {"ev_within", "level"},
    ),
    "the rate of each task": (of_the_task, STEPS, {"ev", "skill_over_constant", "ece_excess", "converged"}),
    "of shuffled labels": (
        lambda rng: rng.permutation(real(rng)), {"ev", *STEPS, "skill_over_constant", "ece_excess"}, set(),
    ),
    "of shuffled labels, calibrated": (lambda rng: recalibrated(rng.permutation(real(rng))), STEPS, set()),
    "of guided outcomes, which are too high": (
        lambda rng: sigmoid(logit(real(rng)) + 1.0), {"level"}, {"rho_a", "ece_excess", "converged"},
    ),
    "overconfident": (lambda rng: sigmoid(2.2 * logit(real(rng))), {"ece_excess"}, {"rho_a", "level"}),
    "overfitted": (overfitted, {"ev", "ev_within", "ece_excess", "skill_over_constant"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_fails_for_its_own_reasons_alone(name: str) -> None:
    critic, must, must_not = CRITICS[name]
    audit = replace(AUDIT, p=critic(np.random.default_rng(3)))
    found = failed(audit)
    assert set(failed(audit, privileged="words")) - set(found) <= {"skill_over_errors_so_far"}
    assert must or not failed(audit, privileged="words")
    assert name != "the real one" or not failed(audit, privileged="features")
    assert must <= set(found)
    assert not must_not & set(found)
    assert must or not found
    if name == "a constant":
        assert "undefined" in found["rho_a"]
        assert "lower bound is not above 0" in found["ev"]
    if name == "overfitted":
        assert "upper bound is not below 0.03" in found["ece_excess"]


def test_the_number_of_the_step_alone_is_refused_though_no_line_follows_it() -> None:
    """What calibration gives a dead network: one value a step, here up and down by turns."""
    rng = np.random.default_rng(7)
    turns = sigmoid(logit(V) + np.array([1.5, -1.5, 1.5, -1.5, 1.5]))
    audit = replace(AUDIT, k=rng.binomial(K, turns).ravel(), p=np.tile(turns.mean(axis=0), len(turns)))
    assert set(failed(audit)) == {"skill_over_position"}


def test_a_critic_that_reads_no_step_may_pass_and_is_told_by_what_it_says_beyond_its_start() -> None:
    """Each step survives by a chance that falls for good once it did damage; V is known exactly."""
    rng, T = np.random.default_rng(0), 5
    rows: list[tuple[object, ...]] = []
    for task in range(150):
        survives = sigmoid(1.8 + 0.7 * rng.normal() - np.arange(T + 1.0))
        of = np.ones((T + 1, T + 2))  # V before step i with so much damage
        seen = np.zeros((T + 1, T + 2))
        seen[0, 0] = 1
        for i in reversed(range(T)):
            of[i, : i + 1] = survives[: i + 1] * (0.3 * of[i + 1, 1 : i + 2] + 0.7 * of[i + 1, : i + 1])
        for i in range(T):
            alive = seen[i, : i + 1] * survives[: i + 1]
            seen[i + 1, : i + 1] += 0.7 * alive
            seen[i + 1, 1 : i + 2] += 0.3 * alive
        expected = (seen * of).sum(axis=1) / seen.sum(axis=1)
        for draw in range(2):
            damage = 0
            for i in range(T):
                rows.append((f"r{task}-{draw}", i, f"t{task}", expected[i], of[i, damage]))
                if rng.random() >= survives[damage]:
                    break
                damage += rng.random() < 0.3
    rollout, step, task_id, blind, true = map(np.array, zip(*rows, strict=True))
    n = len(rows)
    audit = AuditData(
        rollout_id=rollout, step_index=step, context=np.full(n, "bare"), task_id=task_id, cluster=task_id,
        level=np.ones(n, int), split=np.full(n, "test"), position=step / T, p=blind,
        k=rng.binomial(16, true), K=np.full(n, 16), v_star=np.full(n, np.nan),
    )  # fmt: skip
    boot = ClusterBootstrap(audit.cluster, 200, 0)
    assert explained_variance_within(audit, boot).low > 0  # by the trend of survivors alone
    assert steps(audit, boot)["rho_a"].low > gate.MIN_ADVANTAGE_CORRELATION
    nothing, exact = (beyond_start(replace(audit, p=p), boot) for p in (blind, np.clip(true, 0.001, 0.999)))
    assert abs(nothing.value) < 0.03
    assert exact.low > 0.5


def test_rollouts_of_one_step_are_told_that_there_is_no_step_to_judge() -> None:
    found = failed(AUDIT.where(AUDIT.step_index == 0))
    for name in ("ev_within", "rho_a"):
        assert "no rollout has two audited states in a row" in found[name]
        assert "actor.credit.mode=decoupled_clip" in found[name]
    assert "two audited states" not in failed(AUDIT.where(AUDIT.step_index < 0))["rho_a"]


def test_a_critic_that_only_counts_the_verdicts_it_is_told_is_refused() -> None:
    """Errors explain half of what happens within a rollout here; who reads the rest as well passes."""
    rng = np.random.default_rng(8)
    wrong = rng.random(V.shape) < 0.3
    errors = np.cumsum(wrong, axis=1) - wrong
    rollouts = tuple(
        replace(r, statuses=tuple(np.where(row, "wrong", "unknown").tolist()))
        for r, row in zip(AUDIT.rollouts, wrong, strict=True)
    )
    fallen = sigmoid(logit(V) - 1.5 * errors)
    audit = replace(AUDIT, k=rng.binomial(K, fallen).ravel(), rollouts=rollouts)
    counting = replace(audit, p=errors_so_far(audit))
    assert measure(counting, num_resamples=50)["ev_within"].value > 0.3
    for kind, above in gate.ABOVE_IF_TOLD.items():
        assert set(failed(counting, privileged=kind)) == {name for name, *_ in above}
    # So is one that knows the level of its task as well, as of shuffled labels, calibrated on true ones.
    means = np.bincount(CODES, weights=audit.v_hat - counting.p) / np.bincount(CODES)
    knowing = replace(audit, p=np.clip(counting.p + 0.2 * means[CODES], 0.005, 0.995))
    refused = failed(knowing, privileged="features")
    assert "ev_within_over_errors_so_far" in refused
    assert "skill_over_errors_so_far" not in refused
    assert not failed(replace(audit, p=fallen.ravel()), privileged="features")


def test_a_refitted_level_has_not_seen_its_own_cluster_and_moves_no_order() -> None:
    low = replace(AUDIT, p=sigmoid(logit(real(np.random.default_rng(0))) - 0.8))
    refitted = level_refitted(low, seed=0)
    assert abs(np.mean(low.p - low.v_hat)) > 0.1
    assert np.mean(refitted.p - refitted.v_hat) == pytest.approx(0, abs=0.01)
    one = AUDIT.cluster == "t7"
    other = level_refitted(replace(low, k=np.where(one, 0, low.k)), seed=0)
    np.testing.assert_array_equal(other.p[one], refitted.p[one])
    assert (other.p[~one] <= refitted.p[~one]).all()
    for task in range(20):
        at = AUDIT.task_id == f"t{task}"
        np.testing.assert_array_equal(np.argsort(low.p[at]), np.argsort(refitted.p[at]))


@pytest.fixture(scope="module")
def bare() -> dict[str, Interval]:
    return gate.measures_of(replace(AUDIT, p=real(np.random.default_rng(1))), num_resamples=100, seed=0)


NAN = float("nan")
CHANGES = [
    *[({name: Interval(0.3, at, 0.6)}, f"not above {at:g}") for name, at, _ in gate.ABOVE],
    ({"rho_a": Interval(NAN, NAN, NAN)}, "undefined"),
    ({"ev": Interval(0.3, -np.inf, np.inf)}, "0.300 without bounds"),  # undefined in some resamples
    ({"ece_excess": Interval(0.01, -0.01, 0.03)}, "not below 0.03"),
    ({"ece_excess": Interval(0.01, -np.inf, np.inf)}, "fewer than 10 clusters"),
    ({"level_bias": Interval(-0.11, -0.14, -0.02)}, "predicted minus measured is -0.110"),
    ({"level_bias": Interval(NAN, NAN, NAN)}, "undefined"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=lambda x: str(x)[:40])
def test_each_condition_is_asked_by_itself_and_says_what_it_found(bare, change, words) -> None:
    conditions = gate.judge({"bare": bare | change}, converged=True)
    [found] = [c for c in conditions if c.passed is False]
    assert found.name == {"level_bias": "level"}.get(name := next(iter(change)), name)
    assert words in found.reason
    assert "inf" not in found.reason


def test_a_level_that_chance_may_explain_is_no_reason_and_one_cluster_never_passes(bare) -> None:
    for level in (Interval(0.2, -0.1, 0.5), Interval(0.1, 0.05, 0.15), Interval(-0.1, -0.15, -0.05)):
        assert gate.passed(gate.judge({"bare": bare | {"level_bias": level}}, converged=True))
    one = replace(AUDIT, p=real(np.random.default_rng(1)), cluster=np.full(len(AUDIT), "c"))
    assert "ev" in failed(one)


def test_guided_states_are_judged_only_when_asked(bare) -> None:
    flat = bare | {"ev_within": Interval(0.0, -0.1, 0.1)}
    conditions = gate.judge({"bare": bare, "guided": flat}, converged=True)
    assert {c.name for c in conditions if c.passed is False} == {"ev_within (guided)"}
    assert {c.name for c in conditions if c.passed == gate.NOT_MEASURED} == {"sibling_excess", "probes"}
    with pytest.raises(ValueError, match="bare"):
        gate.judge({"guided": bare}, converged=True)


def test_gate_json_is_strict_json_with_the_verdict_the_reasons_and_an_interval_of_adv_rmse(bare) -> None:
    conditions = gate.judge({"bare": bare}, converged=False)
    digests = {"policy_digest": "p", "critic_digest": "c"}
    made = gate.gate_dict(conditions, bare["adv_rmse"], contexts=("bare",), **digests)
    content = json.loads(json.dumps(made, allow_nan=False))
    assert (content["verdict"], content["passed"]) == ("FAIL", False)
    assert content["reasons"] == ["converged: fitting ran out of epochs before it converged"]
    assert content["adv_rmse"]["low"] < content["adv_rmse"]["value"] < content["adv_rmse"]["high"]
    assert content["kl_range"] == [0.0, 0.0]


def test_the_opening_says_verdict_policy_limits_and_key_figures_in_words(bare) -> None:
    passing = opening_of(gate.judge({"bare": bare}, converged=True), "abcdef" * 5, [])
    assert re.match(r"PASS\. .* policy abcdefabcdef ", passing)
    assert "Not measured: sibling_excess, probes." in passing
    failing = opening_of(gate.judge({"bare": bare}, converged=False), "p", [])
    assert failing.startswith("FAIL.")
    assert "ran out of epochs" in failing
    flat = bare | {name: Interval(0.0, -0.1, 0.1) for name, *_ in gate.ABOVE}
    assert "; and 4 more." in opening_of(gate.judge({"bare": flat}, converged=False), "p", [])
    deep = bare | {"ev_within": Interval(-3.2, -7.0, -0.4), "sign_agreement": Interval(0.9, NAN, NAN)}
    told = dict(map(reversed, findings(deep, None)))
    assert told["[below -100, -40] of those within one rollout (0: useless for steps)"] == "below -100 %"
    assert told["[no bounds] of clear steps seen in the right direction (a coin: 50 %)"] == "90 %"
    off = dict(map(reversed, findings(bare | {"level_bias": Interval(-0.07, -0.1, -0.04)}, None)))
    assert any("once their level is right; as frozen it is off by 7 " in words for words in off)
    assert any("visible is 50 % or more" in words for _, words in findings(deep, 0.5))


def test_the_weakest_slice_is_never_all_that_was_audited() -> None:
    sizes = {("level", "1"): (600, 0.3), ("split", "test"): (300, 0.1), ("split", "val"): (300, 0.2)}
    rows = [
        {"kind": kind, "name": name, "num_states": number, "rmse": Interval(rmse, NAN, NAN)}
        for (kind, name), (number, rmse) in sizes.items()
    ]
    assert "Weakest: split val, where values are 20 points off the truth." in opening_of([], "p", rows)
