"""Bad input: the documented exit code, a message that says what, got, allowed and next, nothing lost."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from critics.fit.held_out import outcome_states
from critics.frozen.contract import Contract, read_contract
from critics.labels.splits import split_clusters
from env.catalog import offer_of
from env.offer import EnvironmentOffer
from env.phone.offer import PHONE
from env.play.demonstrations import Demonstration
from pipeline.artifacts.artifact import Artifact
from pipeline.cli.runs import MAIN_CHAIN
from pipeline.errors import ArtifactError, ConfigError
from pipeline.models.policy import load_tokenizer
from pipeline.tables import labels_from, rollouts_from
from pipeline.training.deepspeed_config import deepspeed_config, read_deepspeed_config
from pipeline.types import Label
from stages.wiring.inputs import tasks_of_split
from stages.wiring.sft_data import encode


def test_an_unknown_key_is_refused_with_the_nearest_one(
    empty: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty.start("tasks", "rollouts.chian.draws=2") == 2
    error = capsys.readouterr().err
    assert "rollouts.chian" in error
    assert "rollouts.chain" in error
    assert not empty.run_dir.exists()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("tasks.num_train=none", "tasks.num_train"),
        ("engine.kind=vlm", 'engine.kind = "vlm"; allowed: transformers, vllm, scripted'),
        ("tasks.level_shares={1: 0.5}", "add up to 1"),
        ("run.name=../elsewhere", "run.name"),
        ("training.num_ranks=2", "not a setting of training.backend = torch, but of deepspeed"),
        ("rollouts.sampling.top_p=0.9", "sampled from its whole distribution at temperature 1"),
        ("actor.sampling.max_response_tokens=9", "is sampling.max_response_tokens, for all stages"),
        ("rollouts.style=full", "rollouts.style is prompt.style"),
        ("training.lora_rank=8", "needs a trained model to adapt"),
        ("training={lora_rank: 8, backend: deepspeed}", "of training.backend = deepspeed, but of torch"),
        ("engine.tensor_parallel=2", "not a setting of engine.kind = transformers, but of vllm"),
        ("sft.model.num_heads=3", "derived from the other settings now"),
    ],
)
def test_a_wrong_value_is_refused(
    empty: Any, override: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty.start("tasks", override) == 2
    assert expected in capsys.readouterr().err
    assert not empty.run_dir.exists()


@pytest.mark.parametrize(
    ("stage", "setting"), [("rollouts", "engine.kind=vllm"), ("sft", "training.backend=deepspeed")]
)
def test_a_backend_that_is_not_installed_is_refused_before_anything_is_planned(
    chain: Any,
    tmp_path: Path,
    stage: str,
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: None)
    lab = chain.copy(tmp_path / "lab", "tasks", *(["sft"] if stage == "rollouts" else []))
    assert lab.start(stage, setting) == 2
    assert "is not installed. Next: make setup-engines" in capsys.readouterr().err
    if stage == "sft":
        base = f"sft.base={chain.run_dir / 'sft' / 'policy'}"
        assert lab.start(stage, base, "training.lora_rank=4") == 2
        assert "pip install -c constraints.txt -e '.[lora]'" in capsys.readouterr().err
    assert not (lab.run_dir / stage / "plan.json").exists()


def test_a_base_that_cannot_end_a_message_or_embed_its_tokens_is_refused(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")
    mute = tmp_path / "mute"
    shutil.copytree(chain.run_dir / "sft" / "policy", mute)
    text = (mute / "tokenizer.json").read_text().replace("<|im_end|>", "<|other|>")
    (mute / "tokenizer.json").write_text(text)
    assert lab.start("sft", f"sft.base={mute}") == 3
    assert "has no token '<|im_end|>'" in capsys.readouterr().err
    small = tmp_path / "small"
    shutil.copytree(chain.run_dir / "sft" / "policy", small)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    assert lab.start("sft", f"sft.base={small}") == 3
    assert "embeds 300: they are of different models" in capsys.readouterr().err
    assert lab.start("sft", "sft.num_updates=0") == 2
    assert "name one in sft.base" in capsys.readouterr().err
    assert not (lab.run_dir / "sft" / "plan.json").exists()


def test_demonstrations_hold_no_added_token_of_a_base(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(chain.run_dir / "sft" / "policy", base)
    tokenizer = load_tokenizer(base)
    tokenizer.add_tokens([AddedToken(";", normalized=False)])  # so far one of the 256 bytes
    tokenizer.save_pretrained(base)
    played = []

    def keep(tokenizer: Any, demonstration: Demonstration, context_weight: float) -> Any:
        played.append(demonstration)
        return encode(tokenizer, demonstration, context_weight)

    monkeypatch.setattr("stages.bodies.sft.encode", keep)
    lab = chain.copy(tmp_path / "lab", "tasks")
    few = ("sft.num_demonstrations=16", "sft.num_updates=1")
    assert lab.start("sft", f"sft.base={base}", *few) == 0
    told = "".join(text for made in played for text, is_own in made.pieces if not is_own)
    assert "\u00b7 " in told  # between the lines of a directory
    assert ";" not in told
    text = (
        (base / "tokenizer.json").read_text().replace('"normalizer": null', '"normalizer": {"type": "NFKC"}')
    )
    (base / "tokenizer.json").write_text(text.replace('"normalized": false', '"normalized": true'))
    lab = chain.copy(tmp_path / "refused", "tasks")
    assert lab.start("sft", f"sft.base={base}", *few) == 2
    assert "looks for its added token ';' in what NFKC makes" in capsys.readouterr().err


ZERO_2 = {"zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "not a readable JSON file"),
        ("[", "not a readable JSON file"),
        ("[]", "a JSON object is needed"),
        (json.dumps(ZERO_2 | {"gradient_clipping": 1}), "sets gradient_clipping"),
        ("{}", r"zero_optimization\.stage = 0; allowed: 1, 2, 3"),
        ('{"zero_optimization": {"stage": 0}}', r"zero_optimization\.stage = 0; allowed: 1, 2, 3"),
        ('{"zero_optimization": {"stage": "3"}}', 'stage = "3"; allowed: 1, 2, 3'),
        (
            '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}',
            r"stage = 1 with bf16.*Next: stage 2",
        ),
        (json.dumps(ZERO_2 | {"fp16": {"enabled": True}}), r"fp16\.enabled = true; allowed: false"),
        (
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
            r'offload_param\.device = "cpu"; allowed: "none"',
        ),
    ],
)
def test_a_wrong_deepspeed_configuration_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "deepspeed.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"training\.deepspeed = .*{said}"):
        read_deepspeed_config(path)


@pytest.mark.parametrize(
    ("dtype", "file", "other"),
    [("float32", "zero2.json", "bfloat16"), ("bfloat16", "zero2_fp32.json", "float32")],
)
def test_deepspeeds_precision_is_the_settings(dtype: str, file: str, other: str) -> None:
    """The file is a runtime setting; what is computed in must not change with it."""
    path = Path(__file__).parents[2] / "configs" / "deepspeed" / file
    with pytest.raises(ConfigError, match=rf"training\.dtype = {dtype}.*training\.deepspeed = .*={other},"):
        deepspeed_config(path, dtype)
    assert deepspeed_config(path, other) == read_deepspeed_config(path)


@pytest.mark.parametrize("level", [0, 9])
def test_a_level_that_does_not_exist_is_refused(
    empty: Any, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty.start("tasks", f"tasks.level_shares={{1: 0.5, {level}: 0.5}}") == 2
    assert f"phone level {level} does not exist; levels: 1, 2, 3, 4, 5" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "lacks"), [("sft", "tasks"), ("rollouts", "tasks"), ("labels", "tasks")])
def test_a_missing_input_stage_is_named(
    empty: Any, stage: str, lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty.start(stage) == 3
    assert f"Run: make {lacks}" in capsys.readouterr().err
    assert not (empty.run_dir / stage).exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("damage", "said"), [(cut, "bytes, the manifest says"), (flip, "SHA-256 differs")])
def test_a_broken_table_is_named_before_any_work(
    chain: Any,
    tmp_path: Path,
    damage: Callable[[Path], None],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    broken = lab.run_dir / "rollouts" / "rollouts.parquet"
    damage(broken)
    kept = broken.read_bytes()
    assert lab.start("labels") == 3
    error = capsys.readouterr().err
    assert str(broken) in error
    assert said in error
    assert "make rollouts SET=--repair" in error
    assert broken.read_bytes() == kept
    assert not (lab.run_dir / "labels" / "plan.json").exists()


def test_repair_makes_a_broken_table_again_and_keeps_the_old_one(chain: Any, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    flip(lab.run_dir / "rollouts" / "steps.parquet")
    assert lab.start("rollouts", "--repair") == 0
    lab.artifact("rollouts").verify()
    assert lab.artifact("rollouts").content_digest == chain.artifact("rollouts").content_digest
    assert (lab.run_dir / "_old" / "rollouts-000" / "steps.parquet").exists()


SPOILT = {
    "no style": {"style": ""},
    "a grader of another kind": {"style": "model"},
    "no ground truth": {"ground_truth": ""},
    "a foreign ground truth": {"ground_truth": "42"},
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
def test_a_task_that_nothing_can_grade_is_found(chain: Any, spoilt: dict[str, str]) -> None:
    good, *others = chain.tasks().values()
    PHONE.check_gradable([good, *others])
    bad = dataclasses.replace(others[0], **spoilt)
    with pytest.raises(ArtifactError, match=f"task {bad.task_id} .* cannot be graded"):
        PHONE.check_gradable([good, bad])


def test_a_task_without_a_grader_is_refused_before_anything_is_played(
    empty: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(settings: Any, seed: int) -> list[Any]:
        first, *rest = PHONE.make_tasks(settings, seed)
        return [dataclasses.replace(first, style=""), *rest]

    with monkeypatch.context() as patched:
        patched.setattr("env.phone.offer.PHONE", dataclasses.replace(PHONE, make_tasks=spoil))
        offer_of.cache_clear()
        assert empty.start("tasks") == 0
    offer_of.cache_clear()
    quick = ("sft.num_updates=1", "sft.num_demonstrations=4", "sft.batch_rows=4")
    assert empty.start("sft", *quick) == 3
    with monkeypatch.context() as patched:
        patched.setattr(EnvironmentOffer, "check_gradable", lambda self, tasks: None)
        assert empty.start("sft", *quick) == 0
    capsys.readouterr()
    assert empty.start("rollouts") == 3
    error = capsys.readouterr().err
    assert "cannot be graded" in error
    assert "phone has: rule" in error
    assert "Next: mend the tasks" in error
    assert not (empty.run_dir / "rollouts" / "plan.json").exists()


def test_an_unknown_demonstrator_is_refused_before_anything_is_planned(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")
    assert lab.start("sft", "sft.shares={oracle: 0, over_collector: 0, noisy_adaptive: 0, oracl: 1.0}") == 2
    error = capsys.readouterr().err
    assert "sft.shares names oracl" in error
    assert "allowed: adaptive, oracle" in error
    assert not (lab.run_dir / "sft" / "plan.json").exists()


def test_a_dry_run_of_sft_draws_no_practice_tasks(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")

    def draw(*_: Any, **__: Any) -> list[Any]:
        raise AssertionError("practice tasks were drawn")

    monkeypatch.setattr("env.phone.offer.practice_tasks", draw)
    assert lab.start("sft", "sft.practice_tasks=8", "--dry-run") == 0
    assert not (lab.run_dir / "sft").exists()


def test_training_that_diverges_ends_as_refused_quality_with_advice(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")
    wild = ("sft.learning_rate=1.0e+30", "sft.num_demonstrations=8", "sft.batch_rows=8", "sft.num_updates=20")
    assert lab.start("sft", *wild) == 4
    assert "lower learning_rate" in capsys.readouterr().err


def test_a_split_without_tasks_is_refused(chain: Any) -> None:
    start: Any = SimpleNamespace(inputs={"tasks": Artifact.open(chain.run_dir, "tasks")})
    with pytest.raises(ConfigError, match=r"'nosuch' has no tasks; .*test_unseen_company"):
        tasks_of_split(start, "nosuch")


@pytest.mark.parametrize("splits", ["[val, train]", "[val, val]", "[nosuch]"])
def test_splits_that_are_not_held_out_or_come_twice_are_refused_by_any_stage(
    chain: Any, splits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain.start("sft", f"run.held_out={splits}") == 2
    error = capsys.readouterr().err
    assert "run.held_out = " in error
    assert "allowed: val, test_unseen_company, " in error


def a_folder(name: str) -> Callable[[Path], None]:
    def replace_it(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return replace_it


def these_bytes(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: void((model / name).write_bytes(content))


def void(_: object) -> None:
    """Drops a value, so that a lambda returns None."""


def other_tokenizer(model: Path) -> None:
    content = json.loads((model / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (model / "tokenizer.json").write_text(json.dumps(content))


SPOILT_MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "gone": (shutil.rmtree, "."),
    "a file": (lambda model: void((shutil.rmtree(model), model.write_text("x"))), "."),
    "empty": (lambda model: void((shutil.rmtree(model), model.mkdir())), "config.json is missing"),
    "config is a folder": (a_folder("config.json"), "config.json is missing"),
    "config is binary": (these_bytes("config.json", b"\xff{"), "config.json"),
    "config is a list": (these_bytes("config.json", b"[]"), "config.json"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "tokenizer is a folder": (a_folder("tokenizer.json"), "tokenizer.json is missing"),
    "tokenizer is binary": (these_bytes("tokenizer.json", b"\xff\0"), "is not readable"),
    "tokenizer is cut off": (these_bytes("tokenizer.json", b"{"), "is not readable"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "no *.safetensors file"),
    "weights are a folder": (a_folder("model.safetensors"), "are not readable"),
    "weights are cut off": (these_bytes("model.safetensors", b"\1\2"), "are not readable"),
}


@pytest.mark.parametrize("how", SPOILT_MODELS)
@pytest.mark.parametrize(("stage", "setting"), [("sft", "sft.base"), ("critic", "critic.trunk")])
def test_a_model_that_cannot_be_used_is_refused_before_anything_is_planned(
    chain: Any, tmp_path: Path, stage: str, setting: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, said = SPOILT_MODELS[how]
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[: MAIN_CHAIN.index(stage)])
    model = tmp_path / "model"
    shutil.copytree(chain.run_dir / "sft" / "policy", model)
    damage(model)
    assert lab.start(stage, f"{setting}={model}") == 3
    error = capsys.readouterr().err
    assert said in error
    assert str(model) in error
    assert not (lab.run_dir / stage / "plan.json").exists()


def test_a_trunk_with_another_tokenizer_than_the_policy_is_refused(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    shutil.copytree(chain.run_dir / "sft" / "policy", tmp_path / "trunk")
    other_tokenizer(tmp_path / "trunk")
    assert lab.start("critic", f"critic.trunk={tmp_path / 'trunk'}") == 3
    assert "another tokenizer than the policy" in capsys.readouterr().err


def test_after_a_wrong_critic_trunk_the_corrected_command_is_all_it_takes(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    assert lab.start("critic", f"critic.trunk={tmp_path / 'wrong'}") == 3
    assert "Name a folder" in capsys.readouterr().err
    assert lab.start("critic") == 0
    assert lab.artifact("critic").content_digest == chain.artifact("critic").content_digest


def test_guided_states_are_not_audited_of_a_critic_that_was_fitted_on_bare_ones(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels", "critic")

    def of_bare_states(folder: Path, **options: bool) -> tuple[Contract, str]:
        contract, digest = read_contract(folder, **options)
        return dataclasses.replace(contract, contexts=("bare",)), digest

    monkeypatch.setattr("stages.critic_report.read_contract", of_bare_states)
    assert lab.start("critic_report") == 4
    assert "critic_report.guided = true, but the critic was fitted on bare states" in capsys.readouterr().err
    assert not (lab.run_dir / "critic_report" / "plan.json").exists()
    assert lab.start("critic_report", "critic_report.guided=false", "--dry-run") == 0


@pytest.mark.parametrize(
    ("fit_alone", "said"),
    [
        (True, "0 validation tasks"),
        (False, "no graded rollout of the starting policy lies in the clusters that calibrate"),
    ],
)
def test_too_few_labels_for_a_critic_are_refused_before_any_work(
    chain: Any,
    tmp_path: Path,
    fit_alone: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    cluster = {task.task_id: task.cluster for task in lab.tasks().values()}
    owner = {rollout.rollout_id: cluster[rollout.task_id] for rollout in lab.rollouts("rollouts")}
    part_of = split_clusters(owner.values(), fit_share=0.5, validate_share=0.25, seed=0)

    def stays(label: Label) -> bool:
        return part_of[owner[label.rollout_id]] == "fit" or not fit_alone

    monkeypatch.setattr(
        "stages.wiring.critic_data.labels_from",
        lambda table: [label for label in labels_from(table) if stays(label)],
    )
    if not fit_alone:  # as if another policy had played whatever is not fitted
        monkeypatch.setattr("critics.fit.data.outcome_states", lambda rollouts: outcome_states([]))
    assert lab.start("critic") == 3
    error = capsys.readouterr().err
    assert said in error
    assert "Next: " in error
    assert not (lab.run_dir / "critic" / "plan.json").exists()


def test_rollouts_of_too_few_companies_are_refused_before_they_are_continued(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    cluster = {task.task_id: task.cluster for task in lab.tasks().values()}
    few = sorted({cluster[r.task_id] for r in lab.rollouts("rollouts")})[:2]
    monkeypatch.setattr(
        "stages.labels.rollouts_from",
        lambda *tables: [r for r in rollouts_from(*tables) if cluster[r.task_id] in few],
    )
    assert lab.start("labels") == 3
    error = capsys.readouterr().err
    assert "are of 2 clusters" in error
    assert "Next: " in error
    assert not (lab.run_dir / "labels" / "plan.json").exists()


def test_a_trunk_with_the_policys_tokenizer_serves(chain: Any, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    shutil.copytree(chain.run_dir / "sft" / "policy", tmp_path / "trunk")
    assert lab.start("critic", f"critic.trunk={tmp_path / 'trunk'}") == 0


def test_a_policy_whose_tokenizer_is_gone_is_refused(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    gone = lab.run_dir / "sft" / "policy" / "tokenizer.json"
    gone.unlink()
    assert lab.start("rollouts") == 3
    error = capsys.readouterr().err
    assert f"{gone}: missing" in error
    assert "make sft SET=--repair" in error
    assert not (lab.run_dir / "rollouts").exists()


def test_a_policy_that_never_succeeds_is_told_apart_from_a_broken_artifact(
    empty: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = ("sft.num_updates=1", "sft.num_demonstrations=4", "sft.batch_rows=4")
    few = ("rollouts.num_tasks=4", "labels.max_states=4", "sampling.max_response_tokens=32")
    for stage, settings in {"tasks": (), "sft": weak, "rollouts": few}.items():
        assert empty.start(stage, *settings) == 0
    assert empty.start("labels", *few) == 4
    error = capsys.readouterr().err
    assert "rollouts succeeded: there is nothing for a critic to tell apart" in error
    assert "Next: a better starting policy" in error
    assert not (empty.run_dir / "labels" / "plan.json").exists(), "nothing was planned, so nothing paid for"


def test_tasks_are_made_from_files_and_a_wrong_row_is_named(
    empty: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from env.phone.world.files import write_files
    from env.phone.world.tasks import generate_tasks

    made = generate_tasks(num_companies=8, num_train=8, num_val=2, num_test=2, level_shares={3: 1.0}, seed=1)
    write_files(made, tmp_path)
    files = f"tasks.files={tmp_path}"
    assert empty.start("tasks", files) == 0
    assert "optimal_turns" in capsys.readouterr().out
    assert empty.tasks() == {task.task_id: task for task in made}
    path = tmp_path / "companies.jsonl"
    path.write_text(path.read_text().replace('"level": 3', '"level": 7', 1))
    assert empty.start("tasks", "--fresh", files) == 2
    assert "row 1, field level: got 7" in capsys.readouterr().err
    path.write_text(path.read_text().replace('"level": 7', '"level": 3', 1))
    for name in ("companies.jsonl", "tasks.jsonl"):
        path, kept = tmp_path / name, (tmp_path / name).read_bytes()
        for content in (None, b"", b"\xff\xfe\0"):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            assert empty.start("tasks", "--fresh", files) == 2
            assert str(path) in capsys.readouterr().err
        path.unlink()
        path.mkdir()
        assert empty.start("tasks", "--fresh", files) == 2
        assert str(path) in capsys.readouterr().err
        path.rmdir()
        path.write_bytes(kept)
    for place in ("missing", "tasks.jsonl"):  # a file is no folder
        assert empty.start("tasks", "--fresh", f"tasks.files={tmp_path / place}") == 2
        assert str(tmp_path / place) in capsys.readouterr().err
