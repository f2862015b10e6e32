"""Stored V-DAPO of recorded rollouts: whom they are compared with, their advantages, whose ratios."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.similarity import similar_groups
from pipeline.training.stored.v_dapo import stored_advantages, with_own_logprobs
from pipeline.training.torch import TorchTrainer
from pipeline.types import Rollout, Task
from tests.pipeline.training.helpers import policy
from tests.rollouts import rollout

LONG = "one of our customers saw it on last week's bill and wants you to call whoever can help"
PLACES = [f"stop the charge at {name} bank branch number one: {LONG}" for name in "abcdefgh"]


def task(name: str, words: str) -> Task:
    said = ({"role": "user", "content": words},)
    return Task(name, "phone", "train", 1, said, "rule", "", "x", name, 0)


def recorded(name: str, reward: float, steps: int = 1, of: str = "t") -> Rollout:
    """Returns a recorded rollout of one-token steps."""
    spans = tuple((i, i + 1) for i in range(steps))
    made = rollout((1,) * steps, spans, rollout_id=name, task_id=of, reward=reward, kind="recorded")
    return replace(made, logprobs=(math.nan,) * steps)


def advantages(
    rewards: Sequence[float], start_values: Sequence[float], words: Sequence[str]
) -> tuple[np.ndarray, dict[str, int]]:
    """Returns [N] the advantages of rollouts of one step, each of a task of its own."""
    tasks = {f"t{i}": task(f"t{i}", text) for i, text in enumerate(words)}
    rollouts = [recorded(f"r{i}", reward, of=f"t{i}") for i, reward in enumerate(rewards)]
    found, sizes = stored_advantages(rollouts, tasks, [np.array([V]) for V in start_values], 0.95)
    return np.concatenate(found), sizes


def test_groups_are_of_at_least_four_similar_texts_and_the_others_alone() -> None:
    other = ["open an account", "where is my parcel", "open one account please today"]
    texts = [PLACES[0], other[0], *PLACES[1:4], other[1], PLACES[0], other[2]]
    groups = similar_groups(texts)
    assert sorted(place for group in groups for place in group) == list(range(len(texts)))
    assert [0, 2, 3, 4, 6] in groups
    assert sorted(map(len, groups)) == [1, 1, 1, 5]
    assert similar_groups([]) == []
    assert similar_groups(["same"] * 3) == [[0], [1], [2]]
    assert similar_groups(["same"] * 4) == [[0, 1, 2, 3]]


def test_of_a_rollout_that_is_alone_the_baseline_is_the_critics_start_value() -> None:
    """One step: the step part is R - V(s_0) as well, so A = (1 + alpha) (R - V_0)/rms of all R - V_0."""
    R, V = np.array([1.0, 0.0, 0.4, 1.0]), np.array([0.5, 0.25, 0.9, 0.9])
    found, sizes = advantages(R, V, ["pay a bill", "find my parcel", "open accounts", "lost card"])
    assert found == pytest.approx(1.5 * (R - V) / np.sqrt(np.mean((R - V) ** 2)))
    assert sizes == {"in_groups": 0, "alone": 4, "groups": 0}


def test_in_a_group_no_baseline_sees_its_own_reward_and_a_critic_that_is_wrong_counts_less() -> None:
    V = np.full(8, 0.05)  # far below what the others earn
    rewards = np.array([1.0, 1, 1, 0, 1, 1, 0, 1])
    grouped, sizes = advantages(rewards, V, PLACES)
    assert sizes == {"in_groups": 8, "alone": 0, "groups": 1}
    alone, _ = advantages(rewards, V, [f"w{i}" for i in range(8)])
    won = rewards == 1
    # By V_0 alone every success is a surprise; by the others it is what was to be expected.
    assert grouped[won].mean() < alone[won].mean()
    assert (grouped[~won] < alone[~won]).all()


def test_single_rollouts_recover_which_action_is_better_than_the_policy() -> None:
    """100 sessions in exact proportion to pi_0(a) and p(R | a), each of its own task: mean A ~ p(a) - V."""
    pi_0, wins = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.8, 0.5])
    value = float(pi_0 @ wins)
    actions = np.repeat(np.arange(3), (100 * pi_0).astype(int))
    rewards = np.concatenate([np.arange(n) < round(n * p) for n, p in zip((50, 30, 20), wins, strict=True)])
    found, _ = advantages(rewards.astype(float), np.full(100, value), [f"w{i}" for i in range(100)])
    means = np.array([found[actions == a].mean() for a in range(3)])
    assert means / np.abs(means).max() == pytest.approx((wins - value) / np.abs(wins - value).max())
    assert found.mean() == pytest.approx(0, abs=1e-9)


def test_every_step_has_an_advantage_and_values_move_credit_between_them() -> None:
    tasks = {name: task(name, name) for name in ("lost card", "a parcel")}
    rollouts = [recorded("r0", 1.0, 3, of="lost card"), recorded("r1", 0.0, 2, of="a parcel")]
    values = [np.array([0.5, 0.2, 0.9]), np.array([0.5, 0.5])]
    [first, second], _ = stored_advantages(rollouts, tasks, values, 0.0)
    assert (len(first), len(second)) == (3, 2)
    assert first[1] > first[2] > first[0]  # it saved the day; it went on; it spoilt it
    assert second[0] > second[1]


def test_ratios_are_to_the_weights_that_training_starts_from_where_nobody_knows_the_others() -> None:
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-3, micro_batch_tokens=64)
    played = rollout((1, 1), ((0, 2),), rollout_id="played")
    known, estimated = with_own_logprobs(trainer, [played, recorded("r", 1.0, 2)])
    assert known == played
    assert np.isfinite(estimated.logprobs).all()
    assert max(estimated.logprobs) < 0
    [again] = with_own_logprobs(trainer, [recorded("r", 1.0, 2)])
    assert again == estimated
    assert with_own_logprobs(trainer, [played], everyone=True) != [played]  # whose engine rounded
    trainer.close()
