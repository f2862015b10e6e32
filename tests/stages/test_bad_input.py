"""Bad input: the documented exit code, a message that says what, got, allowed and next, nothing lost."""

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
from critics.labels.checks import check_outcomes_differ
from critics.labels.splits import parts_of, split_clusters
from env.phone.offer import PHONE
from env.phone.world.files import write_files
from env.phone.world.tasks import generate_tasks
from env.play.demonstrations import Demonstration
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.models.policy import load_tokenizer
from pipeline.tables import labels_from, tasks_table
from pipeline.training.deepspeed_config import deepspeed_config
from pipeline.types import Label
from stages.sft import check_base
from stages.wiring.critic_data import data_of, trunk_of
from stages.wiring.inputs import tasks_of_split
from stages.wiring.sft_data import encode


def refused(chain: Any, stage: str, *overrides: str, code: ExitCode) -> str:
    """Returns why a stage does not begin."""
    with pytest.raises((ArtifactError, ConfigError)) as raised:
        chain.plan(stage, *overrides)
    assert raised.value.code == code
    return str(raised.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollouts.chian.draws=2", "rollouts.chain"),
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
        ("engine.overlap_shards=true", "not a setting of engine.kind = transformers, but of vllm"),
        ("engine.kv_cache_gib=2", "a constant in the code now: 1 GiB a replica on a CPU"),
        ("sft.model.num_heads=3", "derived from the other settings now"),
        ("sft.warmup_updates=5", "a tenth of sft.num_updates, at most 30"),
        ("actor.credit.max_uniform_share=1", "half of an update's sets"),
        ("sft.num_updates=0", "name one in sft.base"),
        ("run.held_out=[val, train]", "allowed: val, test_unseen_company, "),
        ("run.held_out=[val, val]", "allowed: val, test_unseen_company, "),
        ("run.held_out=[]", "run.held_out"),
        ("run.held_out=[nosuch]", "allowed: val, test_unseen_company, "),
        ("tasks.level_shares={1: 0.5, 0: 0.5}", "phone level 0 does not exist; levels: 1, 2, 3, 4, 5"),
        ("tasks.level_shares={1: 0.5, 9: 0.5}", "phone level 9 does not exist; levels: 1, 2, 3, 4, 5"),
    ],
)
def test_a_wrong_value_is_refused(
    empty: Any, override: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert empty.start("tasks", override, "--dry-run") == 2
    assert expected in capsys.readouterr().err
    assert not empty.run_dir.exists()


@pytest.mark.parametrize(
    ("stage", "setting"), [("rollouts", "engine.kind=vllm"), ("sft", "training.backend=deepspeed")]
)
def test_a_backend_that_is_not_installed_is_refused_before_anything_is_planned(
    chain: Any, stage: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: None)
    said = refused(chain, stage, setting, code=ExitCode.CONFIG)
    assert "is not installed. Next: make setup-engines" in said
    if stage == "sft":
        base = f"sft.base={chain.run_dir / 'sft' / 'policy'}"
        said = refused(chain, stage, base, "training.lora_rank=4", code=ExitCode.CONFIG)
        assert "pip install -c constraints.txt -e '.[lora]'" in said


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
        ("[]", r"zero_optimization\.stage = null; allowed: 2 or 3"),
        (json.dumps(ZERO_2 | {"gradient_clipping": 1}), "gradient_clipping = 1; allowed: no such key"),
        ('{"zero_optimization": {"stage": "3"}}', 'stage = "3"; allowed: 2 or 3'),
        (json.dumps(ZERO_2 | {"fp16": {"enabled": True}}), r"fp16\.enabled = true; allowed: .* or false"),
        (
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
            r'offload_param\.device = "cpu"; allowed: .* or "none"',
        ),
    ],
)
def test_a_wrong_deepspeed_configuration_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "deepspeed.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"training\.deepspeed = .*{said}"):
        deepspeed_config(path, "float32")


@pytest.mark.parametrize(
    ("dtype", "file", "other"),
    [("float32", "zero2.json", "bfloat16"), ("bfloat16", "zero2_fp32.json", "float32")],
)
def test_deepspeeds_precision_is_the_settings(dtype: str, file: str, other: str) -> None:
    """The file is a runtime setting; what is computed in must not change with it."""
    path = Path(__file__).parents[2] / "configs" / "deepspeed" / file
    with pytest.raises(ConfigError, match=rf"training\.dtype = {dtype}.*training\.deepspeed = .*={other},"):
        deepspeed_config(path, dtype)
    assert deepspeed_config(path, other) == json.loads(path.read_text())


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


@pytest.mark.parametrize(("damage", "said"), [(cut, "bytes, listed with"), (flip, "SHA-256 differs")])
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
def test_a_task_that_nothing_can_grade_is_refused_before_anything_is_played(
    chain: Any, spoilt: dict[str, str]
) -> None:
    start = chain.begun("rollouts")
    good, other, *_ = tasks_of_split(start, "train")
    bad = dataclasses.replace(other, **spoilt)
    start.inputs = {"tasks": SimpleNamespace(table=lambda name: tasks_table([good, bad]))}
    with pytest.raises(ArtifactError, match=f"task {bad.task_id} .* cannot be graded.*Next: mend the tasks"):
        tasks_of_split(start, "train")


def test_an_unknown_demonstrator_is_refused_and_a_plan_draws_no_practice_tasks(
    chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = "sft.shares={oracle: 0, over_collector: 0, noisy_adaptive: 0, oracl: 1.0}"
    said = refused(chain, "sft", shares, code=ExitCode.CONFIG)
    assert "sft.shares names oracl" in said
    assert "allowed: adaptive, oracle" in said

    def draw(*_: Any, **__: Any) -> list[Any]:
        raise AssertionError("practice tasks were drawn")

    monkeypatch.setattr("env.phone.offer.practice_tasks", draw)
    assert chain.plan("sft", "sft.practice_tasks=8").estimate["demonstrations"] == 192


def test_training_that_diverges_ends_as_refused_quality_with_advice(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")
    wild = ("sft.learning_rate=1.0e+30", "sft.num_demonstrations=8", "sft.batch_rows=8", "sft.num_updates=20")
    assert lab.start("sft", *wild) == 4
    assert "lower learning_rate" in capsys.readouterr().err


def test_a_split_without_tasks_is_refused(chain: Any) -> None:
    with pytest.raises(ConfigError, match=r"'nosuch' has no tasks; .*test_unseen_company"):
        tasks_of_split(chain.begun("sft"), "nosuch")


def a_folder(name: str) -> Callable[[Path], None]:
    def replace_it(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return replace_it


def these_bytes(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: void((model / name).write_bytes(content))


def void(_: object) -> None:
    """Drops a value, so that a lambda returns None."""


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
def test_a_model_that_cannot_be_used_is_refused_as_base_and_as_trunk(
    chain: Any, tmp_path: Path, how: str
) -> None:
    damage, said = SPOILT_MODELS[how]
    model = tmp_path / "model"
    shutil.copytree(chain.run_dir / "sft" / "policy", model)
    start = chain.begun("critic", f"critic.trunk={model}")
    assert trunk_of(start) == model
    damage(model)
    for use in (lambda: check_base(model, ["<|im_end|>"]), lambda: trunk_of(start)):
        with pytest.raises(ArtifactError) as raised:
            use()
        assert said in str(raised.value)
        assert str(model) in str(raised.value)


def test_a_model_whose_tokenizer_does_not_fit_is_refused(chain: Any, tmp_path: Path) -> None:
    def changed(name: str, file: str, old: str, new: str) -> Path:
        shutil.copytree(chain.run_dir / "sft" / "policy", tmp_path / name)
        path = tmp_path / name / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        return tmp_path / name

    mute = changed("mute", "tokenizer.json", "<|im_end|>", "<|other|>")
    with pytest.raises(ArtifactError, match=r"has no token '<\|im_end\|>'"):
        check_base(mute, ["<|im_end|>"])
    rows = json.loads((chain.run_dir / "sft" / "policy" / "config.json").read_text())["vocab_size"]
    small = changed("small", "config.json", f'"vocab_size": {rows}', '"vocab_size": 300')
    with pytest.raises(ArtifactError, match="embeds 300: they are of different models"):
        check_base(small, [])
    with pytest.raises(ArtifactError, match="another tokenizer than the policy"):
        trunk_of(chain.begun("critic", f"critic.trunk={mute}"))


def test_after_a_wrong_critic_trunk_the_corrected_command_is_all_it_takes(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    assert lab.start("critic", f"critic.trunk={tmp_path / 'wrong'}") == 3
    assert "Name a folder" in capsys.readouterr().err
    assert lab.start("critic") == 0
    assert lab.artifact("critic").content_digest == chain.artifact("critic").content_digest


def test_guided_states_are_not_audited_of_a_critic_that_was_fitted_on_bare_ones(
    chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_bare_states(folder: Path, **options: bool) -> tuple[Contract, str]:
        contract, digest = read_contract(folder, **options)
        return dataclasses.replace(contract, contexts=("bare",)), digest

    monkeypatch.setattr("stages.critic_report.read_contract", of_bare_states)
    said = refused(chain, "critic_report", code=ExitCode.QUALITY)
    assert "critic_report.guided = true, but the critic was fitted on bare states" in said
    chain.plan("critic_report", "critic_report.guided=false")


@pytest.mark.parametrize(
    ("fit_alone", "said"),
    [
        (True, "0 validation tasks"),
        (False, "no graded rollout of the starting policy lies in the clusters that calibrate"),
    ],
)
def test_too_few_labels_for_a_critic_are_refused_before_any_work(
    chain: Any, fit_alone: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = chain.tasks()
    owner = {rollout.rollout_id: tasks[rollout.task_id].cluster for rollout in chain.rollouts("rollouts")}
    part_of = split_clusters(owner.values(), fit_share=0.5, validate_share=0.25, seed=0)

    def stays(label: Label) -> bool:
        return part_of[owner[label.rollout_id]] == "fit" or not fit_alone

    monkeypatch.setattr(
        "stages.wiring.critic_data.labels_from",
        lambda table: [label for label in labels_from(table) if stays(label)],
    )
    if not fit_alone:  # as if another policy had played whatever is not fitted
        monkeypatch.setattr("critics.fit.data.outcome_states", lambda rollouts: outcome_states([]))
    with pytest.raises(ArtifactError, match=rf"(?s){said}.*Next: "):
        data_of(chain.begun("critic"))


def test_rollouts_of_too_few_companies_or_of_no_success_are_refused_before_they_are_continued(
    chain: Any,
) -> None:
    tasks, rollouts = chain.tasks(), chain.rollouts("rollouts")
    few = sorted({tasks[r.task_id].cluster for r in rollouts})[:2]
    some = [r for r in rollouts if tasks[r.task_id].cluster in few]
    with pytest.raises(ArtifactError, match=r"are of 2 clusters.*Next: "):
        parts_of(some, tasks, fit_share=0.5, validate_share=0.25, seed=0)
    with pytest.raises(
        ArtifactError, match=r"there is nothing for a critic to tell apart.*Next: a better"
    ) as e:
        check_outcomes_differ([dataclasses.replace(r, reward=0.0) for r in rollouts])
    assert e.value.code == ExitCode.QUALITY


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


def test_tasks_are_made_from_files_and_a_wrong_row_is_named(
    empty: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate_tasks(num_companies=8, num_train=8, num_val=2, num_test=2, level_shares={3: 1.0}, seed=1)
    write_files(made, tmp_path)
    files = f"tasks.files={tmp_path}"
    assert empty.start("tasks", files) == 0
    assert "clusters" in capsys.readouterr().out
    assert empty.tasks() == {task.task_id: task for task in made}
    path = tmp_path / "companies.jsonl"
    path.write_text(path.read_text().replace('"level": 3', '"level": 7', 1))
    assert empty.start("tasks", "--fresh", files) == 2
    assert "row 1, field level: got 7" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["companies.jsonl", "tasks.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\0", "a folder"])
def test_a_file_of_tasks_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes | str | None
) -> None:
    write_files(
        generate_tasks(num_companies=8, num_train=8, num_val=2, num_test=2, level_shares={1: 1.0}, seed=1),
        tmp_path,
    )
    path = tmp_path / name
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(ConfigError, match=str(path)):
        PHONE.make_tasks(PHONE.settings(files=str(tmp_path)), 0)
    with pytest.raises(ConfigError, match=str(tmp_path / "missing")):
        PHONE.make_tasks(PHONE.settings(files=str(tmp_path / "missing")), 0)
