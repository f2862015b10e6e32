"""Russian roulette on stored rollouts: it is unbiased, and its price is that of chains worked out by hand."""

from itertools import product

import numpy as np
import pytest

from benchmarks.hopeless import (
    Replayed,
    auroc_of_second_state,
    chances,
    figures_of,
    nearest_third,
    pairs_that_differ,
    squares,
)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_over_all_throws_every_step_keeps_its_expected_advantage_and_has_the_square_that_is_told(
    reward: float, again: bool
) -> None:
    """Every way that the roulette can go is played out; V is below tau at s_0, s_2 and s_3."""
    values, baselines, keep = (
        np.array([0.01, 0.4, 0.02, 0.03, 0.3]),
        np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
        0.25,
    )
    q = chances(values, 0.05, keep=keep, again=again)
    thrown = [2, 3] if again else [2]
    mean, square = np.zeros(5), np.zeros(5)
    for goes_on in product([True, False], repeat=len(thrown)):
        chance = np.prod([keep if on else 1 - keep for on in goes_on])
        end = next((i for i, on in zip(thrown, goes_on, strict=True) if not on), 5)
        outcome = reward * q / q[-1] if end == 5 else np.zeros(5)  # R' as it counts from each step on
        term = (np.arange(5) < end) * (outcome - baselines) / q
        mean += chance * term
        square += chance * term**2
    np.testing.assert_allclose(mean, reward - baselines)
    np.testing.assert_allclose(square, squares(reward, baselines, q))


def chain(hopeless_value: float, good_value: float = 0.5) -> list[Replayed]:
    """Half of 200 rollouts come to a state from which 4 of 100 succeed, the others to one where 50 do.

    10 tokens before it, 30 after it.
    """
    made = []
    for value, successes in ((hopeless_value, 4), (good_value, 50)):
        for i in range(100):
            values = np.array([0.27, value])
            made.append(Replayed(values, np.array([10, 30]), float(i < successes), f"t{i}", f"c{i % 20}"))
    return made


def test_what_is_saved_and_what_it_costs_are_those_of_a_chain_that_is_known() -> None:
    found = {name: x.value for name, x in figures_of(chain(0.04), 0.05).items()}
    left = 1 - 0.5 * 0.75 * 30 / 40
    assert found["tokens saved"] == pytest.approx(1 - left)
    assert found["successes stopped"] == pytest.approx(0.75 * 4 / 54)
    # Of the hopeless half's 4 in 100 successes one in four is left, and counts 16 in R'^2.
    assert found["reward variance"] == pytest.approx(((4 * 0.04 + 0.5) / 2 - 0.27**2) / (0.27 - 0.27**2))

    def square(success: float, baseline: float, weight: float = 1.0) -> float:
        """Mean of weight R^2 - 2 R b + b^2."""
        return weight * success - 2 * success * baseline + baseline**2

    for name, hopeless, good in (("V(s_0)", 0.27, 0.27), ("V(s_i)", 0.04, 0.5)):
        others = 10 * square(0.5, 0.27) + 30 * square(0.5, good)
        plain = 10 * square(0.04, 0.27) + 30 * square(0.04, hopeless)
        stopped = 10 * square(0.04, 0.27, 4) + 30 * 4 * square(0.04, hopeless)
        assert found[f"cost, {name}"] == pytest.approx((stopped + others) / (plain + others) * left)


def test_a_threshold_below_all_values_costs_and_saves_nothing_and_truly_hopeless_states_are_free() -> None:
    nothing = figures_of(chain(0.04), 0.01)
    assert (nothing["tokens saved"].value, nothing["reward variance"].value) == (0, 1)
    assert nothing["cost, V(s_0)"].value == nothing["cost, V(s_i)"].value == 1
    lost = [
        Replayed(r.values, r.tokens, r.reward * (r.values[1] > 0.1), r.task, r.cluster) for r in chain(0.0)
    ]
    free = figures_of(lost, 0.05)
    assert free["reward variance"].value == 1
    assert free["cost, V(s_i)"].value == pytest.approx(1 - free["tokens saved"].value)
    # Against V(s_0) the steps of a failure are still punished, and one rollout in four tells four times how.
    assert free["cost, V(s_0)"].value > free["cost, V(s_i)"].value


def test_rank_of_second_states_and_the_third_of_tasks_nearest_to_one_half() -> None:
    values = [(0.9, 0.1), (0.4, 0.2), (0.1, 0.3), (0.2, 0.4), (0.5, 0.5), (0.8, 0.6)]
    rollouts = [
        Replayed(np.array(v), np.ones(2), reward, "t", "c")
        for v, reward in zip(values, (0, 0, 1, 0, 1, 1), strict=True)
    ]
    alone = Replayed(np.array([0.5]), np.ones(1), 1.0, "u", "c")
    assert auroc_of_second_state([*rollouts, alone]) == pytest.approx(8 / 9)
    assert nearest_third(rollouts) == [rollouts[4], rollouts[1]]
    # Nine of fifteen pairs of t; u has none.
    assert pairs_that_differ([*rollouts, alone]) == pytest.approx(9 / 15)
