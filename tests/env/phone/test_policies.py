"""Yardstick policies score in the order that the difficulty table promises."""

from dataclasses import replace

import pytest

from env.phone.episode.environment import PhoneEnv
from env.phone.scripted.knowledge import read_advice
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.solver.verdicts import advice
from env.phone.world.levels import MAX_PRICE
from env.phone.world.tasks import generate_tasks
from pipeline.types import Feedback, Task

NUM_TASKS = 500
FEW_TASKS = 120
HIDDEN = "oracle"  # the one policy that knows what nobody may know


def level_tasks(level: int, num_tasks: int = NUM_TASKS) -> list[Task]:
    tasks = generate_tasks(
        num_companies=100, num_train=num_tasks, num_val=1, num_test=1, level_shares={level: 1.0}, seed=3
    )
    return [task for task in tasks if task.split == "train"]


LEVELS = (
    pytest.param((1, NUM_TASKS), id="1"),
    pytest.param((2, NUM_TASKS), id="2"),
    *(pytest.param((level, FEW_TASKS), id=f"{level}, few tasks") for level in (3, 4, 5)),
    *(pytest.param((level, NUM_TASKS), id=str(level), marks=pytest.mark.slow) for level in (3, 4, 5)),
)


@pytest.fixture(scope="module", params=LEVELS)
def level_and_size(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture(scope="module")
def table(level_and_size: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Success and priced success of every policy on one level."""
    scores = {}
    tasks = level_tasks(*level_and_size)
    for name in POLICIES:
        verdicts = [play_scripted(task, name, seed=11, noise=0.2)[2] for task in tasks]
        success = sum(bool(v.success) for v in verdicts) / len(verdicts)
        priced = sum(bool(v.success) * (1 - min(v.cost, MAX_PRICE)) for v in verdicts) / len(verdicts)
        scores[name] = (success, priced)
    return scores


def test_the_oracle_succeeds_exactly_always(table):
    assert table["oracle"] == (1.0, 1.0)


def test_the_adaptive_policy_is_the_best_without_hidden_knowledge_from_level_two_on(table, level_and_size):
    if level_and_size[0] == 1:
        assert table["prior_only"] == (1.0, 1.0)  # at level 1 every company keeps to the trade's habits
        return
    others = [score for name, score in table.items() if name not in (HIDDEN, "adaptive")]
    assert all(table["adaptive"][1] >= priced for _, priced in others)
    assert all(table["adaptive"][0] >= success for success, _ in others)


def test_asking_succeeds_and_is_paid_for(table, level_and_size):
    for name in ("adaptive", "prober"):
        assert 0 < table[name][1] < table[name][0]
        assert table[name][1] < table["oracle"][1]
        if level_and_size[0] <= 2:
            assert table[name][0] == 1.0


def test_over_collection_is_worse_than_asking(table):
    assert table["over_collector"][0] < 0.4
    assert table["over_collector"][0] < table["prober"][0]
    assert table["over_collector"][1] < table["prober"][1]
    assert table["informed_over_collector"][1] < table["adaptive"][1]


def test_random_is_near_zero_and_fabrication_is_zero(table):
    assert table["random"][0] < 0.1
    assert table["random"][0] <= table["over_collector"][0]
    assert table["fabricator"] == (0.0, 0.0)


def test_a_share_of_random_acts_costs_success(table):
    assert table["over_collector"][0] < table["noisy_adaptive"][0] < table["adaptive"][0]


def test_trusting_the_prior_gets_worse_with_the_level():
    rates = []
    for level in (1, 2, 3, 4, 5):
        verdicts = [play_scripted(task, "prior_only", seed=1)[2] for task in level_tasks(level)]
        rates.append(sum(bool(v.success) for v in verdicts) / len(verdicts))
    assert rates[0] == 1.0
    assert 0.8 < rates[1] < 0.95
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 5


def test_after_corrective_feedback_the_second_attempt_is_never_worse(level_and_size):
    first = second = 0
    for task in level_tasks(*level_and_size):
        actions, _, verdict = play_scripted(task, "adaptive", seed=2)
        again = play_scripted(task, "adaptive", seed=4, earlier=[actions], is_corrected=True)[2]
        first += bool(verdict.success)
        second += bool(again.success)
    assert second >= first
    assert second >= 0.95 * level_and_size[1]


@pytest.mark.parametrize("level", [3, 4, 5])
def test_who_knows_no_trade_goes_by_the_text_of_corrective_feedback(level, monkeypatch):
    failed = []
    for task in level_tasks(level, FEW_TASKS)[:60]:
        actions, _, verdict = play_scripted(task, "prober", seed=2)
        if not verdict.success:
            failed.append((task, actions))

    def rate(**how):
        again = [play_scripted(t, "prober", seed=4, earlier=[a], **how)[2] for t, a in failed]
        return sum(bool(verdict.success) for verdict in again) / len(again)

    corrected, remembered = rate(is_corrected=True), rate()
    monkeypatch.setattr(
        "env.phone.episode.environment.rule_feedback", lambda *_: Feedback("Try again.", "none")
    )
    assert rate(is_corrected=True) == remembered < corrected
    assert corrected > 0.9


def test_advice_is_read_from_the_text_alone():
    text = "Fraud needs: email. Ask for email, full_name in the one form. For R2 call Help, then Fraud."
    found = read_advice(text, ["Help", "Fraud"])
    assert found.form == {"email", "full_name"}
    assert found.routes == (("R2", ("Help", "Fraud")),)
    assert read_advice(text, ["Fraud"]).routes == ()  # a line that the directory does not list
    assert read_advice("Fraud needs: email. You stopped too early.", ["Fraud"]) is None


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_text_advises_what_the_solver_knows(level):
    told = 0
    for task in level_tasks(level, 40):
        env = PhoneEnv(verbosity="corrective")
        play_scripted(task, "over_collector", seed=2, env=env)
        if (feedback := env.feedback()) is not None:
            names = [line.name for line in env.world.company.departments]
            known = advice(env.world)
            left = [route for route in known.routes if route[0] not in env.state.served]
            assert read_advice(feedback.text, names) == replace(known, routes=tuple(left))
            told += 1
    assert told > 20


def test_feedback_on_a_failed_attempt_makes_the_second_succeed():
    retried = 0
    for task in level_tasks(2):
        for name in ("prior_only", "over_collector"):
            actions, _, verdict = play_scripted(task, name, seed=2)
            if verdict.success:
                continue
            retried += 1
            assert play_scripted(task, "adaptive", seed=4, earlier=[actions])[2].success
    assert retried > 100


def test_a_told_policy_does_not_ask_again():
    task = next(t for t in level_tasks(2) if not play_scripted(t, "prior_only", seed=2)[2].success)
    failed = play_scripted(task, "prior_only", seed=2)[0]
    told, _, _ = play_scripted(task, "adaptive", seed=4, earlier=[failed])
    untold, _, _ = play_scripted(task, "adaptive", seed=4)
    assert len(told) == len(untold) - 1


def test_the_priced_reward_puts_every_success_above_every_failure():
    for task in level_tasks(1)[:40]:
        for name in POLICIES:
            env = PhoneEnv(reward="priced")
            verdict = play_scripted(task, name, seed=5, noise=0.5, env=env)[2]
            assert verdict.reward is not None
            assert (verdict.reward >= 0.5) if verdict.success else (verdict.reward == 0.0)


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="known: oracle, adaptive"):
        play_scripted(level_tasks(1)[0], "genius", seed=0)
