import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter, ValidationError

from env.adapters.session import Session, text_of
from env.phone.episode.tools import tools_of
from env.phone.world.levels import LEVELS
from pipeline.exports.openai import replies_to_no_call
from pipeline.tables import tasks_table
from tests.env.adapters.played import STYLE
from tests.exports import Made

MESSAGES: Any = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS: Any = TypeAdapter(list[ChatCompletionToolParam])


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.fixture
def lines(export: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each line with what is known of it."""
    folder = export("openai")
    assert sorted(path.name for path in folder.iterdir()) == ["facts.jsonl", "messages.jsonl"]
    return list(zip(lines_of(folder / "messages.jsonl"), lines_of(folder / "facts.jsonl"), strict=True))


def test_openai_s_own_types_take_every_line(lines: Any) -> None:
    for line, _ in lines:
        assert set(line) == {"messages", "tools"}
        assert len(MESSAGES.validate_python(line["messages"])) == len(line["messages"])
        assert TOOLS.validate_python(line["tools"]) == line["tools"]
        assert line["messages"][-1]["role"] == "assistant"
    with pytest.raises(ValidationError):
        MESSAGES.validate_python([{"role": "tool", "content": "an answer to nobody"}])


def test_messages_tools_rewards_and_ids_are_those_of_the_rollouts(lines: Any, made: Made) -> None:
    level_of = {task.task_id: task.level for task in made.tasks}
    assert [facts["rollout_id"] for _, facts in lines] == [r.rollout_id for r in made.bare]
    for (line, facts), r in zip(lines, made.bare, strict=True):
        assert (facts["reward"], facts["task_id"], facts["group_id"]) == (r.reward, r.task_id, r.group_id)
        assert facts["split"] == ("val" if r.task_id == "held out" else "train")
        assert line["tools"] == list(tools_of(LEVELS[level_of[r.task_id]]))
        text = made.tokenizer.decode([*r.prompt_token_ids, *r.response_token_ids])
        assert STYLE.render(line["messages"], tools=line["tools"]).removesuffix("\n") == text


def test_calls_played_again_from_the_file_earn_the_reward_beside_it(lines: Any, made: Made) -> None:
    row_of = {row["task_id"]: row for row in tasks_table(made.tasks).to_pylist()}
    assert {facts["reward"] for _, facts in lines} == {0.0, 1.0}
    for line, facts in lines:
        session = Session("phone")
        session.start({**row_of[facts["task_id"]], "seed": facts["draw"]})
        heard, told = [], [m["content"] for m in line["messages"] if m["role"] == "tool"]
        for message in line["messages"]:
            for call in message.get("tool_calls") or ():
                arguments = json.loads(call["function"]["arguments"])
                heard.append(text_of(session.call(call["function"]["name"], arguments).messages))
        assert heard[: len(told)] == told
        assert session.verdict().reward == facts["reward"]


@pytest.mark.parametrize(("call_id", "refused"), [("a", False), ("b", True), (None, True)])
def test_a_reply_to_no_call_is_found(call_id: str | None, refused: bool) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    reply = {"role": "tool", "content": "x", "tool_call_id": call_id}
    assert replies_to_no_call([{"role": "user", "content": "x"}, said, reply]) == refused
    assert replies_to_no_call([reply])
