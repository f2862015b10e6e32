"""The watch over a frozen critic in an actor's run: what it checks, corrects and tells."""

import json
from dataclasses import replace

import numpy as np
import pytest

from critics.drift.state import DriftRules, DriftState
from critics.logit import logit, sigmoid
from env.play.continuations import Continuations
from pipeline.credit import VDapo
from pipeline.types import Task
from stages.wiring.actor_report import actor_page, actor_report
from stages.wiring.watch import PREFIX, Watch, chosen_for_check
from tests.rollouts import rollout

STEPS = [(t, t + 1) for t in range(4)]
CREDIT = VDapo(alpha=0.5)
TASKS = {f"t{i}": Task(f"t{i}", "phone", "train", 1, (), "rule", "", "x", f"c{i}", i) for i in range(500)}


class FakeCritic:
    """Says V plus something, in log-odds; V is in each rollout's log-probabilities."""

    digest = "fake"

    def __init__(self, shift=0.0, blind=False):
        self.shift, self.blind = shift, blind

    def start_values(self, prompts):
        return sigmoid(np.array([float(prompt[0]) for prompt in prompts]) + self.shift)

    def values(self, rollouts):
        rng = np.random.default_rng(0)
        found = []
        for r in rollouts:
            V = rng.random(len(r.steps)) if self.blind else np.array(r.logprobs[: len(r.steps)])
            found.append(sigmoid(logit(V) + self.shift))
        return found


def rollouts_of(number):
    """Whole bare rollouts whose log-probabilities hold V at their steps."""
    rng = np.random.default_rng(1)
    made = []
    for i in range(number):
        V = sigmoid(rng.normal() + np.cumsum(rng.normal(0, 1.0, len(STEPS))))
        ids = {"rollout_id": f"r{i}", "task_id": f"t{i}", "group_id": f"g{i}", "seed": i}
        reward = float(rng.random() < V[-1])
        made.append(rollout((1,) * len(STEPS), STEPS, logprobs=tuple(V), reward=reward, **ids))
    return made


def continued(rollouts, number=16):
    """Fresh continuations of all states, each by the toss of a coin with chance V."""
    rng = np.random.default_rng(2)
    return [
        replace(
            r,
            rollout_id=f"{r.rollout_id}-{step.step_index}-{draw}",
            kind="continuation",
            parent_rollout_ids=(r.rollout_id,),
            start_step_index=step.step_index,
            reward=float(rng.random() < r.logprobs[step.step_index]),
            steps=r.steps[:1],
        )
        for r in rollouts
        for step in r.steps
        for draw in range(number)
    ]


def watch_of(critic):
    said: list[str] = []
    return Watch(critic, DriftRules(), TASKS, 0, said.append, DriftState(20)), said


def looked(watch, rollouts, checked, credit=CREDIT, updates=20):
    """What the watch makes of an iteration with its values, without the prefix of the metrics."""
    values = {r.rollout_id: v for r, v in zip(rollouts, watch.values(rollouts), strict=True)}
    found = watch.after(rollouts, values, checked, updates, credit)
    return {name.removeprefix(PREFIX): value for name, value in found.items()}


def test_a_stale_critic_loses_its_step_weight_from_the_next_iteration_on():
    rollouts, (watch, said) = rollouts_of(60), watch_of(FakeCritic(blind=True))
    found = []
    for i in range(2):
        found.append(looked(watch, rollouts, continued(rollouts), watch.credit(CREDIT), i))
    assert [(look["steps_off"], look["alpha"]) for look in found] == [(1.0, 0.5), (1.0, 0.0)]
    assert watch.state.wants_refresh
    assert "Cov(A, Ahat) is " in said[-1]
    watch.state = replace(watch.state, steps_off=False, adv_rmse=0.07)
    assert watch.credit(CREDIT) == replace(CREDIT, adv_rmse=0.07)


def test_graded_rewards_are_watched_as_fractions():
    """A reward of .3 is that much of a success: a critic that is right stays right and keeps its weight."""
    rollouts = [replace(r, reward=r.logprobs[-1]) for r in rollouts_of(200)]
    watch, said = watch_of(FakeCritic())
    fresh = [replace(c, reward=c.logprobs[c.start_step_index]) for c in continued(rollouts[:40])]
    found = looked(watch, rollouts, fresh)
    assert (found["level_off"], found["steps_off"]) == (0.0, 0.0)
    assert abs(found["bias"]) < 0.03
    assert found["rho_a"] == pytest.approx(1.0)
    assert (found["alpha"], watch.credit(CREDIT), said) == (0.5, CREDIT, [])
    off, _ = watch_of(FakeCritic(shift=-1.5))
    assert looked(off, rollouts, [])["level_off"] == 1.0
    assert off.state.shift > 0.5


def test_continuations_that_could_not_be_graded_measure_nothing():
    rollouts, (watch, said) = rollouts_of(60), watch_of(FakeCritic())
    found = looked(watch, rollouts, [replace(r, reward=None) for r in continued(rollouts)])
    assert found["states"] == 0
    assert "steps_off" not in found
    assert "says nothing of steps" in said[0]


def test_a_level_that_is_off_is_corrected_for_later_iterations_only():
    rollouts, (watch, _) = rollouts_of(400), watch_of(FakeCritic(shift=-1.5))
    before, of_prompts = watch.values(rollouts), watch.start_values([(-1,), (0,)])
    assert watch.whose_values == "fake"
    found = looked(watch, rollouts, [])
    assert found["bias"] < -0.1
    assert found["correction_shift"] == 0  # of the values that were looked at
    assert watch.whose_values.startswith("fake slope=")
    after = looked(watch, rollouts, [])
    assert after["correction_shift"] > 0.5
    assert abs(after["bias"]) < 0.02
    assert all((a > b)[b < 0.95].all() for a, b in zip(watch.values(rollouts), before, strict=True))
    by_now = watch.state.correction(of_prompts)  # which tasks are nearest to one half is asked of the same
    np.testing.assert_array_equal(watch.start_values([(-1,), (0,)]), by_now)
    assert (by_now > of_prompts).all()


def test_whole_bare_rollouts_are_checked_until_there_are_enough_states_whatever_their_ids():
    """An id changes with every digest upstream; what is sampled for a check must not."""
    rollouts = rollouts_of(20)
    guided = [replace(r, guided=True, seed=100 + r.seed) for r in rollouts]
    chosen = chosen_for_check([*guided, *rollouts], 10)
    assert len(chosen) == 3
    assert not any(r.guided for r in chosen)
    seeds = []
    renamed = [replace(r, rollout_id=f"z{19 - i}", group_id="z") for i, r in enumerate(rollouts)]
    for key, named in (("k", rollouts), ("z", renamed)):
        asked = Continuations(key, 0, "drift").of_all(chosen_for_check(named, 10), TASKS, 3)
        seeds.append([r.seed for r in asked])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3 * len(STEPS) * 3


def test_the_report_shows_the_curves_and_says_what_was_found():
    paid = {"rho_a": 0.5, "rho_a_low": 0.3, "rho_a_high": 0.7}
    looks = [{"iteration": i, "rollouts/count": 8.0, "critic_drift/bias": -0.05 * i} for i in range(5)]
    for i in (0, 2, 4):
        looks[i] |= {f"critic_drift/{name}": value for name, value in paid.items()}
        looks[i] |= {"critic_drift/steps_off": float(i == 4), "val/first_try": 0.1 * i}
    kls = (0.0, 0.02, 111.0, 0.03, 0.04)  # as each update began; one token can dominate one of them
    updates = [{"iteration": i, "update": i + 1, "ref_kl": kl} for i, kl in enumerate(kls)]
    report = actor_report(updates + looks, 10)
    assert [entry["bias"] for entry in report["drift"]] == [-0.05 * i for i in range(5)]
    assert [entry.get("val") for entry in report["learning"]] == [0.0, None, 0.2, None, 0.4]
    assert [entry["kl"] for entry in report["drift"]] == pytest.approx([0.0, 0.0, 0.01, 0.02, 0.03])
    html = actor_page(json.loads(json.dumps(report)))
    assert "found off in iterations 4" in html
    assert html.count("<svg") == 4
    del looks[2]["critic_drift/rho_a_low"]
    assert actor_page(actor_report(updates + looks, 10)) != html  # the bounds of the others stay
    for entries, words in ((looks, "KL to the starting policy: not measured"), ([], "nothing to watch")):
        assert words in actor_page(actor_report(entries, 1))
