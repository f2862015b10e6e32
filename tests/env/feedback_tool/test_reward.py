"""The price of asking: over all outcome sequences, no call that was not needed gains."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env.feedback_tool.reward import CALL_PRICE, MAX_CALLS, REVISION_SHARE, tool_reward

share = st.floats(0, 1)


def test_right_at_once_is_best_and_a_call_in_vain_is_worst() -> None:
    first, one, two, wrong, called = (
        tool_reward(*case) for case in ((1, 1, 0), (1, 0, 1), (1, 0, 2), (0, 0, 0), (0, 0, 1))
    )
    assert (first, one, two, wrong, called) == pytest.approx((1, 0.95, 0.85, 0, -0.1))
    assert first > one > two > wrong > called > tool_reward(0, 0, 2)


def test_no_sequence_of_answers_gains_by_a_call_that_it_did_not_need() -> None:
    """An answer, right or wrong, follows each call: one after a right answer never pays, whatever follows."""
    for calls in range(1, MAX_CALLS + 1):
        for answers in product((0, 1), repeat=calls + 1):
            reward = tool_reward(answers[-1], answers[0], calls)
            assert reward < 1  # what is right at once
            assert reward < 0 or answers[-1] == 1  # in vain is worse than no call at all
            if answers[0] == 1:
                assert reward < tool_reward(1, 1, 0)
            for place in range(1, calls):  # to stop where the last answer is given already
                if answers[place] == answers[-1]:
                    assert reward < tool_reward(answers[place], answers[0], place)


@given(share, share, st.integers(1, MAX_CALLS))
def test_graded_answers_are_ordered_alike(last: float, first: float, calls: int) -> None:
    reward = tool_reward(last, first, calls)
    assert -0.25 - 1e-9 <= reward < 1
    assert reward < tool_reward(last, last, 0)  # the same answer at once
    assert calls == 1 or reward < tool_reward(last, first, calls - 1)
    assert tool_reward(1, first, calls) >= reward


def test_a_call_pays_where_it_mends_more_often_than_its_price_says() -> None:
    level = CALL_PRICE / (1 + REVISION_SHARE)
    for mended, pays in ((level * 1.01, True), (level * 0.99, False)):
        asked = mended * tool_reward(1, 0, 1) + (1 - mended) * tool_reward(0, 0, 1)
        assert (asked > tool_reward(0, 0, 0)) == pays
    assert REVISION_SHARE < CALL_PRICE


@pytest.mark.parametrize("case", [(1.1, 0, 1), (1, -0.1, 1), (1, 0, 3), (1, 0, -1), (1, 0, 0)])
def test_what_no_episode_can_be_is_refused(case: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match=r"allowed|one answer"):
        tool_reward(*case)
