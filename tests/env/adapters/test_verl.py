"""verl's agent loop plays real episodes: its tool registry, its Hermes parser, its tokens, our template."""

import asyncio
import gc
import math
import warnings
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("verl", reason="make setup-adapters installs it")
pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("default"),  # of other libraries
]

with warnings.catch_warnings():  # importing verl imports ray, wandb and others, which warn
    warnings.simplefilter("ignore")
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.tool_registry import initialize_tools_from_config
    from verl.workers.rollout.replica import TokenOutput

from env.adapters.verl import EnvironmentTool, tool_selection, tools_kwargs  # noqa: E402
from env.phone.episode.environment import PhoneEnv  # noqa: E402
from env.phone.episode.tools import TOOLS, tools_of  # noqa: E402
from env.phone.world.levels import LEVELS  # noqa: E402
from tests.env.adapters.played import ROWS, STYLE, TASKS, by_session, make_tokenizer, reply  # noqa: E402

ROLLOUT = {
    "prompt_length": 4096,
    "response_length": 4096,
    "full_determinism": False,
    "multi_turn": {
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 1,
        "max_tool_response_length": 2000,
        "tool_response_truncate_side": "middle",
        "format": "hermes",
    },
}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> list[EnvironmentTool]:
    """The tools as verl makes them from its configuration."""
    entries = [
        {
            "class_name": "env.adapters.verl.EnvironmentTool",
            "config": {"type": "native", "environment": "phone", "tool": tool["function"]["name"]},
        }
        for tool in TOOLS
    ]
    path = tmp_path_factory.mktemp("verl") / "tools.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create({"tools": entries})))
    return list(initialize_tools_from_config(path))


class Server:
    """Answers as the scripted agent."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.rng = Random(0)

    async def generate(self, request_id: str, prompt_ids: list[int], **options: Any) -> TokenOutput:
        text = reply(self.tokenizer.decode(prompt_ids), Random(self.rng.random()))
        ids = self.tokenizer.encode(text + STYLE.stop_token, add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields={})


def test_verl_s_agent_loop_completes_real_episodes(tools: list[EnvironmentTool], tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    server = Server(tokenizer)

    async def play(row: dict[str, Any]) -> Any:
        loop = ToolAgentLoop(
            DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})),
            server,
            tokenizer,
            None,
            None,
            DictConfigWrap(OmegaConf.create({})),
            hf_model_type="qwen3",
            tools=ToolListWrap(tools),
        )
        return await loop.run(
            {},
            raw_prompt=row["prompt"],
            tools_kwargs=tools_kwargs(row, "phone"),
            extra_info={"tool_selection": tool_selection(row, "phone")},
        )

    async def play_all() -> list[Any]:
        return await asyncio.gather(*(play(row) for row in ROWS for _ in range(3)))

    outputs = asyncio.run(play_all())
    rewards: dict[int, set[float | None]] = defaultdict(set)
    for place, output in enumerate(outputs):
        task = TASKS[place // 3]
        own = [i for i, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
        messages = tokenizer.decode(own).split(STYLE.stop_token)[:-1]
        heard, reward = by_session(ROWS[place // 3], [*map(STYLE.parse, messages)])
        assert sum(output.extra_fields["tool_rewards"]) == reward
        rewards[task.level].add(reward)
        # Its ids are what a player of ours would have put between the same messages.
        expected = STYLE.render_prompt(task.prompt, (), tools_of(LEVELS[task.level]))
        for text, answer in zip(messages, heard, strict=False):
            expected += text + STYLE.stop_token + STYLE.render_replies([{"role": "tool", "content": answer}])
        whole = output.prompt_ids + output.response_ids
        assert tokenizer.decode(whole) == expected + messages[-1] + STYLE.stop_token
        assert whole == tokenizer.encode(tokenizer.decode(whole), add_special_tokens=False)
    assert set(rewards) == set(LEVELS)
    assert rewards[1] | rewards[2] == {1.0, 0.0}
    del outputs
    gc.collect()
    assert EnvironmentTool._sessions == {}


def test_verl_shows_the_schemas_as_they_are(tools: list[EnvironmentTool]) -> None:
    assert [tool.tool_schema.model_dump(exclude_unset=True) for tool in tools] == list(TOOLS)


class Agent:
    """What verl keeps of a request."""

    request_id = "r"


def test_an_ungraded_step_has_no_reward_and_an_episode_lives_as_long_as_its_request(
    tools: list[EnvironmentTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not null: verl leaves a null out of `tool_rewards`, whose sum would be 0, the reward of a failure."""
    step, failing = PhoneEnv._step, [False, True, False]

    def fail_once(*args: Any) -> Any:
        if failing.pop(0):
            raise OSError("gone")
        return step(*args)

    monkeypatch.setattr(PhoneEnv, "_step", fail_once)

    async def play() -> list[float]:
        agent, rewards = Agent(), []
        for _ in range(3):  # verl makes and releases an instance for every call
            instance, _ = await tools[0].create(create_kwargs={"row": ROWS[0]})
            _, reward, _ = await tools[0].execute(instance, {"company_name": "x"}, agent_data=agent)
            assert math.isnan(await tools[0].calc_reward(instance)) == math.isnan(reward)
            await tools[0].release(instance)
            rewards.append(reward)
        return rewards

    assert [math.isnan(reward) for reward in asyncio.run(play())] == [False, True, True]
    gc.collect()
    assert EnvironmentTool._sessions == {}
