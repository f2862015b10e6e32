from dataclasses import replace

import numpy as np
import torch

from pipeline.credit import Imitation
from pipeline.credit.updates import BaselineSets
from pipeline.training.losses import policy_loss, sft_loss
from pipeline.training.packing import micro_batches
from pipeline.training.policy_update import update_rows
from pipeline.training.rows import sft_rows
from tests.rollouts import rollout

WON = [
    rollout(rollout_id="a0", task_id="a", group_id="a"),
    rollout((1, 1, 1), [(0, 1), (1, 3)], rollout_id="b0", task_id="b", group_id="b", draw=0),
    rollout((1,), [(0, 1)], rollout_id="b1", task_id="b", group_id="b", draw=1, reward=0.5),
]
OTHERS = [
    rollout(rollout_id="a1", task_id="a", group_id="a", draw=1, reward=0.0),
    replace(WON[1], rollout_id="b2", attempt=1, guided=True),
    replace(WON[0], rollout_id="c0", task_id="c", group_id="c", reward=0.0),
    replace(WON[0], rollout_id="d0", task_id="d", group_id="d", reward=None),
]


def test_imitation_is_sft_on_the_bare_successes() -> None:
    mode = Imitation()
    batch = BaselineSets.of([*WON, *OTHERS], None, mode)
    [update] = batch.updates(1, max_uniform_share=mode.max_uniform_share, seed=0)
    rows, metrics, _ = update_rows(update, credit=mode, state=mode.initial_state(), logprobs={})
    imitated = sorted(update.rollouts, key=lambda r: r.rollout_id)
    assert imitated == WON
    assert (metrics["sets/mixed"], metrics["sets/single"]) == (1, 1)  # graded 1 and .5
    expected = sft_rows(
        [r.token_ids for r in update.rollouts],
        [(*[0] * len(r.prompt_token_ids), *r.loss_mask) for r in update.rollouts],
    )
    losses = []
    for own, loss in ((rows, policy_loss(mode.loss)), (expected, sft_loss)):
        [batch_of_rows] = micro_batches(own, 4096)
        number = len(batch_of_rows.token_ids)
        logprobs = -torch.arange(number, dtype=torch.float32).sin().abs()
        losses.append(float(loss({"logprobs": logprobs}, batch_of_rows)[0]))
    assert losses[0] == losses[1] > 0
    for mine, theirs in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.columns["weight"], theirs.columns["weight"])


def test_what_is_not_imitated_is_counted_and_nothing_is_sampled_for_want_of_it() -> None:
    batch = BaselineSets.of([*WON, *OTHERS], None, Imitation())
    metrics = batch.metrics()
    assert metrics["sets/kept"] == 2
    # The guided success and the lone failure; what could not be graded is in no set.
    assert metrics["sets/left_out/single"] == 2
    assert not Imitation().dynamic_sampling
