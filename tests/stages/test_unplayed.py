"""A team with sessions, tools and no simulator: from a file to a policy, and no further than that."""

import json
import os
from collections.abc import Iterator

import pytest

from env.catalog import offer_of
from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ConfigError
from tests.stages.conftest import Lab, make_lab

SUPPORT = """
from env.unplayed import unplayed

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"],
    "additionalProperties": False}}}]
SUPPORT = unplayed("support", TOOLS)
"""
SETTINGS = """
run: {name: r, rollouts_per_shard: 40}
engine: {max_live: 64}
training: {threads: 1}
tasks: {environment: "support:SUPPORT", rows: FOLDER/sessions.jsonl, num_train: 30, num_held_out: 5}
sampling: {max_response_tokens: 256}
sft: {data: {source: FOLDER/sessions.jsonl, above: null}, num_updates: 20, batch_rows: 8,
      learning_rate: 1.0e-2,
      model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}}
rollouts: {num_tasks: 0, solutions: FOLDER/sessions.jsonl}
critic: {fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 1.0e-3,
         learning_rate: 5.0e-4, max_epochs: 1, batch_states: 64, evaluations_per_epoch: 2}
stored: {objective: {kind: v_dapo, on_weak_critic: allow},
         learning_rate: 1.0e-3, batch_rows: 16, max_epochs: 1}
"""


def session(order: int, works: bool, polite: bool) -> dict[str, object]:
    call = {"name": "look_up", "arguments": json.dumps({"order": str(order)})}
    said = [
        {"role": "system", "content": "Help customers of the shop."},
        {"role": "user", "content": f"Where is my order {order}?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": call}]},
        {"role": "tool", "tool_call_id": "x", "content": f"order {order}: sent"},
        {
            "role": "assistant",
            "content": ("Dear customer, " if polite else "") + ("it was sent." if works else "no idea."),
        },
    ]
    return {"messages": said, "reward": 0.9 if works else 0.2}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("support")
    both = (True, False)
    rows = [session(i, works, polite) for i in range(40) for works in both for polite in both]
    (folder / "sessions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "support.py").write_text(SUPPORT)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        made = make_lab(folder, SETTINGS.replace("FOLDER", str(folder)))
        assert made.start("tasks") == 0
        yield made


def test_tasks_are_what_sessions_open_with(lab: Lab) -> None:
    tasks = lab.tasks().values()
    assert sorted(task.split for task in tasks) == ["test"] * 5 + ["train"] * 30 + ["val"] * 5
    assert {len(task.prompt) for task in tasks} == {2}
    assert lab.artifact("tasks").manifest["counts"]["skipped"] == {"duplicate": 120}


def test_a_policy_is_made_of_sessions_alone(lab: Lab) -> None:
    for stage in ("sft", "rollouts", "labels", "critic", "stored"):
        assert lab.start(stage) == 0, stage
    sft = Artifact.open(lab.run_dir, "sft").report["data"]
    assert (sft["by_calls"], sft["left_out"]) == ({"0": 120}, {"held_out": 40})
    rollouts = lab.rollouts("rollouts")
    assert len(rollouts) == 120
    assert {len(r.steps) for r in rollouts} == {2}
    assert all('"name": "look_up"' in r.message_texts[0] for r in rollouts)
    counts = lab.artifact("rollouts").manifest["counts"]
    assert (counts["planned"], counts["done"], counts["skipped"]) == (160, 120, {"no_task": 40})
    # The four sessions of an order are a group; those of another differ in its number, a rare word.
    rows = Artifact.open(lab.run_dir, "stored").report["rows"]
    all_of = rows["bare"] + rows["held_out"]
    assert rows["compared"] == {"in_groups": all_of, "alone": 0, "groups": all_of / 4}


def test_what_would_play_says_that_it_cannot(lab: Lab) -> None:
    offer, task = offer_of("support:SUPPORT"), next(iter(lab.tasks().values()))
    assert "look_up" in offer.style().render_prompt(task.prompt)
    env = offer.env()
    assert env.reset(task, 0).messages == task.prompt
    assert env.verdict().infra_error == "no_simulator"
    with pytest.raises(ConfigError, match="no scripted policies"):
        lab.plan("sft", "sft.data=null")
