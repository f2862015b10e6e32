"""From rollouts to what an update trains on: what is left out, thinned, weighed and penalised."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from pipeline.credit import DECOUPLED_CLIP, GRPO, Credit, VDapo
from pipeline.credit.sets import thinned
from pipeline.credit.updates import BaselineSets, Update, scored
from pipeline.credit.verifier_steps import VerifierSteps
from pipeline.types import Rollout
from tests.rollouts import rollout

REWARDS = {"mixed": (1, 0), "right": (1, 1), "also right": (1, 1), "wrong": (0, 0), "one": (1,)}


def rollouts_of(rewards: dict[str, tuple[int, ...]] = REWARDS, *lengths: int) -> list[Rollout]:
    """One baseline set of each name, which is also its task; draws take turns in these lengths."""
    lengths = lengths or (1,)
    found = []
    for i, (name, of_set) in enumerate(rewards.items()):
        for draw, reward in enumerate(of_set):
            length = lengths[draw % len(lengths)]
            ids = {"rollout_id": f"{name}-{draw}", "task_id": name, "group_id": name, "draw": draw}
            one = {"reward": float(reward), "seed": 10 * i + draw}
            found.append(rollout((1,) * length, [(0, length)], **ids, **one))
    return found


def half(rollouts: list[Rollout]) -> dict[str, np.ndarray]:
    return {r.rollout_id: np.array([0.5]) for r in rollouts}


@pytest.mark.parametrize(
    ("credit", "kept", "left_out"),
    [
        (GRPO, 4, {"single": 1}),
        (DECOUPLED_CLIP, 1, {"single": 1, "all_right": 2, "all_wrong": 1}),
        (VDapo(alpha=0.0, baseline="group_mean"), 1, {"single": 1, "all_right": 2, "all_wrong": 1}),
        (VDapo(), 5, {}),
        (VerifierSteps(), 1, {"single": 1, "all_right": 2, "all_wrong": 1}),
    ],
)
def test_the_sets_that_a_mode_leaves_out_are_counted_by_kind(
    credit: Credit, kept: int, left_out: dict[str, int]
) -> None:
    rollouts = rollouts_of()
    metrics = BaselineSets.of(rollouts, half(rollouts) if credit.needs_values else None, credit).metrics()
    counted = {n.removeprefix("sets/left_out/"): v for n, v in metrics.items() if "left_out" in n}
    nothing = dict.fromkeys(("mixed", "all_right", "all_wrong", "single"), 0)
    assert counted == nothing | left_out
    assert metrics["sets/kept"] == kept == len(REWARDS) - sum(left_out.values())


def test_refills_count_tasks_whose_rewards_differ_in_every_mode() -> None:
    """Sets of equal rewards are trained on by the way; counted, they would end the sampling earlier."""
    mixed = rollouts_of({k: v for k, v in REWARDS.items() if k != "one"})
    assert BaselineSets.of(mixed, half(mixed), VDapo()).num_kept_tasks == 1
    assert BaselineSets.of(mixed, None, DECOUPLED_CLIP).num_kept_tasks == 1


def test_with_one_draw_every_rollout_counts_and_is_held_against_the_critic_alone() -> None:
    """No set of one is thrown away, whatever came of it: A = R - V_0, and half of the step's R - V."""
    rollouts = rollouts_of({"a": (1,), "b": (0,), "c": (0,)})
    credit = VDapo(alpha=0.5, lam=0.0)
    batch = BaselineSets.of(rollouts, half(rollouts), credit)
    assert batch.num_kept_tasks == 3
    [update] = batch.updates(1, max_uniform_share=credit.max_uniform_share, seed=0)
    assert (len(update.sets), update.set_weights) == (3, [1.0, 1.0, 1.0])
    advantages, _, _ = credit.credit([s for _, s in update.sets], credit.initial_state())
    by_name = dict(zip((r.task_id for r in update.rollouts), advantages, strict=True))
    assert {name: a.tolist() for name, a in by_name.items()} == {"a": [0.75], "b": [-0.75], "c": [-0.75]}
    assert BaselineSets.of(rollouts, None, DECOUPLED_CLIP).num_kept_tasks == 0


def test_thinning_leaves_the_expected_weight_of_every_set_as_it_was() -> None:
    kinds = ["mixed", "all_wrong", "all_right", "all_wrong", "single", "all_wrong", "all_wrong"]
    every = [
        thinned(kinds, order, max_uniform_share=0.5)  # type: ignore[arg-type]
        for order in itertools.permutations(range(len(kinds)))
    ]
    np.testing.assert_allclose(np.mean(every, axis=0), 1.0, rtol=1e-12)
    assert {(np.count_nonzero(w), w.sum()) for w in every} == {(4, 7.0)}  # 2 others, so 2 of 5
    alone = thinned(["all_wrong"] * 3, range(3), max_uniform_share=0.1)
    np.testing.assert_array_equal(alone, 1.0)  # there is nothing else to train on


def test_the_expected_gradient_weight_of_every_token_is_that_of_the_whole_update() -> None:
    """Over the draws, token weights average to 1 / tokens of all candidates, kept or dropped."""
    rewards = {"a": (1, 0), "b": (0, 0, 0), "c": (1, 1), "d": (0, 0)}
    summed: dict[str, float] = defaultdict(float)
    num = 500
    for seed in range(num):
        rollouts = rollouts_of(rewards, 3)
        sets = BaselineSets.of(rollouts, half(rollouts), VDapo())
        [update] = sets.updates(1, max_uniform_share=0.5, seed=seed)
        weights = update.token_weights("token")
        assert update.num_tokens == 27
        assert len(update.sets) == 2
        for r, weight in zip(update.rollouts, weights, strict=True):
            summed[r.rollout_id] += weight / num
    assert len(summed) == 9
    np.testing.assert_allclose(list(summed.values()), 1 / 27, rtol=0.2)


def test_token_weights_count_tokens_and_rollout_weights_count_rollouts() -> None:
    batch = BaselineSets.of(rollouts_of({"a": (1, 0)}, 1, 3), None, DECOUPLED_CLIP)
    [update] = batch.updates(1, max_uniform_share=1.0, seed=0)
    assert update.token_weights("token") == [1 / 4, 1 / 4]
    assert update.token_weights("rollout") == [1 / 2, 1 / 6]
    with pytest.raises(ValueError, match="zip"):  # weights of other sets
        replace(update, set_weights=[1.0, 1.0]).token_weights("token")


def test_every_rollout_of_a_set_has_its_values() -> None:
    first, second = rollouts_of({"a": (1, 0)})
    played = [first, replace(first, rollout_id="ungraded", reward=None), second]
    assert scored(played, lambda members: [*half(members).values()]) == half([first, second])
    with pytest.raises(ValueError, match="zip"):
        scored(played, lambda members: [np.array([0.5])])


def test_tasks_whose_rewards_differ_are_spread_evenly_over_the_updates() -> None:
    rewards = {f"m{i}": (1, 0) for i in range(6)} | {"s": (1,)} | {f"w{i}": (0, 0) for i in range(20)}
    rollouts = rollouts_of(rewards)
    batch = BaselineSets.of(rollouts, half(rollouts), VDapo())

    def num_varied(update: Update) -> int:
        return sum(s.kind in ("mixed", "single") for _, s in update.sets)

    for seed in range(5):
        updates = batch.updates(3, max_uniform_share=0.5, seed=seed)
        assert [num_varied(update) for update in updates] == [3, 2, 2]
        assert [len(update.sets) for update in updates] == [6, 4, 4]
        assert sum(update.num_rollouts for update in updates) == 53


def test_each_pass_trains_on_all_sets_in_an_order_of_its_own_and_the_first_is_as_alone() -> None:
    rewards = {f"m{i}": (1, 0) for i in range(6)}
    batch = BaselineSets.of(rollouts_of(rewards), None, DECOUPLED_CLIP)
    how = {"max_uniform_share": 1.0, "seed": 3}
    passes = batch.passes(3, 2, **how)
    assert passes[:1] == batch.passes(1, 2, **how) == [batch.updates(2, **how)]
    cuts = [[[r.task_id for r in update.rollouts] for update in updates] for updates in passes]
    assert [sorted(task for of_update in cut for task in of_update) for cut in cuts] == [
        sorted(2 * [*rewards])
    ] * 3
    assert cuts[0] != cuts[1] != cuts[2] != cuts[0]
    alone = BaselineSets.of(rollouts_of({"a": (1, 0)}), None, DECOUPLED_CLIP).passes(2, 2, **how)
    assert [[len(update.sets) for update in updates] for updates in alone] == [[1], [1]]


def test_metrics_are_of_graded_rollouts_and_tell_first_tries_from_guided_ones() -> None:
    first, second, third = rollouts_of({"a": (1, 0, 1)}, 2, 4, 6)
    guided = replace(third, group_id="b", guided=True, finish_reason="max_tokens")
    ungraded = replace(first, reward=None)
    values = {r.rollout_id: np.array([0.5, 0.5 + gain]) for r, gain in ((first, 0.3), (second, -0.1))}
    of_two = [replace(r, steps=(*r.steps, replace(r.steps[0], step_index=1))) for r in (first, second)]
    metrics = BaselineSets.of([*of_two, guided, ungraded], None, GRPO).metrics()
    expected = {
        "critic/rewards/mean": 2 / 3,
        "rollouts/first_try": 1 / 2,
        "rollouts/with_feedback": 1.0,
        "response_length/mean": 4.0,
        "response_length/clip_ratio": 1 / 3,
        "steps/mean": 5 / 3,
        "rollouts/ungraded": 1.0,
        "rollouts/count": 4.0,
        "rollouts/sampled_tokens": 14.0,
        "continuations/count": 0.0,
        "continuations/sampled_tokens": 0.0,
        "sets/kept": 1.0,
        "sets/kept_mixed": 1.0,
        "sets/kept_tasks": 1.0,
    }
    assert {name: x for name, x in metrics.items() if "left_out" not in name} == pytest.approx(expected)
    assert BaselineSets.of(of_two, values, VDapo()).metrics()["critic/rise"] == pytest.approx(0.1)
    nothing = BaselineSets.of([ungraded], None, GRPO).metrics()
    of_nothing = ("response_length/mean", "response_length/clip_ratio", "steps/mean", "sets/kept")
    assert {nothing[name] for name in of_nothing} == {0.0}
    assert "critic/rewards/mean" not in nothing


def test_long_rollouts_are_penalised_by_the_published_formula_where_the_mode_asks_for_it() -> None:
    """L_max 64, a buffer of 12: P is -.5 at 64 tokens, -.25 at 58; rewards 1, 1, 0 become .5, .75, 0."""
    rollouts = rollouts_of({"a": (1, 1, 0)}, 64, 58, 10)
    [update] = BaselineSets.of(rollouts, None, DECOUPLED_CLIP).updates(1, max_uniform_share=1.0, seed=0)
    advantages, metrics, _ = DECOUPLED_CLIP.credit([s for _, s in update.sets], {})
    shaped = np.array([0.5, 0.75, 0.0])
    expected = (shaped - shaped.mean()) / (shaped.std(ddof=1) + 1e-6)
    np.testing.assert_allclose([a[0] for a in advantages], expected, rtol=1e-12)
    assert metrics["shaping/mean"] == pytest.approx(-0.25)
    plain = replace(DECOUPLED_CLIP, overlong_factor=0.0)
    [(_, unshaped)] = BaselineSets.of(rollouts, None, plain).candidates
    assert not unshaped.shaping_or_zero.any()
