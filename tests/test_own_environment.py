"""The environment of docs/environments.md, whole, as somebody would use it: beside the project, not in it."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from critics.frozen.contract import read_contract
from env.catalog import offer_of
from pipeline.config import load_config
from pipeline.errors import ConfigError
from stages.command import main
from stages.settings import Config
from tests.stages.conftest import MAIN_CHAIN, Lab, make_lab

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text("utf-8")
SETTINGS = """
run: {name: r}
engine: {max_live: 64}
training: {threads: 1}
tasks: {environment: "sums:SUMS", num_terms: 3, num_train: 40, num_held_out: 12}
sampling: {max_response_tokens: 40}
prompt: {max_feedback_tokens: 40}
sft: {num_demonstrations: 2000, num_updates: 240, batch_rows: 32, learning_rate: 1.0e-2,
      model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}}
rollouts: {chain: {num_attempts: 2, draws: 2, feedback_free_share: 0.8, feedback_free_draws: 2}}
labels: {max_states: 40, num_continuations: 2}
critic: {fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 1.0e-3,
         learning_rate: 5.0e-4, max_epochs: 2, batch_states: 64, evaluations_per_epoch: 2}
critic_report: {tasks_per_split: 12, draws: 2, num_continuations: 2, guided: false, fit_tasks: 0}
actor: {credit: {on_weak_critic: allow}, num_iterations: 1, tasks_per_update: 4, max_refills: 0,
        chain: {num_attempts: 1, draws: 4}, evaluate_tasks: 4, learning_rate: 1.0e-4}
evaluation: {draws: 1}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("own")
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) <= 80
    (folder / "sums.py").write_text(code)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        # Processes that play look there too, as a user's PYTHONPATH has them do.
        patched.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield make_lab(folder, SETTINGS)


@pytest.fixture(scope="module")
def complete(lab: Lab) -> Lab:
    """The environment's whole chain, run once."""
    for stage in (*MAIN_CHAIN, "summary"):
        assert lab.start(stage) == 0, stage
    return lab


@pytest.mark.slow
def test_the_whole_chain_runs_on_an_environment_beside_the_project(complete: Lab) -> None:
    rollouts = complete.rollouts("rollouts")
    solved = [rollout for rollout in rollouts if rollout.reward == 1]
    assert solved
    for rollout in solved:
        assert [step.verifier_status for step in rollout.steps] == ["ok", "ok"]  # a line is a step
    assert any("is wrong" in rollout.feedback_in_context for rollout in rollouts)


@pytest.mark.slow
def test_states_between_lines_are_labelled_scored_and_audited(complete: Lab) -> None:
    labels = complete.artifact("labels").table("labels").to_pylist()
    assert any(row["step_index"] > 0 and row["num_continuations"] > 0 for row in labels)
    for stage in ("critic_report", "actor"):
        steps = complete.artifact(stage).table("values").column("step_index").to_pylist()
        assert {0, 1} <= set(steps), stage
    audited = [r for r in complete.rollouts("critic_report") if r.kind == "whole" and r.draw == 0]
    scored = Counter(complete.artifact("critic_report").table("values").column("rollout_id").to_pylist())
    assert all(scored[r.rollout_id] == len(r.steps) for r in audited)
    assert sum(scored[r.rollout_id] for r in audited) > len(audited)
    critic = complete.run_dir / "critic" / "critic"
    assert read_contract(critic)[0].splitter == "lines"


@pytest.mark.slow
def test_the_first_wrong_step_of_labelled_solutions_is_held_against_verifier_and_critic(
    complete: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    from sums import lines_of  # the module of the page

    rows = []
    for number, task in enumerate(complete.tasks().values()):
        steps, label = lines_of(task.ground_truth), number % 3 - 1
        if label >= 0:
            steps[label] = steps[label][:-1] + str((int(steps[label][-1]) + 1) % 4)
        rows.append({"problem": task.prompt[0]["content"], "steps": steps, "label": label})
    rows.append({"problem": "9 + 9", "steps": ["x"], "label": 0})
    path = complete.folder / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["errors", complete.config, str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == {"no_task": 1}
    assert found["verifier"]["f1"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["verifier"]["num_wrong"] == found["critic"]["num_wrong"] > 20
    assert 0 <= found["critic"]["f1"]["value"] <= 1
    of_training = sum(task.split == "train" for task in complete.tasks().values())
    assert found["critic"]["num_of_training_tasks"] == of_training > 0
    assert main(["errors", complete.config, str(path)]) == 0
    assert "verifier: f1 1.000 [1.000, 1.000], exact 1.000" in capsys.readouterr().out


def test_its_settings_are_its_own(lab: Lab) -> None:
    config = load_config(Config, Path(lab.config), ["tasks.num_terms=6"])
    assert config.tasks.model_dump()["num_terms"] == 6
    with pytest.raises(ConfigError, match=r"tasks\.num_term .*tasks\.num_terms"):
        load_config(Config, Path(lab.config), ["tasks.num_term=5"])
    with pytest.raises(ConfigError, match=r"tasks\.level_shares is not a setting"):
        load_config(Config, Path(lab.config), ["tasks.level_shares={1: 1.0}"])
    with pytest.raises(ConfigError, match=r"critic\.privileged = words, .*environment sums .*here: none"):
        load_config(Config, Path(lab.config), ["critic.privileged=words"])
    with pytest.raises(ConfigError, match=r"prompt\.style = compact .*allowed: plain"):
        load_config(Config, Path(lab.config), ["prompt.style=compact"])


def test_an_offer_that_cannot_be_used_is_named_where_it_is_asked_for(lab: Lab) -> None:
    Path(lab.folder / "lined.py").write_text(
        "import dataclasses, sums\nLINED = dataclasses.replace(sums.SUMS, splitter='line')"
    )
    with pytest.raises(ConfigError, match=r"^tasks\.environment = 'lined:LINED': the environment sums"):
        offer_of("lined:LINED")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fone", "not built in; allowed: phone, .*or module:name"),
        ("nowhere:SUMS", "cannot be loaded: ModuleNotFoundError"),
        ("sums:NOTHING", "cannot be loaded: AttributeError"),
        ("sums:Sums", "is a type; allowed: an env.offer.EnvironmentOffer"),
    ],
)
def test_an_environment_that_is_not_there_is_refused(lab: Lab, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        offer_of(name)
