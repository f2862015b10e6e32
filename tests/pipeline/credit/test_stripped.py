"""Guided successes on the bare prompt: their advantage, their weight, and the gradient that they give."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from env.play.stripping import stripped
from pipeline.credit import DECOUPLED_CLIP, GRPO, VDapo
from pipeline.credit.stripped import MAX_SHARE, gains_over_bare, total_and_scale
from pipeline.credit.updates import BaselineSets, Update
from pipeline.training.losses import policy_loss
from pipeline.training.policy_update import logprobs_of, more_logprobs, update_rows
from pipeline.training.torch import TorchTrainer
from pipeline.types import Rollout
from tests.pipeline.training.helpers import policy
from tests.rollouts import rollout

BARE, GUIDED = (0, 1), (0, 7, 8, 1)


def group(name: str, bare: Sequence[float], guided: Sequence[float] = (), length: int = 2) -> list[Rollout]:
    """Returns a group's first attempts and second ones, of these rewards; guided ones are twice as long."""
    made = []
    for attempt, rewards in enumerate((bare, guided)):
        for draw, reward in enumerate(rewards):
            size = length * (1 + attempt)
            ids = {"rollout_id": f"{name}{attempt}{draw}", "task_id": name, "group_id": name}
            who = {"attempt": attempt, "draw": draw, "guided": attempt > 0, "seed": 10 * attempt + draw}
            prompt = {"prompt_token_ids": GUIDED if attempt else BARE}
            made.append(rollout((1,) * size, [(0, size)], reward=reward, **ids, **who, **prompt))
    return made


def strip(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], int]:
    """Strips every guided rollout with a reward of 1; one more was told by feedback."""
    return [stripped(r, GUIDED, BARE) for r in rollouts if r.guided and r.reward == 1], 1


def test_a_stripped_success_gains_over_the_bare_rollouts_of_its_group_alone() -> None:
    rollouts = [
        *group("a", (0, 0, 1, 0), (1, 1)),
        *group("b", (1, 1), (1,)),
        *group("c", (0, 0), (1,)),
        *group("d", (0.5, 0.25), (1,)),
        replace(group("e", (0,))[0], reward=None),
        *group("e", (), (1,)),
    ]
    found = {r.rollout_id: gain for r, gain in gains_over_bare(strip(rollouts)[0], rollouts)}
    # b succeeds without feedback; of e nothing bare is known.
    assert found == {"a10": 0.75, "a11": 0.75, "c10": 1.0, "d10": 0.625}
    assert gains_over_bare([stripped(group("a", (), (0,))[0], GUIDED, BARE)], rollouts) == []


@pytest.mark.parametrize("aggregation", ["token", "rollout"])
@pytest.mark.parametrize("num", [1, 2, 9])
def test_weights_sum_to_one_and_a_quarter_of_it_at_most_is_of_stripped_rollouts(aggregation, num) -> None:
    rollouts = [*group("a", (1, 0, 0, 0), (1,) * num), *group("b", (1, 0), length=3)]
    [update] = BaselineSets.of(rollouts, None, DECOUPLED_CLIP, strip).updates(1, max_uniform_share=1, seed=0)
    of_row = [
        w * r.num_trainable_tokens
        for r, w in zip(update.rollouts, update.token_weights(aggregation), strict=True)
    ]
    assert sum(of_row) == pytest.approx(1)
    by_token = aggregation == "token"
    own, more = (14, 4 * num) if by_token else (6, num)
    share = min(more / (own + more), MAX_SHARE)
    assert sum(of_row[-num:]) == pytest.approx(share)
    shares = update.stripped_shares(aggregation)
    expected = {"rows": num / (6 + num), "tokens": 4 * num / (14 + 4 * num), "weight": share}
    assert shares == pytest.approx({f"stripped/{name}": x for name, x in expected.items()})
    # Within the sets nothing has changed: weights are what they were, times one number.
    alone = replace(update, stripped=[]).token_weights(aggregation)
    np.testing.assert_allclose(update.token_weights(aggregation)[:-num], np.array(alone) * (1 - share))


def test_many_stripped_tokens_share_a_quarter_few_count_in_full_and_alone_they_are_all() -> None:
    assert total_and_scale(6, 0) == (6, 1.0)
    assert total_and_scale(6, 2) == (8, 1.0)
    assert total_and_scale(6, 4) == (8, 0.5)
    assert total_and_scale(0, 4) == (4, 1.0)  # nothing leads
    assert total_and_scale(0, 0) == (0, 1.0)


def test_without_stripping_guided_rollouts_are_sets_of_their_own() -> None:
    rollouts = group("a", (1, 0), (1, 0))
    batch = BaselineSets.of(rollouts, None, DECOUPLED_CLIP)
    assert [len(members) for members, _ in batch.candidates] == [2, 2]
    assert (batch.stripped, {n for n in batch.metrics() if n.startswith("stripped")}) == ([], set())


def test_sampling_counts_bare_sets_alone_and_what_is_left_out_is_said() -> None:
    rollouts = [
        *group("a", (1, 0), (1, 0)),
        *group("b", (0, 0), (1, 0)),
        *group("c", (1, 1), (1, 0)),
        *group("d", (1, 0)),
    ]
    batch = BaselineSets.of(rollouts, None, DECOUPLED_CLIP, strip)
    assert batch.num_kept_tasks == 2
    assert all(not r.guided for members, _ in batch.candidates for r in members)
    metrics = batch.metrics()
    assert metrics["stripped/count"] == 2
    assert metrics["stripped/left_out/told_by_feedback"] == 1
    assert metrics["stripped/left_out/bare_succeeds"] == 1
    assert metrics["sets/left_out/all_wrong"] == metrics["sets/left_out/all_right"] == 1
    assert BaselineSets.of(rollouts, None, DECOUPLED_CLIP).num_kept_tasks == 4


def test_stripped_rollouts_go_with_their_task() -> None:
    """Tasks whose bare rollouts all fail have no set in decoupled clip; theirs go to any update."""
    rollouts = [r for i in range(5) for r in group(f"m{i}", (1, 0), (1,))]
    rollouts += [r for i in range(4) for r in group(f"w{i}", (0, 0), (1,))]
    how = {"max_uniform_share": 1.0, "seed": 3}
    batch = BaselineSets.of(rollouts, None, DECOUPLED_CLIP, strip)
    updates = batch.updates(3, **how)
    bare = BaselineSets.of([r for r in rollouts if not r.guided], None, DECOUPLED_CLIP).updates(3, **how)
    members = [[[r for r, _ in update.sets] for update in of] for of in (updates, bare)]
    assert members[0] == members[1]
    assert sorted(r.task_id for update in updates for r, _ in update.stripped) == sorted(
        {r.task_id for r in rollouts}
    )
    for update in updates:
        with_set = {members[0].task_id for members, _ in update.sets}
        assert {r.task_id for r, _ in update.stripped if r.task_id.startswith("m")} == with_set
        assert len(update.stripped) == 3


OF_GROUPS = VDapo(loss=DECOUPLED_CLIP.loss, alpha=0.0, baseline="group_mean")


@pytest.mark.parametrize("credit", [DECOUPLED_CLIP, OF_GROUPS])
def test_where_no_set_says_anything_stripped_rollouts_train_alone(credit) -> None:
    """Where success is rare no bare set varies at first: what feedback achieved is all there is."""
    rollouts = [r for i in range(4) for r in group(f"w{i}", (0, 0), (1, 1))]
    batch = BaselineSets.of(rollouts, None, credit, strip)
    first, second = batch.passes(1, 2, max_uniform_share=1.0, seed=3)[0]
    assert (first.sets, second.sets) == ([], [])
    assert [len(update.stripped) for update in (first, second)] == [4, 4]
    for aggregation in ("token", "rollout"):
        weights = first.token_weights(aggregation)
        assert sum(
            w * r.num_trainable_tokens for w, r in zip(weights, first.rollouts, strict=True)
        ) == pytest.approx(1)
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-2)
    logprobs = more_logprobs([first], trainer, None, half_precision=False)
    rows, metrics, _ = update_rows(first, credit=credit, state=credit.initial_state(), logprobs=logprobs)
    assert metrics["stripped/weight"] == 1.0
    before = [logprobs_of(trainer, [r])[r.rollout_id].sum() for r in first.rollouts]
    trainer.update(rows, policy_loss(credit.loss))
    after = [logprobs_of(trainer, [r])[r.rollout_id].sum() for r in first.rollouts]
    assert all(b > a for a, b in zip(before, after, strict=True))


def test_a_kl_is_of_what_the_policy_sampled_itself() -> None:
    """Stripped tokens are those that training makes likely: k3 on them is no KL, and would stop the run."""
    rollouts = [r for i in range(4) for r in group(f"m{i}", (1, 0), (1,))]
    [update] = BaselineSets.of(rollouts, None, DECOUPLED_CLIP, strip).passes(
        1, 1, max_uniform_share=1.0, seed=3
    )[0]
    assert update.stripped
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-2)
    logprobs = more_logprobs([update], trainer, trainer, half_precision=False)
    moved = {r.rollout_id for r, _ in update.stripped}
    logprobs["ref_logprobs"] = {
        name: of - 4.5 * (name in moved) for name, of in logprobs["ref_logprobs"].items()
    }
    rows, _, _ = update_rows(
        update, credit=DECOUPLED_CLIP, state=DECOUPLED_CLIP.initial_state(), logprobs=logprobs
    )
    assert sum(row.columns["kl_weight"].sum() for row in rows) == pytest.approx(1)
    metrics = trainer.update(rows, policy_loss(replace(DECOUPLED_CLIP.loss, kl=1e-3)))
    assert metrics["ref_kl"] == pytest.approx(0, abs=1e-6)


def test_an_update_with_nothing_to_train_on_counts_once() -> None:
    nothing = BaselineSets.of(group("w", (0, 0), (0,)), None, DECOUPLED_CLIP, strip)
    assert nothing.passes(3, 1, max_uniform_share=1.0, seed=3) == [[Update([], [], 0, 0)], [], []]
    assert nothing.passes(1, 4, max_uniform_share=1.0, seed=3) == [[Update([], [], 0, 0)]]
    one_task = BaselineSets.of(group("m", (1, 0), (0,)), None, DECOUPLED_CLIP, strip)
    assert [len(update.sets) for update in one_task.passes(1, 4, max_uniform_share=1.0, seed=3)[0]] == [1]


def test_the_first_gradient_is_the_weighted_likelihood_of_the_bare_prompt() -> None:
    """Old log-probabilities are the trainer's after the bare prompt, whatever sampled them after another."""
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-2)
    rollouts = group("a", (0, 1, 0, 0), (1,))
    engine = logprobs_of(trainer, rollouts)  # after the guided prompt for the last one
    rollouts = [replace(r, logprobs=tuple(map(float, engine[r.rollout_id]))) for r in rollouts]
    [update] = BaselineSets.of(rollouts, None, GRPO, strip).updates(1, max_uniform_share=1, seed=0)
    assert [r.prompt_token_ids for r in update.rollouts] == [BARE] * 5
    logprobs = more_logprobs([update], trainer, None, half_precision=False)
    rows, metrics, _ = update_rows(update, credit=GRPO, state={}, logprobs=logprobs)
    [added] = logprobs_of(trainer, [update.rollouts[-1]]).values()
    assert not np.allclose(added, rollouts[-1].logprobs, atol=1e-3)
    columns = rows[-1].columns
    for name in ("old_logprobs", "engine_logprobs"):
        np.testing.assert_allclose(columns[name][2:], added, atol=1e-6)
        np.testing.assert_allclose(rows[0].columns[name][2:], rollouts[0].logprobs, atol=1e-6)
    assert set(columns["advantages"][2:]) == {0.75}
    assert metrics["stripped/rows"] == pytest.approx(1 / 5)
    assert metrics["stripped/weight"] == pytest.approx(1 / 5)  # of rollouts: grpo's mean
    before = [logprobs_of(trainer, [r])[r.rollout_id].sum() for r in update.rollouts]
    found = trainer.update(rows, policy_loss(replace(GRPO.loss, kl=0.0)))
    # Ratios are 1: the loss is -sum of weight times advantage, in which the set's own add up to 0.
    assert found["loss"] == pytest.approx(-0.75 / 5, abs=1e-6)
    assert (found["engine_gap"], found["old_kl"]) == pytest.approx((0, 0), abs=1e-6)
    after = [logprobs_of(trainer, [r])[r.rollout_id].sum() for r in update.rollouts]
    assert after[-1] > before[-1]


def test_half_precision_asks_the_trainer_of_all_and_single_precision_of_stripped_rollouts_alone() -> None:
    trainer = TorchTrainer(policy(), head="policy")
    rollouts = group("a", (0, 1), (1,))
    [update] = BaselineSets.of(rollouts, None, DECOUPLED_CLIP, strip).updates(1, max_uniform_share=1, seed=0)
    single, half = (
        more_logprobs([update], trainer, trainer, half_precision=is_half)["old_logprobs"]
        for is_half in (False, True)
    )
    own = logprobs_of(trainer, update.rollouts)
    assert set(single) == set(half) == {"a00", "a01", "a10"}
    np.testing.assert_array_equal(single["a00"], np.float32(rollouts[0].logprobs))
    np.testing.assert_allclose(single["a10"], own["a10"], atol=1e-6)
    assert all(np.allclose(half[name], own[name], atol=1e-6) for name in own)
    bare = replace(update, stripped=[])
    assert more_logprobs([bare], trainer, None, half_precision=False) == {}


def test_v_dapo_needs_no_value_of_a_guided_state() -> None:
    rollouts = group("a", (0, 0), (1,))
    values = {r.rollout_id: np.array([0.4]) for r in rollouts if not r.guided}
    [update] = BaselineSets.of(rollouts, values, VDapo(), strip).updates(1, max_uniform_share=0.5, seed=0)
    assert [gain for _, gain in update.stripped] == [1.0]
