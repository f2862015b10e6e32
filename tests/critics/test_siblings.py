from dataclasses import replace

import numpy as np
import pytest

from critics.audit.siblings import (
    Siblings,
    measured_siblings,
    reference_size,
    sibling_measures,
    top_share,
)
from critics.report import gate
from pipeline.steps import state_tokens
from tests.critics.conftest import PASSING, make_rollout


def sets_of(distort, *, num_sets: int = 100, size: int = 4, K: int = 32, seed: int = 0) -> Siblings:
    rng = np.random.default_rng(seed)
    V = 1 / (1 + np.exp(-1.5 * rng.normal(size=(num_sets, size))))
    p = distort(V, rng)
    rows = [
        (f"s{i}", f"c{i // 2}", float(p[i, j]), k, K, k)
        for i in range(num_sets)
        for j in range(size)
        for k in [int(rng.binomial(K, V[i, j]))]
    ]
    return Siblings.of(rows)


def test_a_critic_that_knows_the_values_names_the_best_step_and_a_blind_one_does_not() -> None:
    def measured(distort):
        found, num_sets = sibling_measures(sets_of(distort), num_resamples=300)
        assert num_sets == 100
        conditions = gate.judge({"bare": PASSING}, converged=True, sibling_excess=found["sibling_excess"])
        return found, {c.name for c in conditions if c.passed is False}

    good, failed = measured(lambda V, rng: V)
    assert good["sibling_excess"].low > 0.4
    assert good["sibling_pairs"].value > 0.97
    assert not failed
    blind, failed = measured(lambda V, rng: rng.random(V.shape))
    assert blind["sibling_excess"].low < 0 < blind["sibling_excess"].high
    assert failed == {"sibling_excess"}
    constant, _ = measured(lambda V, rng: np.full(V.shape, 0.5))
    assert constant["sibling_excess"].value == pytest.approx(0)
    assert constant["sibling_pairs"].value == 0
    backwards, failed = measured(lambda V, rng: 1 - V)
    assert backwards["sibling_excess"].high < 0
    assert failed == {"sibling_excess"}


def test_eight_continuations_are_judged_by_the_others_only() -> None:
    found, _ = sibling_measures(sets_of(lambda V, rng: V), num_resamples=300)
    assert 0.2 < found["sibling_reference_excess"].value < found["sibling_excess"].value
    # Where steps do not differ, eight continuations cannot know which luck the others will have.
    rng = np.random.default_rng(1)
    alike = Siblings.of(
        [(f"s{i // 4}", f"c{i // 8}", 0.5, k, 32, k) for i, k in enumerate(rng.binomial(32, 0.5, 1600))]
    )
    found, _ = sibling_measures(alike, num_resamples=300)
    assert found["sibling_reference_excess"].low < 0 < found["sibling_reference_excess"].high
    few, _ = sibling_measures(sets_of(lambda V, rng: V, K=2), num_resamples=100)
    assert np.isnan(few["sibling_reference"].value)


def test_a_sibling_has_the_value_of_the_state_behind_it() -> None:
    parent = make_rollout("p")
    siblings = [
        make_rollout(
            name, num_steps=2, kind="sibling", parent_rollout_ids=("p",), start_step_index=1,
            prompt_token_ids=state_tokens(parent, 1),
        )
        for name in ("a", "b", "c")
    ]  # fmt: skip
    after = [
        make_rollout(f"{s}{i}", kind="after_sibling", parent_rollout_ids=(s,), reward=reward)
        for s, rewards in (("a", (1.0, 0.0, None)), ("b", (0.5, 0.5)), ("c", (1.0, None)))
        for i, reward in enumerate(rewards)
    ]
    found = measured_siblings(
        [*siblings, *after],
        {"p": parent},
        lambda rollouts: [np.arange(3) / 10 + ("ab".index(r.rollout_id) + 1) / 100 for r in rollouts],
        {"t0": "company"},
    )
    assert (found.set_id.tolist(), found.cluster.tolist()) == (["p", "p"], ["company", "company"])
    assert found.p == pytest.approx([0.21, 0.22])  # before step 2
    assert (found.k.tolist(), found.K.tolist(), found.squares.tolist()) == ([1, 1], [2, 2], [1, 0.5])


def test_a_reference_takes_half_of_the_continuations_and_leaves_two_at_least() -> None:
    sizes = {K: reference_size(np.full(5, K)) for K in (1, 2, 3, 4, 8, 16, 32)}
    assert sizes == {1: 0, 2: 0, 3: 1, 4: 2, 8: 4, 16: 8, 32: 8}
    assert reference_size(np.array([8, 8, 7])) == 4  # one that could not be graded takes it from no other
    assert reference_size(np.zeros(0, dtype=int)) == 0


def test_no_measure_depends_on_the_names_of_sets() -> None:
    siblings, options = sets_of(lambda V, rng: V), {"num_resamples": 50, "seed": 3}
    names = np.array([f"z{1000 - int(name[1:])}" for name in siblings.set_id.tolist()])
    renamed = replace(siblings, set_id=names)
    assert sibling_measures(renamed, **options) == sibling_measures(siblings, **options)


def test_ties_are_broken_at_random_any_best_truth_counts_and_no_sets_say_nothing() -> None:
    assert top_share(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == (0.5, 0.5)
    assert top_share(np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.0, 1.0])) == (1.0, pytest.approx(2 / 3))
    found, num_sets = sibling_measures(Siblings.of([]), num_resamples=100)
    assert num_sets == 0
    assert all(np.isnan(x.value) for x in found.values())


def test_graded_rewards_of_little_spread_make_pairs_clear_and_give_no_reference() -> None:
    """Always .3 after one step and .7 after the other; k is a whole number all the same."""
    rows = [(f"s{i}", f"c{i}", v, 10 * v, 10, 10 * v * v) for i in range(20) for v in (0.3, 0.7)]
    steady, _ = sibling_measures(Siblings.of(rows), num_resamples=50)
    assert steady["sibling_pairs"].value == 1
    assert np.isnan(steady["sibling_reference"].value)
    coins, _ = sibling_measures(Siblings.of([(*row[:5], row[3]) for row in rows]), num_resamples=50)
    assert np.isnan(coins["sibling_pairs"].value)


def test_few_clusters_give_no_bounds_that_a_gate_could_pass() -> None:
    """Of two sets alone a blind critic names the best next steps in both more often than a gate may err."""
    rows = [(f"s{i}", f"c{i}", 0.1 * j, 2 * j, 8, 2 * j) for i in range(10) for j in range(4)]
    few, _ = sibling_measures(Siblings.of(rows[:-4]), num_resamples=100)
    assert few["sibling_top1"].value == 1
    assert not few["sibling_excess"].low > 0
    enough, _ = sibling_measures(Siblings.of(rows), num_resamples=100)
    assert enough["sibling_excess"].low > 0
