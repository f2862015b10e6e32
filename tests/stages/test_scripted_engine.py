from pathlib import Path
from typing import Any

import pytest

from critics.frozen.contract import read_contract
from env.phone.offer import PHONE
from pipeline.tables import labels_from

AGENT = PHONE.scripted.digest
KIND = "engine.kind=scripted"


@pytest.fixture(scope="module")
def scripted(chain: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    lab = chain.copy(tmp_path_factory.mktemp("scripted_chain"), "tasks", "sft")
    for stage in ("rollouts", "labels", "critic", "critic_report"):
        assert lab.start(stage, KIND) == 0, stage
    return lab


def test_rollouts_labels_critic_and_report_name_the_agent_that_played(scripted: Any) -> None:
    for stage in ("rollouts", "labels", "critic_report"):
        assert {r.policy_digest for r in scripted.rollouts(stage)} == {AGENT}
    labels = labels_from(scripted.artifact("labels").table("labels"))
    assert {label.label_policy_digest for label in labels} == {AGENT}
    contract, _ = read_contract(scripted.run_dir / "critic" / "critic")
    assert contract.label_policy_digest == AGENT
    assert AGENT[:12] in (scripted.run_dir / "critic_report" / "report.json").read_text()


def test_the_scripted_agents_critic_gives_no_credit_to_another_policy(
    scripted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = scripted.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels", "critic", "critic_report")
    assert lab.start("actor") == 3
    error = capsys.readouterr().err
    assert f"made for label_policy_digest {AGENT}" in error
    assert not (lab.run_dir / "actor" / "shards").exists()


def test_outcomes_of_another_policy_label_nothing(scripted: Any, chain: Any, tmp_path: Path) -> None:
    """States may come from anybody's rollouts; what labels them is the label policy's own."""
    lab = scripted.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    assert lab.start("labels", "engine.kind=transformers") == 0
    labels = labels_from(lab.artifact("labels").table("labels"))
    policy = chain.artifact("evaluation").report["policies"]["start"]
    assert {label.label_policy_digest for label in labels} == {policy} != {AGENT}
    assert {label.outcome for label in labels} == {None}
    own = labels_from(chain.artifact("labels").table("labels"))
    assert {label.outcome for label in own} == {None, 0.0, 1.0}


def test_a_scripted_agents_successes_may_be_imitated_but_no_ratio_be_taken_to_them(
    scripted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = scripted.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels", "critic", "critic_report")
    few = ["stored.batch_rows=64", "stored.max_epochs=1"]
    clipped = ["stored.objective.kind=clipped", "stored.objective.on_weak_critic=allow"]
    assert lab.start("stored", *clipped, *few) == 3
    assert f"are of {AGENT[:12]}, not of sft's policy" in capsys.readouterr().err
    assert lab.start("stored", "stored.objective.kind=likelihood", *few, "--fresh") == 0
    assert lab.artifact("stored").report["updates_taken"] > 0
