"""Real episodes through Gymnasium's interface, which its own checker accepts."""

import math

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="make setup-adapters installs it")
pytestmark = pytest.mark.adapters

from env.adapters.gymnasium import TextEnv  # noqa: E402
from env.phone.episode.environment import PhoneEnv  # noqa: E402
from env.phone.episode.tools import tools_of  # noqa: E402
from env.phone.scripted.policies import POLICIES, play_scripted  # noqa: E402
from env.phone.scripted.spoken import in_style  # noqa: E402
from env.phone.world.levels import LEVELS  # noqa: E402
from tests.env.adapters.played import STYLE, TASKS, without_adapter  # noqa: E402


@pytest.mark.parametrize("policy", POLICIES)
def test_an_episode_is_the_one_that_is_played_without_gymnasium(policy: str) -> None:
    env = TextEnv(TASKS)
    for seed, task in enumerate(TASKS):
        actions = in_style(STYLE, task, seed, play_scripted(task, policy, seed, noise=0.4)[0])
        observation, info = env.reset(seed=seed, options={"task": task})
        assert observation == task.prompt[0]["content"]
        assert info["task_id"] == task.task_id
        assert info["tools"] == list(tools_of(LEVELS[task.level]))
        events, texts, rewards = [], [], []
        for action in actions:
            observation, reward, terminated, truncated, info = env.step(action.text)
            assert env.observation_space.contains(observation)
            events += info["events"]
            texts += [observation] if info["messages"] else []
            rewards.append(reward)
            assert (terminated or truncated) == ("verdict" in info)
        played = (events, texts, info["state_digest"], info["verdict"])
        assert played == without_adapter(task, seed, actions)
        assert sum(rewards) == info["verdict"].reward


def test_gymnasium_s_checker_accepts_it() -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(TextEnv(TASKS), skip_render_check=True)


@pytest.mark.parametrize(("where", "error"), [("_step", "OSError: gone"), ("verdict", "verdict: OSError")])
def test_a_failing_environment_truncates_with_no_reward(
    monkeypatch: pytest.MonkeyPatch, where: str, error: str
) -> None:
    env = TextEnv(TASKS)
    env.reset(seed=0)

    def fail(*args: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(PhoneEnv, where, fail)
    _, reward, terminated, truncated, info = env.step("Done.")
    assert math.isnan(reward)
    assert (terminated, truncated) == (False, True)
    assert info["infra_error"] == error
