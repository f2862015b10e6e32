"""What no later stage could mend is refused, or said, before anything is paid for."""

import dataclasses
from pathlib import Path

import pytest

from critics.frozen.contract import read_contract
from pipeline.config import load_config
from pipeline.credit import make_credit
from pipeline.errors import ConfigError
from stages.settings import Config
from stages.settings.credit import credit_options
from stages.wiring.prompt_room import room_of

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
ONES = "actor.chain={num_attempts: 3, draws: 1, feedback_free_share: 0}"
CLIP = "{mode: v_dapo, alpha: 0, group_part: decoupled_clip}"


def config_of(*overrides: str) -> Config:
    return load_config(Config, DEMO, overrides)


@pytest.mark.parametrize(
    "credit",
    [
        "decoupled_clip",
        "grpo",
        "verifier_steps",
        "tree_rpo, branching: 1",
        "v_dapo, group_part: decoupled_clip",
    ],
)
def test_sets_of_one_are_refused_where_credit_compares_rollouts(credit):
    of_ones = (ONES, f"actor.credit={{mode: {credit}}}", "critic_report.guided=true")
    with pytest.raises(ConfigError, match=r"compares the rollouts of a set.*'draws': 1.*Next: "):
        config_of(*of_ones)
    config_of(*of_ones, "actor.chain.draws=2")
    config_of(*of_ones, "actor.chain.feedback_free_share=0.1")
    if "tree" not in credit:
        config_of(*of_ones, "actor.guided=stripped")  # these train alone where no set says anything


@pytest.mark.parametrize(
    "credit", ["v_dapo", "v_dapo, group_part: none", "imitation", "actor_critic", "tree_rpo"]
)
def test_sets_of_one_are_accepted_where_they_teach_something(credit):
    config_of(ONES, f"actor.credit={{mode: {credit}}}", "critic_report.guided=true")


@pytest.mark.parametrize(
    "credit", ["v_dapo, dual_clip: 1.28", "grpo, dual_clip: 1.1", "tree_rpo, clip_high: 9.5"]
)
def test_a_dual_clip_within_the_clip_is_refused_where_it_is_written(credit):
    with pytest.raises(ConfigError, match=r"dual_clip = .*allowed: above 1 \+ clip_high = .*Next: "):
        config_of(f"actor.credit={{mode: {credit}}}")


def test_a_base_keeps_what_it_knows_unless_a_rate_is_set():
    bare = Config.model_validate({}).sft
    assert (bare.learning_rate, bare.model_validate({"base": None}).learning_rate) == (2e-3, 2e-3)
    assert config_of().sft.learning_rate == 3e-3  # the demo's own
    assert config_of("sft.base=a model").sft.learning_rate == 3e-3
    based = config_of("sft={base: a model, shares: {oracle: 1.0}, data: {source: a.jsonl}}")
    assert based.sft.learning_rate == 1e-5
    assert type(based).model_validate(based.model_dump()) == based


def test_a_critic_is_needed_by_credit_that_reads_it_and_by_the_order_of_tasks():
    for credit, reads in ((CLIP, False), ("{mode: v_dapo, alpha: 0}", True), ("{mode: v_dapo}", True)):
        settings = config_of(f"actor.credit={credit}").actor
        assert make_credit(**credit_options(settings.credit)).needs_values is settings.needs_critic is reads
        assert (settings.reads_critic, settings.may_refresh) == (reads, reads)
    assert config_of(f"actor.credit={CLIP}", "actor.task_order=near_half").actor.reads_critic


def test_an_audit_that_leaves_out_what_the_actor_trains_on_is_refused_before_it():
    guided = ("critic_report.guided=false", "actor.chain={num_attempts: 2, draws: 4}")
    with pytest.raises(ConfigError, match=r"judges no state after feedback.*Next: critic_report.guided=true"):
        config_of(*guided)
    for other in (
        *("critic_report.guided=true", "actor.chain.num_attempts=1", "actor.guided=stripped"),
        *("actor.credit.on_weak_critic=allow", "actor.credit={mode: grpo}", f"actor.credit={CLIP}"),
    ):
        config_of(*guided, other)


def test_adapters_at_the_rate_of_whole_weights_are_warned_of_in_the_first_stage(chain, capsys, monkeypatch):
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: True)
    adapted = (f"sft.base={chain.run_dir / 'sft' / 'policy'}", "training.lora_rank=4")
    chain.plan("sft", *adapted, "actor.learning_rate=1e-6")
    assert "adapters hardly move a weight" in (said := capsys.readouterr().err)
    assert "actor.learning_rate=1e-05 or more" in said
    chain.plan("sft", *adapted, "actor.learning_rate=1e-5")
    assert capsys.readouterr().err == ""


def test_an_audit_of_a_critic_that_did_not_converge_says_beforehand_that_its_gate_will_fail(
    chain, capsys, monkeypatch
):
    for converged in (True, False):

        def changed(folder, converged=converged, **options):
            contract, digest = read_contract(folder, **options)
            return dataclasses.replace(contract, converged=converged), digest

        monkeypatch.setattr("stages.critic_report.read_contract", changed)
        assert chain.plan("critic_report").items  # the page can be had all the same
        assert ("ran out of epochs" in capsys.readouterr().err) is not converged


@pytest.mark.parametrize("stage", ["sft", "rollouts", "labels"])
def test_a_trunk_that_is_not_there_is_refused_before_a_critic_is_paid_for(chain, stage, tmp_path):
    trunk = f"critic.trunk={tmp_path / 'none'}"
    with pytest.raises(ConfigError, match=r"critic\.trunk = .*Next: hf download <model> --local-dir "):
        chain.plan(stage, trunk)
    chain.plan(stage, trunk, "actor.credit={mode: grpo}")  # which reads none
    with pytest.raises(ConfigError, match=r"critic\.trunk = "):
        chain.plan(stage, trunk, "actor.credit={mode: grpo}", "stored.objective={kind: clipped}")


@pytest.mark.parametrize("stage", ["rollouts", "critic_report", "actor", "evaluation"])
def test_an_opening_prompt_that_leaves_no_room_is_refused_before_anything_is_played(
    chain, stage, monkeypatch
):
    tasks = chain.tasks()
    longest = next(task for task in tasks.values() if task.split == "val")
    said = longest.prompt[-1] | {"content": "<>" * 1500}
    tasks[longest.task_id] = dataclasses.replace(longest, prompt=(said,))
    chain.plan(stage)
    monkeypatch.setattr("stages.wiring.prompt_room.tasks_by_id", lambda start: tasks)
    where = rf"task {longest.task_id} \(val {longest.index}\) has [\d,]+ tokens; allowed: 1,479"
    with pytest.raises(ConfigError, match=rf"{where}, as the policy has 1,480 positions\. Next: .*--fresh"):
        chain.plan(stage)


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
@pytest.mark.parametrize("positions", [1300, 1479, 1480, 1481, 5000])
def test_what_has_room_is_what_play_has_room_for(kind, positions):
    config = config_of(
        f"engine={{kind: {kind}}}", "sampling.max_response_tokens=256", "prompt={max_feedback_tokens: 200}"
    )
    most, why = room_of(config, positions)
    room = min(positions, config.row_tokens) if kind == "vllm" else positions
    for size in range(1000, positions + 2):
        response = min(256, positions - size)
        assert (size <= most) == (size < positions and size + response <= room)
    assert ("vLLM is started for rows of 1,480" in why) == (room < positions)


def test_labels_by_outcomes_alone_want_no_engine(chain, monkeypatch):
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: None)
    chain.plan("labels", "engine={kind: vllm}", "labels.num_continuations=0")
    with pytest.raises(ConfigError, match="the package vllm is not installed"):
        chain.plan("labels", "engine={kind: vllm}")


def test_settings_without_effect_are_named(chain, capsys):
    chain.plan("labels", "labels={target: td, kappa: 3, num_continuations: 0, max_states: 9}")
    said = capsys.readouterr().err
    assert "labels.kappa = 3.0 has no effect with labels.target = td" in said
    assert "labels.max_states = 9 has no effect" in said
    assert "granularity" not in said
    chain.plan("labels")
    chain.plan("rollouts")
    assert "no effect" not in capsys.readouterr().err
    chain.plan("rollouts", "prompt.thinking=true")
    assert "prompt.thinking = true has no effect with prompt.style = compact" in capsys.readouterr().err
