from dataclasses import replace

import numpy as np
import pytest

from pipeline.credit import CreditSet, baseline_sets, credit_set
from pipeline.credit.sets import with_values_of_others
from pipeline.types import Step, VerifierStatus
from tests.rollouts import rollout

STATUSES: tuple[VerifierStatus, ...] = ("ok", "wrong", "unknown")


def test_a_baseline_is_never_shared_across_groups_attempts_or_prompts() -> None:
    rollouts = [
        rollout(rollout_id="a"),
        rollout(rollout_id="b", attempt=1),  # a later round of the same context
        rollout(rollout_id="c", prompt_token_ids=(1, 7)),
        rollout(rollout_id="d", group_id="h"),
        rollout(rollout_id="e", draw=1),
    ]
    assert [[r.rollout_id for r in s] for s in baseline_sets(rollouts)] == [["a", "e"], ["b"], ["c"], ["d"]]


def test_ungraded_rollouts_leave_every_set() -> None:
    graded, failed = rollout(), rollout(rollout_id="x", reward=None, env_status="timeout")
    assert baseline_sets([failed, graded]) == [[graded]]
    with pytest.raises(ValueError, match="a rollout has no reward"):
        credit_set([graded, failed])


def test_credit_set_carries_signs_values_and_shaping_by_id() -> None:
    judged = replace(rollout(), steps=tuple(Step(i, i, i, i + 1, "", of) for i, of in enumerate(STATUSES)))
    full = replace(judged, max_response_tokens=len(judged.response_token_ids))
    made = credit_set([full], values={"r": np.array([0.5, 0.25, 0.75])}, overlong_factor=0.5)
    np.testing.assert_array_equal(made.signs[0], [1, -1, 0])
    assert made.values is not None
    np.testing.assert_array_equal(made.values[0], [0.5, 0.25, 0.75])
    assert made.shaping_or_zero.tolist() == [-0.5]
    assert credit_set([full]).shaping_or_zero.tolist() == [0]
    with pytest.raises(ValueError, match="values has steps"):
        credit_set([judged], values={"r": np.array([0.5])})


def test_signs_and_rewards_are_of_the_same_rollouts() -> None:
    with pytest.raises(ValueError, match="rewards of 3 rollouts; signs are of 2"):
        CreditSet(np.zeros(3), [np.zeros(1)] * 2)


def test_each_of_an_odd_number_of_rollouts_takes_the_values_half_the_list_further_on() -> None:
    three = CreditSet(np.ones(3), [np.zeros(1)] * 3, [np.array([v]) for v in (0.1, 0.5, 0.9)])
    [shuffled] = with_values_of_others([three])
    assert [float(v[0]) for v in shuffled.known_values] == [0.5, 0.9, 0.1]


def test_kind_is_read_from_raw_rewards() -> None:
    kinds = {
        "mixed": [[1, 0], [0.2, 0.3]],
        "all_right": [[1, 1], [0.5, 0.5]],
        "all_wrong": [[0.4, 0.4]],
        "single": [[0]],
    }
    for kind, of_kind in kinds.items():
        for rewards in of_kind:
            assert CreditSet(np.array(rewards), [np.zeros(1)] * len(rewards)).kind == kind
