import pytest

from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.world.levels import MAX_PRICE
from tests.env.phone.worlds import LEVELS, level_tasks


def tasks_of(level, num_tasks=120):
    return level_tasks(level, num_tasks, companies=100, seed=3)


def rate(verdicts):
    return sum(bool(verdict.success) for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize("level", LEVELS)
def test_policies_score_in_the_order_of_what_they_know(level):
    success, priced = {}, {}
    for name in POLICIES:
        verdicts = [play_scripted(task, name, seed=11, noise=0.2)[2] for task in tasks_of(level)]
        assert not any(verdict.infra_error for verdict in verdicts)
        success[name] = rate(verdicts)
        paid = [bool(v.success) * (1 - min(v.cost, MAX_PRICE)) for v in verdicts]
        priced[name] = sum(paid) / len(paid)
    assert success["oracle"] == priced["oracle"] == 1.0
    if level == 1:
        assert success["prior_only"] == priced["prior_only"] == 1.0  # companies keep to the trade's habits
    else:  # the best without hidden knowledge
        others = POLICIES.keys() - {"oracle", "adaptive"}
        assert all(success["adaptive"] >= success[name] for name in others)
        assert all(priced["adaptive"] >= priced[name] for name in others)
    for name in ("adaptive", "prober"):  # asking succeeds, and is paid for
        assert 0 < priced[name] < success[name]
        assert success[name] == 1.0 or level > 2
    assert success["over_collector"] < min(0.4, success["prober"])
    assert priced["over_collector"] < priced["prober"]
    assert priced["informed_over_collector"] < priced["adaptive"]
    assert success["random"] < 0.1
    assert success["random"] <= success["over_collector"]
    assert success["fabricator"] == 0.0
    assert success["over_collector"] < success["noisy_adaptive"] < success["adaptive"]


@pytest.mark.parametrize("level", LEVELS)
def test_who_remembers_a_first_attempt_does_no_worse_in_the_second(level):
    firsts, seconds = [], []
    for task in tasks_of(level):
        actions, _, verdict = play_scripted(task, "adaptive", seed=2)
        firsts.append(verdict)
        seconds.append(play_scripted(task, "adaptive", seed=4, earlier=[actions])[2])
    assert rate(seconds) >= max(rate(firsts), 0.8)


def test_feedback_on_a_failed_attempt_makes_the_second_succeed_without_asking_again():
    retried = saved = 0
    for task in tasks_of(2, 200):
        for name in ("prior_only", "over_collector"):
            actions, _, verdict = play_scripted(task, name, seed=2)
            if not verdict.success:
                retried += 1
                second, _, verdict = play_scripted(task, "adaptive", seed=4, earlier=[actions])
                assert verdict.success
                saved += len(second) == len(play_scripted(task, "adaptive", seed=4)[0]) - 1
    assert retried > 40
    assert saved > 0


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="known: oracle, adaptive"):
        play_scripted(tasks_of(1, 40)[0], "genius", seed=0)
