"""What the watch decides from its checks: a pure function, so no run is needed to see it."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from critics.drift.checks import fit_correction, free_check
from critics.drift.state import Checks, DriftRules, DriftState, decide
from critics.logit import logit, sigmoid
from pipeline.statistics import UNDEFINED, Interval

RULES = DriftRules(paid_every=20)
GOOD = {"cov_a": Interval(0.02, 0.01, 0.03), "sign_agreement": Interval(0.9, 0.8, 1.0), "rho_a": UNDEFINED}
TOUCHES = GOOD | {"cov_a": Interval(0.01, -0.01, 0.03)}
BACKWARDS = GOOD | {"sign_agreement": Interval(0.4, 0.3, 0.5)}
NOTHING = GOOD | {"sign_agreement": UNDEFINED}


def outcomes(shift: float, number: int = 400, lucky: int = 0) -> Checks:
    """An iteration whose critic is off by a shift in log-odds; every third outcome may be a lucky one."""
    rng = np.random.default_rng(1)
    true = [sigmoid(np.full(4, rng.normal())) for _ in range(number)]
    rewards = [float(rng.random() < V[-1] or (lucky and i % lucky == 0)) for i, V in enumerate(true)]
    values = [sigmoid(logit(V) + shift) for V in true]
    free = free_check(values, rewards, [f"c{i}" for i in range(number)])
    return Checks(values, rewards, free, None, 0)


def paid(check: dict[str, Interval], state: DriftState, rules: DriftRules = RULES) -> DriftState:
    return decide(state, Checks([], [], None, check, 20), rules)[0]


def test_a_good_check_leaves_everything_and_one_that_measured_nothing_decides_nothing():
    assert paid(GOOD, DriftState(20)) == DriftState(40)  # the next is due as usual
    state, said = decide(DriftState(20), Checks([], [], None, NOTHING, 20), RULES)
    assert state == DriftState(40)
    assert "says nothing of steps" in said[0]


@pytest.mark.parametrize("found", [TOUCHES, BACKWARDS])
def test_steps_that_are_off_lose_their_weight_and_a_new_critic_is_wanted_once(found):
    state, said = decide(DriftState(20), Checks([], [], None, found, 20), RULES)
    assert (state.steps_off, state.wants_refresh) == (True, True)
    assert "no longer knows this actor's steps; its step weight is 0" in said[0]
    again = paid(found, replace(DriftState(20), refresh_runs=("refresh/a",)))
    assert (again.steps_off, again.wants_refresh) == (True, False)
    left, said = decide(DriftState(20), Checks([], [], None, found, 20), replace(RULES, react="never"))
    assert left == DriftState(40)
    assert said[0].endswith("this actor's steps")


def test_checks_are_due_by_updates_while_the_critic_weighs_or_may_be_made_again():
    state, rules = DriftState(5), replace(RULES, paid_every=5)
    assert [state.check_is_due(n, 0.5, rules) for n in (0, 4, 5, 9)] == [False, False, True, True]
    assert not state.check_is_due(5, 0.0, rules)
    assert not state.check_is_due(10**6, 0.5, replace(rules, paid_every=0))
    off = replace(state, steps_off=True, refresh_runs=("refresh/a",))
    hows = ("correct", "refresh_once", "refresh")
    due = {how: off.check_is_due(5, 0.0, replace(rules, react=how)) for how in hows}
    assert due == {"correct": False, "refresh_once": False, "refresh": True}


def test_an_iteration_that_is_off_is_refitted_together_with_those_before_it():
    """It was found for being extreme: fitted alone, level and slope would follow its luck."""
    usual, lucky = outcomes(-0.4), outcomes(-0.4, lucky=3)
    state = DriftState()
    for checks in (usual, usual, usual):
        state, said = decide(state, checks, RULES)
        assert said == []
    state, said = decide(state, lucky, RULES)
    assert "fitted to the last 3" in said[0]
    together = fit_correction(usual.values * 3, [*usual.rewards, *usual.rewards, *lucky.rewards])
    assert (state.slope, state.shift) == pytest.approx((together.slope, together.shift))
    assert 0.4 < state.shift < fit_correction(lucky.values, lucky.rewards).shift - 0.3
    # Values that were corrected are kept as they were frozen, and the whole state is JSON.
    corrected = replace(usual, values=[state.correction(v) for v in usual.values])
    state = DriftState(**json.loads(json.dumps(asdict(decide(state, corrected, RULES)[0]))))
    kept, _ = state.recent[-1]
    assert np.concatenate(kept) == pytest.approx(np.concatenate(usual.values))
    assert len(state.recent) == 3
    untouched = decide(DriftState(), outcomes(-1.5), replace(RULES, react="never"))
    assert untouched == (DriftState(), [])


@pytest.mark.parametrize("allowed", [True, False])
def test_what_a_refresh_found_decides_and_nothing_of_the_old_critic_stays(allowed):
    before = DriftState(20, 1.2, 0.5, ((), ()), steps_off=True, wants_refresh=True)
    after = before.refreshed("refresh/a", 0.07, allowed=allowed, policy_digest="new")
    new = {"refresh_runs": ("refresh/a",), "adv_rmse": 0.07, "critic_policy": "new"}
    assert after == DriftState(20, steps_off=not allowed, **new)
    assert not after.may_refresh(RULES)
    # No critic could be made of what the actor plays: the old one stays, without weight.
    refused = before.not_refreshed("refresh/a")
    assert refused == replace(before, wants_refresh=False, refused_runs=("refresh/a",))
    assert not refused.may_refresh(RULES)
