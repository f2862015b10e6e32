from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import critics
from critics.fit.rows import num_states
from critics.frozen.contract import read_contract
from critics.labels.splits import parts_of
from pipeline.training import TrainingRow
from pipeline.training.torch import TorchTrainer
from stages.settings import Config
from stages.wiring.build import make_trainer
from stages.wiring.critic_data import data_of
from tests.pipeline.training.helpers import critic

OUTCOMES_ALONE = "labels.num_continuations=0"


@pytest.mark.parametrize(("target", "lam"), [("td", 0.0), ("td_lambda", 0.95)])
def test_targets_are_bootstrapped_with_the_decay_of_their_rule(
    chain: Any, tmp_path: Any, target: str, lam: float
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    options = (f"labels.target={target}", OUTCOMES_ALONE)
    assert lab.start("labels", *options) == 0
    data = data_of(lab.begun("critic", *options))
    assert {label.label_source for label in data.labels} == {target}
    told = lab.artifact("labels").report
    assert (told["num_by_source"], told["num_labels"]) == ({target: len(data.labels)}, len(data.labels))
    assert data.bootstrap is not None
    assert data.bootstrap.lam == lam
    for row, positions in zip(data.fit, data.bootstrap.positions, strict=True):
        assert set(np.flatnonzero(row.columns["weight"])) <= set(positions.tolist())


def test_continuations_reach_the_rows_of_the_companies_that_fit(chain: Any) -> None:
    plain, more = (
        data_of(chain.begun("critic", f"critic.fit_continuations={on}")) for on in ("false", "true")
    )
    assert plain.bootstrap is None
    part_of = parts_of(chain.rollouts("rollouts"), chain.tasks(), fit_share=0.5, validate_share=0.25, seed=0)
    longer = [
        r
        for r in chain.rollouts("labels")
        if part_of[r.parent_rollout_ids[0]] == "fit" and r.reward is not None and len(r.steps) > 1
    ]
    assert more.num_continued == len(longer) > 0 == plain.num_continued
    for before, after in zip(plain.fit, more.fit, strict=False):
        np.testing.assert_array_equal(before.columns["weight"], after.columns["weight"])
    added = more.fit[len(plain.fit) :]
    assert [num_states(row) for row in added] == [len(r.steps) - 1 for r in longer]
    for row, rollout in zip(added, longer, strict=True):
        assert row.token_ids.tolist() == [*rollout.prompt_token_ids, *rollout.response_token_ids]
        assert set(row.columns["targets"][row.columns["weight"] > 0]) == {rollout.reward}
    assert len(more.validation.row) == len(plain.validation.row)


def test_by_default_outcomes_label_every_state_and_continuations_add_theirs(
    chain: Any, tmp_path: Any
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    default = ("labels.target=outcome_dense", "labels.kappa=0", "critic.fit_continuations=true")
    assert lab.start("labels", *default, OUTCOMES_ALONE) == 0
    assert lab.artifact("labels").report["sampled_tokens"] == 0
    assert lab.plan("labels", *default, OUTCOMES_ALONE).items == []  # nothing to play, so no player starts
    alone = data_of(lab.begun("critic", *default, OUTCOMES_ALONE))
    assert alone.num_continued == 0
    fitted = {row.token_ids.tobytes(): row for row in alone.fit}
    whole = [r for r in lab.rollouts("rollouts") if r.reward is not None]
    rows = [(r, fitted.get(np.array(r.token_ids, np.int32).tobytes())) for r in whole]
    assert sum(row is not None for _, row in rows) == len(alone.fit) > 0
    for rollout, row in rows:
        if row is not None:
            assert num_states(row) == len(rollout.steps)
            assert set(row.columns["targets"][row.columns["weight"] > 0]) == {rollout.reward}
    assert lab.start("labels", *default, "--fresh") == 0
    assert data_of(lab.begun("critic", *default)).num_continued > 0


@pytest.mark.parametrize(
    "kind", [pytest.param("features", marks=pytest.mark.slow), pytest.param("words", marks=pytest.mark.soak)]
)
def test_a_critic_that_is_told_verdicts_is_told_them_in_every_stage(
    chain: Any, tmp_path: Any, capsys: Any, kind: str
) -> None:
    """Fit with continuations, audit with siblings and probes, stored continuations, fresh rollouts."""
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    options = (f"critic.privileged={kind}", "critic.fit_continuations=true", "labels.target=soft")
    options += ("stored.objective.kind=advantage_weighted", "stored.objective.on_weak_critic=allow")
    options += ("stored.batch_rows=16", "stored.max_epochs=1", "actor.num_iterations=1")
    for stage in ("critic", "critic_report", "stored", "actor"):
        assert lab.start(stage, *options) == 0, stage
    contract, _ = read_contract(lab.artifact("critic").path("critic"))
    assert contract.privileged == kind
    [calibrator] = contract.calibrators.values()
    report = lab.artifact("critic_report").report
    assert report["privileged"] == kind
    assert "skill_over_errors_so_far" in {c["name"] for c in report["gate"]["conditions"]}
    # The stored values are those of the critic that is told what the verifier said of these very rollouts.
    frozen = critics.load(lab.run_dir / "critic" / "critic")
    values = {
        (v["rollout_id"], v["step_index"]): v["value"]
        for v in lab.artifact("actor").table("values").to_pylist()
    }
    rollouts = [r for r in lab.rollouts("actor") if r.reward is not None and r.steps and r.kind == "whole"]
    for rollout, own in zip(rollouts, frozen.values(rollouts), strict=True):
        assert [values[rollout.rollout_id, s.step_index] for s in rollout.steps] == pytest.approx(
            own, abs=1e-5
        )
    silent = [
        replace(r, steps=tuple(replace(s, verifier_status="unknown") for s in r.steps)) for r in rollouts
    ]
    moved = [np.abs(a - b).max() for a, b in zip(frozen.values(rollouts), frozen.values(silent), strict=True)]
    assert max(moved) > 1e-3 or not calibrator.verdict_shifts
    others = tuple(option for option in options if "privileged" not in option)
    assert lab.start("actor", *others, "--fresh") == 3
    assert f"critic.privileged = 'none', but critic was made with '{kind}'" in capsys.readouterr().err
    # Where no critic is made again its settings are not the actor's, but its contract says what it is told.
    assert lab.start("actor", *others, "actor.credit.drift.react=never", "--fresh") == 3
    assert f"critic.privileged = {kind}, this run says none" in capsys.readouterr().err


def test_a_critic_that_only_scores_computes_in_fp32() -> None:
    """It is calibrated next, on the scores that the frozen critic will give."""
    rows = [TrainingRow(np.arange(20, dtype=np.int32))]
    [expected] = TorchTrainer(critic(), head="critic").forward(rows)
    config = Config.model_validate({"training": {"backend": "torch", "dtype": "bfloat16"}})
    [scores] = make_trainer(config, critic(), head="critic").forward(rows)
    np.testing.assert_array_equal(scores["scores"], expected["scores"])
    learning = make_trainer(config, critic(), head="critic", learning_rate=lambda done: 0.0)
    assert not np.array_equal(learning.forward(rows)[0]["scores"], expected["scores"])
