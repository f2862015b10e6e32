"""The smallest run in which a policy asks: demonstrations, reinforcement, what its calls came to."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from env.feedback_tool.calls import NAME
from env.feedback_tool.measures import MEASURES, standings
from env.feedback_tool.reward import MAX_CALLS, tool_reward
from pipeline.artifacts.metrics import read_metrics
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.steps import check_tiling
from stages import labels
from stages.settings import Config
from tests.stages.conftest import Lab, make_lab

CONFIG = Path("configs/math-tool.yaml")
SMALLEST: dict[str, dict[str, Any]] = {
    "run": {"name": "r", "rollouts_per_shard": 64},
    "engine": {"max_live": 64},
    "training": {"threads": 1, "micro_batch_tokens": 4096},
    "tasks": {"num_train": 16, "num_held_out": 8, "level_shares": {1: 1.0}},
    "sft": {
        "practice_tasks": 0,
        "model": {"hidden_size": 64, "num_layers": 2, "num_kv_heads": 1, "intermediate_size": 96},
        "num_demonstrations": 128,
        "num_updates": 150,
        "learning_rate": 1.0e-2,
        "shares": {"careful": 0.3, "careless+get_feedback": 0.7},
    },
    "actor": {"num_iterations": 2, "tasks_per_update": 4, "updates_per_iteration": 1, "evaluate_tasks": 4},
    "evaluation": {"draws": 1},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    settings = yaml.safe_load(CONFIG.read_text("utf-8"))
    for section, changes in SMALLEST.items():
        settings[section] |= changes
    made = make_lab(tmp_path_factory.mktemp("tool"), yaml.safe_dump(settings))
    for stage in ("tasks", "sft", "actor", "evaluation", "summary"):
        assert made.start(stage) == 0, stage
    return made


@pytest.mark.slow
def test_every_rollout_has_the_reward_of_its_calls_and_what_the_tool_said_is_masked(lab: Lab) -> None:
    rollouts = [*lab.rollouts("actor"), *lab.rollouts("evaluation")]
    asked = [r for r in rollouts if any(event.code == NAME for event in r.events)]
    assert len(asked) > 5
    for rollout in rollouts:
        stood = standings(rollout)
        assert len(stood) <= 1 + MAX_CALLS
        first = stood[0] if len(stood) > 1 else stood[-1]
        assert rollout.reward == pytest.approx(tool_reward(stood[-1], first, len(stood) - 1))
        check_tiling(rollout)
        said = [m["content"] for m in rollout.messages if m["role"] == "assistant"]
        assert "".join(rollout.message_texts) == "".join(said)
        assert len(said) <= 3
    assert any("update" in metrics for metrics in read_metrics(lab.run_dir / "actor" / "metrics.jsonl"))


@pytest.mark.slow
def test_the_evaluation_says_who_calls_and_what_comes_of_it(lab: Lab) -> None:
    report = lab.artifact("evaluation").report
    assert set(report["feedback_tool"]) == {"start", "actor"}
    for found in report["feedback_tool"].values():
        assert set(found) == {"rollouts", *MEASURES}
        assert found["rollouts"] == 16
    first_try = report["measures"]["first_try"]["all"]["start"]["value"]
    assert first_try == pytest.approx(report["feedback_tool"]["start"]["success"]["value"])
    assert json.loads((lab.run_dir / "summary.json").read_text())["feedback_tool"] == report["feedback_tool"]
    assert report["feedback_tool"]["start"]["called"]["value"] > 0.1  # it learnt the calls that were shown
    assert MEASURES["useful_calls"] in (lab.run_dir / "summary.html").read_text()


@pytest.mark.parametrize("setting", ["actor.credit={mode: v_dapo}", "actor.credit={mode: actor_critic}"])
def test_what_takes_rewards_for_chances_of_success_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="may lie below 0"):
        load_config(Config, CONFIG, [setting])


def test_labels_are_refused() -> None:
    start: Any = SimpleNamespace(config=load_config(Config, CONFIG, []))
    with pytest.raises(ConfigError, match="labels are chances of success"):
        labels.plan(start)
