from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from critics.fit.held_out import held_out, outcome_states
from critics.fit.rows import critic_rows
from critics.labels.checks import check_labels, check_outcomes_differ, kinds_of
from critics.labels.choose_states import START_EVERY, candidate_steps, choose_states
from critics.labels.named_targets import retarget
from critics.labels.recovery import StateFeatures, fit_recovery, fold_of
from critics.labels.samples import samples_of
from critics.labels.soft_targets import label_counts, recovery_features, state_weight
from pipeline.errors import ArtifactError, ExitCode
from pipeline.types import RolloutKind, StateRef
from tests.critics.conftest import POLICY, build, make_rollout, make_task


def continuation(parent, index, reward, draw=0, **changes):
    return make_rollout(
        f"{parent.rollout_id}-{index}-{draw}",
        task=parent.task_id,
        start_step_index=index,
        parent_rollout_ids=(parent.rollout_id,),
        guided=parent.guided,
        reward=reward,
        **changes,
    )


def sampled(parent, index, rewards):
    """Continuations with these rewards, by the state that they start from."""
    draws = [continuation(parent, index, float(x), d) for d, x in enumerate(rewards)]
    return {StateRef(parent.rollout_id, index, parent.context): draws}


def choose(rollouts, cap=None, share=0.0, seed=0):
    return choose_states(rollouts, max_states=cap, guided_share=share, seed=seed)


def own_tokens(name, i, **changes):
    """A rollout that shares no state but the first with those of another number."""
    return make_rollout(name, seed=100 + i, response_token_ids=tuple(range(i, i + 15)), **changes)


def test_states_are_chosen_at_shares_of_the_response_and_around_errors() -> None:
    # Steps start at 0, 4, 8, ... of 39 tokens or 79; after the last one is the end.
    assert candidate_steps(make_rollout("a", num_steps=10)) == (0, 3, 6, 9)
    assert candidate_steps(make_rollout("a", num_steps=10, wrong={4: "missing"})) == (0, 3, 4, 5, 6, 9)
    assert candidate_steps(make_rollout("a", num_steps=20)) == (0, 6, 12, 18)
    tied = make_rollout("a", num_steps=5, response_token_ids=tuple(range(20)))  # 6 lies between 4 and 8
    assert candidate_steps(tied) == (0, 1, 3, 4)
    assert candidate_steps(make_rollout("a", num_steps=20, wrong={19: "missing"})) == (0, 6, 12, 18, 19)


def test_choosing_ignores_outcomes_and_order() -> None:
    rollouts = [own_tokens(f"r{i}", i, task=f"t{i % 3}") for i in range(12)]
    chosen = choose(rollouts, 9, seed=1)
    flipped = [replace(r, reward=1 - r.reward) for r in reversed(rollouts)]
    assert choose(flipped, 9, seed=1) == chosen
    assert len(chosen) == 9
    by_task = [sum(s.rollout_id in {f"r{i}" for i in range(t, 12, 3)} for s in chosen) for t in range(3)]
    assert by_task == [3, 3, 3]
    assert any(state.step_index == 0 for state in chosen)
    assert choose(rollouts, 9, seed=2) != chosen


def test_starts_are_chosen_by_hash_alone_however_many_other_states_there_are() -> None:
    """Easy tasks have one state beside the start, hard ones many, and the start shows neither."""
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", num_steps=2 + 4 * (i % 2), seed=i) for i in range(800)]
    starts = [int(s.rollout_id[1:]) % 2 for s in choose(rollouts, 800) if s.step_index == 0]
    assert len(starts) == 800 // START_EVERY
    assert np.mean(starts) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(starts)))
    assert len(choose(rollouts)) == 400 * 2 + 400 * 4
    assert [s.step_index for s in choose([make_rollout("a")], 1)] == [0]  # the first of the tasks


def test_several_starts_of_a_task_keep_the_spread_and_nothing_depends_on_ids() -> None:
    """After feedback starts are other states where the prompts differ; of equal ones a seed supplies it."""

    def chain(names, cap):
        rollouts = []
        for i, name in enumerate(names):
            changes = {"task": f"t{i % 40}", "prompt_token_ids": (1, i // 80)}
            rollouts.append(own_tokens(name, i, guided=True, **changes))
        by_id = {r.rollout_id: r for r in rollouts}
        states, samples = choose(rollouts, cap, share=1.0), {}
        for s in states:
            samples |= sampled(by_id[s.rollout_id], s.step_index, [1])
        return [
            [(by_id[x.rollout_id].seed, x.step_index, getattr(x, "target", None)) for x in entries]
            for entries in (states, build(rollouts, samples, kappa=2)[0])
        ]

    names = [f"r{i:03}" for i in range(160)]
    assert len({(seed - 100) % 40 for seed, *_ in chain(names, 30)[0]}) == 30
    for cap in (30, 250):
        assert chain(names, cap) == chain(names[::-1], cap)


def test_equal_states_of_a_task_are_one_and_what_was_not_played_whole_supplies_none() -> None:
    same = [make_rollout("a"), make_rollout("b"), make_rollout("c", task="t1")]
    assert len(choose(same)) == 4 + 4
    broken = make_rollout("a", reward=None, env_status="infra_error")
    assert choose([broken, make_rollout("b", start_step_index=1)], share=0.5) == []


@pytest.mark.parametrize(
    ("share", "cap", "num_bare", "num_guided", "chosen"),
    [
        (0.3, 20, 30, 30, (14, 6)),
        (0.3, 20, 30, 2, (18, 2)),
        (0.3, 20, 3, 30, (3, 17)),
        (0.3, None, 30, 30, (30, 13)),
        (0.0, 20, 3, 30, (3, 0)),  # none at all, though there is room
        (1.0, None, 30, 30, (0, 30)),
    ],
)
def test_the_guided_share_is_kept_and_under_a_cap_filled_from_either_side(
    share, cap, num_bare, num_guided, chosen
) -> None:
    rollouts = [
        make_rollout(f"{own}{i}", task=f"t{i}", num_steps=1, guided=own)
        for own, number in ((False, num_bare), (True, num_guided))
        for i in range(number)
    ]
    states = choose(rollouts, cap, share=share)
    assert tuple(sum(s.context == c for s in states) for c in ("bare", "guided")) == chosen


def test_only_continuations_sample_the_state_that_they_start_from() -> None:
    options = {"start_step_index": 1, "parent_rollout_ids": ("a",)}
    of_every_kind = [make_rollout(kind, kind=kind, **options) for kind in get_args(RolloutKind)]
    stray = make_rollout("x", kind="continuation", parent_rollout_ids=("other",))
    found = samples_of([*of_every_kind, stray], {"a"})
    assert {state: [r.rollout_id for r in own] for state, own in found.items()} == {
        StateRef("a", 1, "bare"): ["continuation"]
    }


def test_kappa_zero_gives_k_over_n() -> None:
    parent = make_rollout("a", policy_digest="other")  # another policy's outcome labels nothing
    [label] = build([parent], sampled(parent, 2, [1] * 3 + [0] * 5))[0]
    found = (label.step_index, label.num_success, label.num_continuations, label.target, label.weight)
    assert found == (2, 3, 8, 3 / 8, 8.0)


@pytest.mark.parametrize("kappa", [0.0, 2.0])
def test_targets_average_to_the_truth_where_only_states_before_errors_are_continued(kappa) -> None:
    """Step 1 is wrong with chance .3 and then recovered with .1, else R = 1: V = .7 + .03 before it.

    Only states whose own rollout went on to err are continued, and that rollout most likely failed.
    """
    rng = np.random.default_rng(0)
    rollouts, samples = [], {}
    for i in range(1500):
        wrong = rng.random() < 0.3
        reward = float(not wrong or rng.random() < 0.1)
        errors = {1: "missing"} if wrong else {}
        rollouts.append(make_rollout(f"r{i}", task=f"t{i}", num_steps=3, wrong=errors, reward=reward))
        if wrong:
            samples |= sampled(rollouts[-1], 1, rng.random(8) < 0.73)
    at = [x for x in build(rollouts, samples, kappa, granularity="binary")[0] if x.step_index == 1]
    weights = [state_weight(label.weight) for label in at]
    assert np.average([label.target for label in at], weights=weights) == pytest.approx(0.73, abs=0.02)


def test_one_state_of_several_sources_is_one_row() -> None:
    parent = make_rollout("a", num_steps=6, wrong={3: "missing"})
    samples = sampled(parent, 2, [1] * 3 + [0] * 4)
    samples[StateRef("a", 2, "bare")].append(continuation(parent, 2, None, 7, env_status="infra_error"))
    labels, _ = build([parent], samples, 2.0)
    # Turns 0, 1, 2, 4: own outcome; 3 and 5 are unknown, and an error at 3 makes its outcome label none.
    assert [x.step_index for x in labels] == [0, 1, 2, 4]
    assert {x.outcome for x in labels} == {1.0}
    merged = labels[2]
    assert (merged.num_continuations, merged.num_success, merged.outcome) == (7, 3, 1.0)
    assert label_counts(merged) == (4, 8)
    assert (merged.label_source, merged.weight) == ("continuation", 10.0)
    assert 4 / 10 < merged.target < 6 / 10
    assert kinds_of(labels)["num_by_source"] == {"continuation": 1, "outcome": 3}


def test_graded_rewards_pass_through_labels_and_rows_as_fractions() -> None:
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", reward=reward) for i, reward in enumerate((0.25, 0.7))]
    labels, _ = build(rollouts, sampled(rollouts[0], 2, (0.5, 0.9, 0.1)))
    known = {(x.rollout_id, x.step_index): x for x in labels}
    merged = known["r0", 2]
    assert merged.num_success == pytest.approx(1.5)
    assert label_counts(merged) == (pytest.approx(1.75), 4)
    assert 0.25 < merged.target < 0.5
    assert (known["r1", 0].outcome, known["r1", 0].target) == (0.7, 0.7)
    tasks = [make_task("t0"), make_task("t1")]
    assert check(labels, rollouts, tasks)["base_rate"] == pytest.approx((1.5 + 3 * 0.25 + 3 * 0.7) / 9)
    rows = critic_rows(rollouts, labels)
    targets = [row.columns["targets"][row.columns["weight"] > 0].tolist() for row in rows]
    assert targets[1] == pytest.approx([0.7] * 3)
    assert targets[0] == pytest.approx([0.25, 0.25, merged.target])
    assert outcome_states(rollouts).num_success.tolist() == [0.25] * 4 + [0.7] * 4
    assert held_out(rollouts, labels).num_success[2] == pytest.approx(4 * merged.target)
    for rule in ("outcome_dense", "monte_carlo", "rule_decay"):
        found = retarget(labels, rollouts, rule, policy=POLICY)
        check(found, rollouts, tasks)
        assert next(x.target for x in found if x.rollout_id == "r1" and x.label_source == rule) == 0.7


@pytest.mark.parametrize(
    ("reward", "said"),
    [(0.0, "succeeded"), (1.0, "failed"), (0.5, r"has another reward than 0\.5"), (None, "could be graded")],
)
def test_outcomes_that_are_all_alike_are_refused_before_anything_is_paid_for(reward, said) -> None:
    alike = [make_rollout(name, reward=reward) for name in ("a", "b")]
    with pytest.raises(ArtifactError, match=f"none of 2 rollouts {said}") as refused:
        check_outcomes_differ(alike)
    assert refused.value.code == ExitCode.QUALITY
    check_outcomes_differ([make_rollout("a", reward=0.25), make_rollout("b", reward=0.75)])


@pytest.mark.parametrize(("won", "refused"), [(1, True), (2, False), (98, False), (99, True)])
def test_a_base_rate_that_labels_would_be_refused_for_is_refused_before_anything_is_paid_for(
    won, refused
) -> None:
    rollouts = [make_rollout(f"r{i}", reward=float(i < won)) for i in range(100)]
    if refused:
        with pytest.raises(ArtifactError, match=r"base rate .* in 100 graded rollouts") as told:
            check_outcomes_differ(rollouts)
        assert told.value.code == ExitCode.QUALITY
    else:
        check_outcomes_differ(rollouts)


def test_what_cannot_label_a_state_is_refused() -> None:
    parent, guided = make_rollout("a"), make_rollout("a", guided=True)
    assert {x.context for x in build([guided], {})[0]} == {"guided"}
    for bad, problem in (
        (continuation(parent, 2, 1.0), "cannot label"),
        (continuation(parent, 1, 1.0, policy_digest="other"), "by policy other, not policy-0"),
        (continuation(parent, 1, 1.5), r"must lie in \[0, 1\]"),
        (continuation(guided, 1, 1.0), "cannot label"),
    ):
        with pytest.raises(ValueError, match=problem):
            build([parent], {StateRef("a", 1, "bare"): [bad]})
    with pytest.raises(ValueError, match="is not in the context of its rollout"):
        build([guided], {StateRef("a", 0, "bare"): []})


def test_the_recovery_model_recovers_known_rates_and_counts_events_with_evidence() -> None:
    rng = np.random.default_rng(0)
    states, k, n = [], [], []
    for i in range(600):
        code = ("", "missing", "rare")[0 if i % 2 else (1 if i % 50 else 2)]
        q, u = rng.uniform(0.2, 0.8), rng.random()
        z = 0.5 + np.log(q / (1 - q)) - u + (-1.5 if code else 0)
        states.append(StateFeatures(f"t{i % 60}", code, q, u))
        n.append(8)
        k.append(int(rng.binomial(8, 1 / (1 + np.exp(-z)))))
    model, report = fit_recovery(states, k, n, seed=0)
    assert report["codes"]["missing"]["counted"] is True
    assert report["codes"]["rare"]["counted"] is False  # too few tasks
    assert report["codes"]["none"]["counted"] is False  # it is no event
    found = report["coefficients"]
    assert found["intercept"] == pytest.approx(0.5, abs=0.15)
    assert found["event:missing"] == pytest.approx(-1.5, abs=0.25)
    assert found["event:other"] == pytest.approx(-1.5, abs=0.5)
    assert found["logit_task_rate"] == pytest.approx(1, abs=0.2)
    assert found["budget_used"] == pytest.approx(-1, abs=0.3)
    m = model([StateFeatures("new", "", 0.5, 0.0), StateFeatures("new", "missing", 0.5, 0.0)])
    assert m[0] == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.07)
    assert m[1] == pytest.approx(1 / (1 + np.exp(1.0)), abs=0.07)


@pytest.mark.parametrize(
    ("num_tasks", "num_continuations", "effect", "counted"),
    [(20, 50, 1, True), (19, 50, 1, False), (20, 49, 1, False), (20, 400, 0, False)],
)
def test_an_event_counts_from_fifty_continuations_of_twenty_tasks_if_it_has_an_effect(
    num_tasks, num_continuations, effect, counted
) -> None:
    """Without the event half of the continuations succeed; with it none, or half as well."""
    n = [num_continuations // num_tasks + (i < num_continuations % num_tasks) for i in range(num_tasks)]
    states = [StateFeatures(f"t{i}", code, 0.5, 0.0) for code in ("", "missing") for i in range(num_tasks)]
    k = [0.5 * x for x in n] + [0.5 * (1 - effect) * x for x in n]
    _, report = fit_recovery(states, k, n + n, seed=0)
    assert report["codes"]["missing"]["counted"] is counted
    assert report["coefficients"]["logit_task_rate"] == pytest.approx(1.0)  # equal rates say nothing of it


@pytest.mark.parametrize(
    ("k", "correlation"), [((3, 1), -0.5), ((1, 4), np.sqrt(0.6)), ((4, 4), None), ((0, 0), None)]
)
def test_the_correlation_of_an_event_with_success_is_that_over_samples(k, correlation) -> None:
    """Four continuations without the event, four with it; where all end alike there is none."""
    states = [StateFeatures("t0", "", 0.5, 0.0), StateFeatures("t1", "missing", 0.5, 0.0)]
    _, report = fit_recovery(states, k, [4, 4], seed=0)
    assert report["codes"]["missing"]["correlation"] == pytest.approx(correlation)


def test_what_all_states_share_is_taken_as_it_is_and_a_rare_event_is_held_near_no_effect() -> None:
    """Half of what has no event succeeds, and none of 4 with one: beta has a normal prior of variance 1."""
    states = [StateFeatures(f"t{i}", "", 0.5, 0.0) for i in range(40)]
    model, _ = fit_recovery(states, [7] * 40, [8] * 40, seed=0)
    assert model([StateFeatures("new", "", 0.5, 0.0)])[0] == pytest.approx(7 / 8, abs=1e-3)
    rare = next(f"r{i}" for i in range(40) if fold_of(f"r{i}", 0) != fold_of("new", 0))
    states = [*states, StateFeatures(rare, "rare", 0.5, 0.0)]
    model, _ = fit_recovery(states, [5000] * 40 + [0], [10_000] * 40 + [4], seed=0)
    m = model([StateFeatures("new", "rare", 0.5, 0.0)])[0]
    assert 4 * m == pytest.approx(-np.log(m / (1 - m)), abs=1e-3)  # where the posterior is highest


def test_recovery_leans_to_the_tasks_rate_and_no_estimate_has_seen_its_own_task() -> None:
    states = [StateFeatures(f"t{i}", "", 0.5, 0.5) for i in range(40)]  # equal rates teach nothing
    model, _ = fit_recovery(states, [4] * 40, [8] * 40, seed=0)
    assert model([StateFeatures("new", "", 0.8, 0.5)])[0] == pytest.approx(0.8, abs=1e-3)
    before, after = model(states), fit_recovery(states, [0] + [4] * 39, [8] * 40, seed=0)[0](states)
    same_fold = np.array([fold_of(s.task_id, 0) == fold_of("t0", 0) for s in states])
    assert np.array_equal(before[same_fold], after[same_fold])
    assert (before[~same_fold] > after[~same_fold]).all()


def test_a_state_s_features_are_the_last_wrong_code_before_it_others_rate_and_the_share_used() -> None:
    first = make_rollout(
        "a", num_steps=5, wrong={1: "missing", 3: "late"}, reward=1.0, max_response_tokens=80
    )
    others = [make_rollout("b", num_steps=5, reward=1.0), make_rollout("c", num_steps=5, reward=0.0)]
    found = recovery_features({r.rollout_id: r for r in (first, *others)}, "detailed")
    rate = (1 + 1) / (2 + 2)
    for index, code in ((0, ""), (1, ""), (2, "missing"), (4, "late")):
        assert found(StateRef("a", index, "bare")) == StateFeatures("t0", code, rate, 4 * index / 80)


def test_without_continuations_the_prior_is_the_rate_of_the_tasks_other_rollouts() -> None:
    rollouts = [make_rollout(f"r{i}", reward=float(i == 0)) for i in range(3)]
    labels, _ = build(rollouts, {}, kappa=2.0)
    # q = (k + 1) / (n + 2) of the other two, 1/4 or 1/2, and y = R/3 + 2q/3.
    assert [x.target for x in labels if x.step_index == 0] == pytest.approx([1 / 2, 1 / 3, 1 / 3])


def test_states_without_samples_get_a_target_only_right_after_a_counted_event() -> None:
    rollouts, continuations = [], {}
    rng = np.random.default_rng(0)
    for i in range(40):
        wrong = {5: "missing", 6: "rare"}  # nothing tells what comes of the second
        parent = make_rollout(f"r{i}", task=f"t{i}", num_steps=8, wrong=wrong, reward=float(i % 2))
        rollouts.append(parent)
        for index, rate in ((3, 0.8), (6, 0.2)) if i < 30 else ():
            continuations |= sampled(parent, index, rng.random(4) < rate)
    labels, report = build(rollouts, continuations, 0.5)
    assert report["codes"]["missing"]["counted"]
    alone = [x for x in labels if x.label_source == "recovery"]
    assert {(x.rollout_id, x.step_index) for x in alone} == {(f"r{i}", 6) for i in range(30, 40)}
    assert all(x.weight == 0.5 and 0.05 < x.target < 0.4 for x in alone)
    assert "recovery" not in {x.label_source for x in build(rollouts, continuations)[0]}


def test_continuations_after_feedback_do_not_move_the_targets_of_bare_states() -> None:
    def targets_of_bare(success_after_feedback: float) -> dict[str, float]:
        rollouts, continuations = [], {}
        for i in range(60):
            guided = i % 3 == 0
            own = success_after_feedback if guided else float(i % 2)
            parent = make_rollout(f"r{i}", task=f"t{i // 3}", num_steps=3, reward=own, guided=guided)
            rollouts.append(parent)
            reward = success_after_feedback if guided else float(i % 4 == 0)
            continuations |= sampled(parent, 1, [reward] * 4)
        labels, _ = build(rollouts, continuations, 2.0)
        return {f"{x.rollout_id} {x.step_index}": x.target for x in labels if x.context == "bare"}

    assert targets_of_bare(0.0) == targets_of_bare(1.0)


@pytest.mark.parametrize(
    ("granularity", "codes"),
    [("detailed", {"missing", "other", "none"}), ("step", {"wrong", "none"}), ("binary", {"none"})],
)
def test_pseudo_counts_see_as_much_of_errors_as_the_granularity_says(granularity, codes) -> None:
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", wrong={1: ("missing", "other")[i % 2]}) for i in range(8)]
    continuations = {}
    for parent in rollouts:
        continuations |= sampled(parent, 0, (0, 1, 0, 1))
        continuations |= sampled(parent, 2, (0, 1, 0, 1))
    assert set(build(rollouts, continuations, 2.0, granularity=granularity)[1]["codes"]) == codes


# ---- what the loader refuses


def check(labels, rollouts, tasks):
    return check_labels(labels, rollouts, tasks, label_policy_digest=POLICY)


@pytest.fixture
def world():
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", reward=float(i % 2)) for i in range(6)]
    return build(rollouts, {})[0], rollouts, [make_task(f"t{i}") for i in range(6)]


CONTINUED = {"num_continuations": 8, "label_source": "continuation"}
IMPOSSIBLE = [
    ({"num_success": 3, "num_continuations": 2}, "3 successes of 2"),
    ({"num_success": -1, "num_continuations": 2}, "-1 successes"),
    ({"target": 1.01}, "outside"),
    ({"target": float("nan")}, "outside"),
    ({"weight": 0.0}, "weight"),
    ({"weight": float("inf")}, "weight inf"),
    ({"weight": 0.5}, "less than its 1 samples"),
    ({"target": 1.0}, r"target 1\.0 cannot come of 0 of 0 continuations, outcome 0 and 0 pseudo-counts"),
    ({"num_continuations": 8, "weight": 9.0, "target": 0.0}, "source is outcome, its counts make it"),
    (CONTINUED | {"weight": 8.5}, "less than its 9 samples"),
    (CONTINUED | {"weight": 9.0, "target": 0.05}, r"target 0\.05 cannot come of 0 of 8 continuations"),
    ({"outcome": None}, "source is outcome, its counts make it recovery"),
    ({"label_source": "guess"}, "source is guess"),
    ({"step_index": 40}, "no step 40"),
    ({"outcome": 0.5}, "reward"),
    ({"label_policy_digest": "other"}, "row 0: .* for policy other"),
    ({"context": "guided"}, "context is bare"),
    ({"rollout_id": "nobody"}, "no rollout"),
]
UNSOUND = [
    ({"guided": True}, "guided rollout's outcome on a bare state"),
    ({"reward": None}, "null reward"),
    ({"policy_digest": "other"}, "of policy other"),
    ({"temperature": 0.7}, "sampled with"),
    ({"top_p": 0.9}, "top_p"),
    ({"loss_mask": (1,) * 15}, "tile"),
]


def test_the_loader_refuses_impossible_labels_and_those_of_unsound_rollouts(world) -> None:
    labels, rollouts, tasks = world
    given = [([replace(labels[0], **changes), *labels[1:]], rollouts, said) for changes, said in IMPOSSIBLE]
    given += [(labels, [replace(rollouts[0], **changes), *rollouts[1:]], said) for changes, said in UNSOUND]
    for labels_given, rollouts_given, problem in given:
        with pytest.raises(ArtifactError, match=problem):
            check(labels_given, rollouts_given, tasks)


def test_the_loader_refuses_what_does_not_fit_together_and_names_the_row(world) -> None:
    labels, rollouts, tasks = world
    assert check(*world)["num_labels"] == len(labels)
    bad = [*labels[:3], replace(labels[3], num_success=3, num_continuations=2), *labels[4:]]
    again, new = make_task("t0", split="val"), make_task("t99", split="test_new")
    moved = [replace(labels[2], step_index=3), *labels[:2], *labels[3:]]
    held_out = [replace(task, split="val") if task.task_id == "t0" else task for task in tasks]
    first = next(row for row, label in enumerate(labels) if label.rollout_id == "r1")
    cut = [replace(r, top_p=0.9) if r.rollout_id == "r1" else r for r in rollouts]
    all_cut = [[replace(r, **how) for r in rollouts] for how in ({"top_p": 0.9}, {"top_k": 20})]
    won = [replace(x, outcome=1.0, target=1.0) for x in labels]
    all_won = [replace(r, reward=1.0) for r in rollouts]
    for given, problem in (
        ((bad, rollouts, tasks), r"labels: row 3: .*3 successes of 2 continuations.*make labels"),
        ((moved, rollouts, tasks), "chosen by it"),  # an error may have chosen that state
        ((labels, rollouts, [*tasks, again]), "splits train and val .rows 0 and 6 of the tasks"),
        ((labels, rollouts, held_out), r"row \d+: task t0 .* is of split val.* labels are of train"),
        ((labels, rollouts, [*tasks, new]), "cluster c0 is in splits train and test_new"),
        ((labels, cut, tasks), rf"row {first}: rollout r1: sampled with .*others with"),
        *(((labels, given, tasks), "row 0: rollout r0: truncated sampling") for given in all_cut),
        (([*labels, labels[0]], rollouts, tasks), "two rows"),
        (([], rollouts, tasks), "there are none"),
        ((won, all_won, tasks), "base rate"),
    ):
        with pytest.raises(ArtifactError, match=problem):
            check(*given)
