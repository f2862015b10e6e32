from dataclasses import replace

import numpy as np
import pytest

from pipeline.credit import DECOUPLED_CLIP, CreditSet, TreeRpo
from pipeline.credit.group import group_advantages
from pipeline.credit.sets import baseline_sets, credit_set
from pipeline.credit.tree_rpo import tree_advantages
from pipeline.credit.updates import BaselineSets
from pipeline.types import Rollout, Step
from tests.rollouts import rollout


def tree_of(first: list[float], ends: list[list[float]]) -> list[Rollout]:
    """Roots of three steps with these rewards, and branches of their last step with theirs."""
    found = [
        rollout((1, 1, 1), ((0, 1), (1, 2), (2, 3)), rollout_id=f"r{i}", reward=R)
        for i, R in enumerate(first)
    ]
    for i, rewards in enumerate(ends):
        prompt = found[i].prompt_token_ids + found[i].response_token_ids[:2]
        changes = {
            "kind": "sibling",
            "parent_rollout_ids": (f"r{i}",),
            "prompt_token_ids": prompt,
            "start_step_index": 2,
        }
        for k, R in enumerate(rewards):
            branch = rollout((1,), ((0, 1),), rollout_id=f"r{i}-{k}", reward=R, **changes)
            found.append(replace(branch, steps=(Step(2, 2, 0, 1, ""),)))
    return found


def test_a_segment_is_compared_with_what_was_sampled_from_the_same_state() -> None:
    """Roots of 3, 1 and 0 right leaves of 3: Q = 1, 1/3, 0; the second's own end is its one success."""
    rollouts = tree_of([1.0, 1.0, 0.0], [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    [members] = baseline_sets(rollouts)
    assert [r.rollout_id for r in members] == [r.rollout_id for r in rollouts]
    found = dict(zip([r.rollout_id for r in members], tree_advantages(credit_set(members)), strict=True))
    firsts = group_advantages(np.array([1.0, 1 / 3, 0.0]))
    seconds = group_advantages(np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(found["r0"], [firsts[0], firsts[0], 0.0])
    np.testing.assert_allclose(found["r1"], [firsts[1], firsts[1], seconds[0]])
    np.testing.assert_allclose([found["r1-0"], found["r1-1"]], [[seconds[1]], [seconds[2]]])
    np.testing.assert_allclose(found["r2"], [firsts[2], firsts[2], 0.0])
    assert not np.concatenate([found[f"r{i}-{k}"] for i in (0, 2) for k in (0, 1)]).any()


def test_one_branch_is_enough_to_compare_with() -> None:
    root, branch = tree_advantages(credit_set(tree_of([1.0], [[0.0]])))
    np.testing.assert_allclose(root, [0.0, 0.0, 0.5**0.5], rtol=1e-5)
    np.testing.assert_allclose(branch, [-(0.5**0.5)], rtol=1e-5)


def test_every_sampled_token_of_a_tree_is_trained_on_once() -> None:
    rollouts = tree_of([1.0, 0.0], [[1.0, 0.0], [0.0]])
    [update] = BaselineSets.of(rollouts, None, TreeRpo()).updates(1, max_uniform_share=1.0, seed=0)
    assert update.rollouts == rollouts
    assert update.num_tokens == 3 + 3 + 3  # two roots, three branches of a token
    assert set(update.token_weights("token")) == {1 / 9}
    metrics = BaselineSets.of(rollouts, None, TreeRpo()).metrics()
    assert (metrics["rollouts/count"], metrics["rollouts/first_try"]) == (5.0, 0.5)


def test_a_tree_without_branches_is_decoupled_clip_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    sets = [
        CreditSet(
            rng.integers(0, 2, 8).astype(float),
            [np.zeros(1 + i % 3) for i in range(8)],
            shaping=-rng.random(8),
        )
        for _ in range(20)
    ]
    sets = [s for s in sets if DECOUPLED_CLIP.trains_on(s)]
    assert all(TreeRpo().trains_on(s) for s in sets)
    found, plain = TreeRpo(branching=1).credit(sets, {})[0], DECOUPLED_CLIP.credit(sets, {})[0]
    assert [a.tobytes() for a in found] == [b.tobytes() for b in plain]
    nothing, metrics, _ = TreeRpo().credit([], {})
    assert (nothing, metrics["advantage/rms"]) == ([], 0.0)


def test_a_branch_is_as_long_as_the_episode_that_it_ends() -> None:
    rollouts = [replace(r, max_response_tokens=3) for r in tree_of([1.0], [[0.0]])]
    np.testing.assert_array_equal(credit_set(rollouts, overlong_factor=1.0).shaping_or_zero, [-1.0, -1.0])


def test_luck_of_the_first_segment_is_no_credit_of_the_second() -> None:
    """V_1 is .9 or .1 by the first segment, the second adds nothing: its mean advantage is 0 after either."""
    rng = np.random.default_rng(1)
    of_second: dict[str, dict[bool, list[float]]] = {
        "tree": {True: [], False: []},
        "group": {True: [], False: []},
    }
    for _ in range(300):
        good = rng.random(3) < 0.5
        rewards = (rng.random((3, 3)) < np.where(good, 0.9, 0.1)[:, None]).astype(float)
        rollouts = tree_of(list(rewards[:, 0]), [list(own) for own in rewards[:, 1:]])
        found = tree_advantages(credit_set(rollouts))
        plain = group_advantages(rewards[:, 0])
        for i in range(3):
            of_second["tree"][bool(good[i])].append(found[i][2])
            of_second["group"][bool(good[i])].append(plain[i])
    means = {how: {g: np.mean(own) for g, own in of.items()} for how, of in of_second.items()}
    assert means["tree"] == pytest.approx({True: 0.0, False: 0.0}, abs=0.1)
    assert means["group"][True] > 0.3 > -0.3 > means["group"][False]
