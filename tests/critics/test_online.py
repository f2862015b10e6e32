from dataclasses import replace

import numpy as np
import pytest

from critics.fit.online import PRETRAINING_UPDATES, OnlineCritic, outcome_rows
from critics.frozen.model import make_critic
from critics.readouts import value_positions
from pipeline.training.torch import TorchTrainer
from tests.critics.conftest import NUM_CELLS, make_rollout, walks


def head_of(tiny_trunk) -> OnlineCritic:
    trainer = TorchTrainer(make_critic(tiny_trunk), head="critic", learning_rate=lambda _: 3e-3)
    return OnlineCritic(trainer, list)


def test_outcomes_are_the_targets_of_all_states_alike() -> None:
    won, lost = make_rollout("a"), make_rollout("b", num_steps=2, reward=0.0)
    rows = outcome_rows([won, lost])
    for row, rollout in zip(rows, (won, lost), strict=True):
        at = value_positions(rollout)
        np.testing.assert_allclose(row.columns["weight"][at], 1 / 6)
        np.testing.assert_array_equal(row.columns["targets"][at], rollout.reward)
    assert sum(row.columns["weight"].sum() for row in rows) == pytest.approx(1)


def test_a_head_that_starts_at_one_half_learns_v_of_an_enumerable_chain_from_outcomes(tiny_trunk) -> None:
    """On a walk from 0, lost, to 5, won, V is the cell's fifth."""
    critic = head_of(tiny_trunk)
    rollouts = [replace(walk, seed=i) for i, walk in enumerate(walks(600, 0)[0])]
    assert {float(v) for own in critic.values(rollouts[:4]) for v in own} == {0.5}
    before = critic.whose_values
    critic.pretrain(rollouts, each=60, seed=0)
    assert critic.trainer.num_updates == PRETRAINING_UPDATES
    assert critic.whose_values != before
    fresh, _ = walks(80, 1)
    found = np.concatenate(critic.values(fresh))
    cells = [r.prompt_token_ids[1:] + r.response_token_ids[:-1] for r in fresh]
    exact = (np.concatenate([np.array(own) for own in cells]) - 20) / NUM_CELLS
    assert np.corrcoef(found, exact)[0, 1] > 0.97
    assert np.mean(np.abs(found - exact)) < 0.05
