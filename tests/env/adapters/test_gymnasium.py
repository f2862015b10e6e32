"""Gymnasium plays whole messages: its own checker, any environment, and episodes that do not start."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("gymnasium", reason="make setup-adapters installs it")
pytestmark = pytest.mark.adapters

from gymnasium.utils.env_checker import check_env  # noqa: E402

from env.adapters.gymnasium import TextEnv  # noqa: E402
from env.catalog import offer_of  # noqa: E402
from env.phone.episode.tools import tools_of  # noqa: E402
from env.phone.world.levels import LEVELS  # noqa: E402
from env.protocol import ToolCall  # noqa: E402
from tests.env.adapters.played import STYLE, TASKS  # noqa: E402

SEARCHING = STYLE.action_of(ToolCall("search_company", {"company_name": "x"}))


def test_gymnasium_truncates_an_episode_that_did_not_start() -> None:
    env, bad = TextEnv(TASKS), replace(TASKS[0], ground_truth="nonsense")
    observation, info = env.reset(seed=0, options={"task": bad})
    assert (observation, info["task_id"]) == ("", bad.task_id)
    assert info["infra_error"].startswith("reset: ValueError")
    _, reward, terminated, truncated, after = env.step(SEARCHING.text)
    assert math.isnan(reward)
    assert (terminated, truncated, after["infra_error"]) == (False, True, info["infra_error"])
    _, info = env.reset(seed=0, options={"task": TASKS[0]})
    assert "infra_error" not in info
    assert env.step(SEARCHING.text)[1:4] == (0, False, False)


def test_gymnasium_plays_messages_so_any_environment() -> None:
    offer = offer_of("math")
    tasks = offer.task_set(offer.settings(num_train=1, num_held_out=1), 0).tasks
    env = TextEnv(tasks, "math")
    env.reset(options={"task": tasks[0]})
    answer = f"{tasks[0].details.get('mark', '')} \\boxed{{{tasks[0].ground_truth}}}"
    assert env.step(answer)[1:4] == (1, True, False)


def test_gymnasium_accepts_its_environment_which_opens_with_the_tools_of_the_tasks_level() -> None:
    check_env(TextEnv(TASKS), skip_render_check=True)
    for task in TASKS:
        observation, info = TextEnv(TASKS).reset(seed=0, options={"task": task})
        assert (observation, info["task_id"]) == (task.prompt[0]["content"], task.task_id)
        assert info["tools"] == list(tools_of(LEVELS[task.level]))
