from dataclasses import replace

import numpy as np

from pipeline.credit import DECOUPLED_CLIP, CreditSet, VerifierSteps, make_credit
from pipeline.credit.group import group_advantages

FAILED = CreditSet(np.zeros(2), [np.array([1, 1, -1, 0]), np.array([1, -1])])
SILENT = CreditSet(np.zeros(2), [np.zeros(3), np.zeros(1)])
ONE_VERDICT = CreditSet(np.zeros(2), [np.array([0, 1]), np.array([0])])
MIXED = CreditSet(np.array([1.0, 0, 0]), [np.array([1, 1]), np.array([1, -1]), np.array([0])])


def test_in_a_failed_group_the_error_alone_is_blamed_and_good_steps_are_praised() -> None:
    """Decoupled clip learns nothing from such a group, and its mean would blame every step alike."""
    mode = VerifierSteps(alpha=0.5)
    assert [mode.trains_on(s) for s in (FAILED, SILENT, MIXED, ONE_VERDICT)] == [True, False, True, True]
    [first, second], metrics, state = mode.credit([FAILED], {})
    np.testing.assert_array_equal(first, [0.5, 0.5, -0.5, 0.0])
    np.testing.assert_array_equal(second, [0.5, -0.5])
    assert (metrics["verdicts/ok"], metrics["verdicts/wrong"], state) == (3 / 6, 2 / 6, {})


def test_verdicts_are_added_to_the_group_s_advantage_which_shaping_alone_does_not_make() -> None:
    advantages, _, _ = VerifierSteps(alpha=2.0).credit([MIXED], {})
    group = group_advantages(MIXED.rewards)
    expected = [group[0] + [2, 2], group[1] + [2, -2], group[2] + [0]]
    for found, wanted in zip(advantages, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    shaped = CreditSet(FAILED.rewards, FAILED.signs, shaping=np.array([-0.5, 0.0]))
    for found, wanted in zip(VerifierSteps().credit([shaped], {})[0], FAILED.signs, strict=True):
        np.testing.assert_array_equal(found, 0.5 * wanted)


def test_without_weight_it_is_decoupled_clip_bit_for_bit() -> None:
    mode = make_credit("verifier_steps", alpha=0.0)
    assert (mode.loss, mode.overlong_factor) == (DECOUPLED_CLIP.loss, DECOUPLED_CLIP.overlong_factor)
    assert [mode.trains_on(s) for s in (FAILED, SILENT, MIXED)] == [False, False, True]
    sets = [MIXED, replace(MIXED, shaping=np.array([-0.5, 0.0, -0.1]))]
    found, plain = mode.credit(sets, {})[0], DECOUPLED_CLIP.credit(sets, {})[0]
    assert [a.tobytes() for a in found] == [b.tobytes() for b in plain]
    assert mode.credit([], {})[0] == []
