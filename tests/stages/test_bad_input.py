"""Bad input: the documented exit code, a message that says what, got, allowed and next, nothing lost."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from critics.fit.held_out import outcome_states
from critics.frozen.contract import Contract, read_contract
from env.phone.episode.environment import PhoneEnv
from env.phone.files import write_files
from env.phone.offer import PHONE
from env.phone.tasks import generate_tasks
from env.protocol import Observation
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.models.policy import load_tokenizer
from pipeline.tables import tasks_table
from pipeline.training.deepspeed_config import deepspeed_config
from pipeline.types import Task
from stages.settings import Config
from stages.sft import check_base
from stages.wiring.critic_data import data_of, trunk_of
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed
from stages.wiring.sft_data import encode

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
SPLITS = "allowed: val, test_unseen_company, "


def refused(chain: Any, stage: str, *overrides: str, code: ExitCode) -> str:
    """Returns why a stage does not begin."""
    with pytest.raises((ArtifactError, ConfigError)) as raised:
        chain.plan(stage, *overrides)
    assert raised.value.code == code
    return str(raised.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollouts.chian.draws=2", "did you mean rollouts.chain?"),
        ("rollouts.style=full", "did you mean prompt.style?"),
        ("sampling.temperature=1", "temperature is not a setting; allowed: sampling."),
        ("feedback={kind: server, url: 'http://me:secret@there/v1'}", "a key belongs in OPENAI_API_KEY"),
        ("actor.alpha=1", "did you mean actor.credit.alpha?"),
        ("tasks.num_train=none", "tasks.num_train"),
        ("tasks.level_shares={1: 0.5}", "add up to 1"),
        ("sft.shares={oracle: 0.5}", "add up to 1"),
        ("run.name=../elsewhere", "run.name"),
        ("engine.kind=vlm", 'engine.kind = "vlm"; allowed: transformers, vllm, scripted'),
        ("engine.overlap_shards=true", "not a setting of engine.kind = transformers, but of vllm"),
        ("training.num_ranks=2", "of training.backend = torch, but of deepspeed"),
        ("training.lora_rank=8", "needs a trained model to adapt"),
        ("sft.num_updates=0", "name one in sft.base"),
        ("prompt.style=nosuch", "is no style of the environment phone; allowed: compact, full"),
        ("critic.fit_share=0.95", "must leave clusters to calibrate on"),
        ("actor={credit: {mode: decoupled_clip}, task_order: near_half}", "near_half asks the frozen critic"),
        ("actor={credit: {mode: v_dapo, values: oracle}, task_order: near_half}", "Allowed here: random"),
        ("actor={guided: stripped, chain: {num_attempts: 1}}", "actor.chain.num_attempts = 1"),
        ("actor={guided: stripped, credit: {mode: imitation}}", "allowed: v_dapo, decoupled_clip, grpo,"),
        ("run.held_out=[val, train]", SPLITS),
        ("run.held_out=[val, val]", SPLITS),
        ("run.held_out=[]", "run.held_out"),
    ],
)
def test_a_wrong_value_is_refused(override, said):
    with pytest.raises(ConfigError) as raised:
        load_config(Config, DEMO, [override])
    assert said in str(raised.value)


def test_a_start_that_is_refused_ends_with_its_code_and_leaves_nothing(empty, capsys):
    assert empty.start("tasks", "rollouts.chian.draws=2") == 2
    assert "did you mean rollouts.chain?" in capsys.readouterr().err
    assert empty.start("labels") == 3
    assert "Run: make tasks" in capsys.readouterr().err
    assert not empty.run_dir.exists()


@pytest.mark.parametrize(
    ("overrides", "asked", "said"),
    [
        (["engine.kind=vllm"], {"engine": True}, "is not installed. Next: make setup-engines"),
        (["training.backend=deepspeed"], {"training": True}, "is not installed. Next: make setup-engines"),
        (["sft.base=a model", "training.lora_rank=4"], {"training": True}, "constraints.txt -e '.[lora]'"),
    ],
)
def test_a_backend_that_is_not_installed_is_refused(overrides, asked, said, monkeypatch):
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: None)
    config = load_config(Config, DEMO, overrides)
    check_installed(config)
    with pytest.raises(ConfigError) as raised:
        check_installed(config, **asked)
    assert said in str(raised.value)


@pytest.mark.slow
def test_demonstrations_hold_no_added_token_of_a_base(chain, tmp_path, monkeypatch, capsys):
    base = tmp_path / "base"
    shutil.copytree(chain.run_dir / "sft" / "policy", base)
    tokenizer = load_tokenizer(base)
    tokenizer.add_tokens([AddedToken(";", normalized=False)])  # so far one of the 256 bytes
    tokenizer.save_pretrained(base)
    played = []

    def keep(tokenizer, demonstration, context_weight):
        played.append(demonstration)
        return encode(tokenizer, demonstration, context_weight)

    monkeypatch.setattr("stages.bodies.sft.encode", keep)
    few = (f"sft.base={base}", "sft.num_demonstrations=16", "sft.num_updates=1")
    assert chain.copy(tmp_path / "lab", "tasks").start("sft", *few) == 0
    told = "".join(text for made in played for text, is_own in made.pieces if not is_own)
    assert "\u00b7 " in told  # between the lines of a directory
    assert ";" not in told
    file = base / "tokenizer.json"
    text = file.read_text().replace('"normalizer": null', '"normalizer": {"type": "NFKC"}')
    file.write_text(text.replace('"normalized": false', '"normalized": true'))
    assert chain.copy(tmp_path / "refused", "tasks").start("sft", *few) == 2
    assert "looks for its added token ';' in what NFKC makes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "not a readable JSON file"),
        ("[", "not a readable JSON file"),
        ("[]", r"zero_optimization\.stage = null; allowed: 2 or 3"),
        ('{"zero_optimization": {"stage": "3"}}', 'stage = "3"; allowed: 2 or 3'),
        ('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1}', "= 1; allowed: no such key"),
        ('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}', "= true; allowed: .* or false"),
        (
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
            r'offload_param\.device = "cpu"; allowed: .* or "none"',
        ),
        (
            '{"zero_optimization": {"stage": 2}, "zero_optimisation": {}}',
            "zero_optimisation is not supported",
        ),
        (
            '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true, "check_grad_overflow": false}}',
            "check_grad_overflow = false; allowed: no such key or true",
        ),
    ],
)
def test_a_wrong_deepspeed_configuration_is_refused(tmp_path, content, said):
    path = tmp_path / "deepspeed.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"training\.deepspeed = .*{said}"):
        deepspeed_config(path, "float32")


def test_deepspeed_may_not_add_gradients_up_in_bf16(tmp_path):
    path = tmp_path / "deepspeed.json"
    path.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    with pytest.raises(ConfigError, match='grad_accum_dtype = null; allowed: "fp32"'):
        deepspeed_config(path, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "file", "other"),
    [("float32", "zero2.json", "bfloat16"), ("bfloat16", "zero2_fp32.json", "float32")],
)
def test_deepspeeds_precision_is_the_settings(dtype, file, other):
    """The file is a runtime setting; what is computed in must not change with it."""
    path = DEMO.parent / "deepspeed" / file
    with pytest.raises(ConfigError, match=rf"training\.dtype = {dtype}.*training\.deepspeed = .*={other},"):
        deepspeed_config(path, dtype)
    assert deepspeed_config(path, other) == json.loads(path.read_text())


def replace_by(path: Path, content: bytes | str | None) -> None:
    """Puts a file of these bytes, an empty folder, or nothing where something was."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()


@pytest.mark.parametrize(
    ("stage", "file", "damage", "said"),
    [
        ("labels", "rollouts/rollouts.parquet", lambda data: data[:-100], "bytes, listed with"),
        ("labels", "rollouts/steps.parquet", lambda data: data[:-1] + b"?", "SHA-256 differs"),
        ("rollouts", "sft/policy/tokenizer.json", lambda data: None, ": missing"),
    ],
)
def test_a_broken_file_is_named_before_any_work_and_repair_makes_it_again(
    chain, tmp_path, stage, file, damage, said, capsys
):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", *(["rollouts"] if stage == "labels" else []))
    broken, maker = lab.run_dir / file, file.partition("/")[0]
    left = damage(broken.read_bytes())
    replace_by(broken, left)
    assert lab.start(stage) == 3
    error = capsys.readouterr().err
    assert str(broken) in error
    assert said in error
    assert f"make {maker} SET=--repair" in error
    assert not (lab.run_dir / stage / "plan.json").exists()
    if said == "SHA-256 differs":
        assert lab.start(maker, "--repair") == 0
        lab.artifact(maker).verify()
        assert lab.artifact(maker).content_digest == chain.artifact(maker).content_digest
        assert (lab.run_dir / "_old" / "rollouts-000" / "steps.parquet").read_bytes() == left


@pytest.mark.parametrize(
    "spoilt", [{"style": ""}, {"style": "model"}, {"ground_truth": ""}, {"ground_truth": "42"}]
)
def test_a_task_that_nothing_can_grade_is_refused_before_anything_is_played(chain, spoilt):
    start = chain.begun("rollouts")
    good, other, *_ = tasks_of_split(start, "train")
    bad = dataclasses.replace(other, **spoilt)
    start.inputs = {"tasks": SimpleNamespace(table=lambda name: tasks_table([good, bad]))}
    with pytest.raises(ArtifactError, match=f"task {bad.task_id} .* cannot be graded.*Next: mend the tasks"):
        tasks_of_split(start, "train")
    with pytest.raises(ConfigError, match=r"'nosuch' has no tasks; "):
        tasks_of_split(start, "nosuch")


def test_an_unknown_demonstrator_is_refused_and_a_plan_draws_no_practice_tasks(chain, monkeypatch):
    shares = "sft.shares={oracle: 0, over_collector: 0, noisy_adaptive: 0, oracl: 1.0}"
    said = refused(chain, "sft", shares, code=ExitCode.CONFIG)
    assert "sft.shares names oracl" in said
    assert "allowed: adaptive, oracle" in said

    def draw(*_: Any, **__: Any) -> list[Any]:
        raise AssertionError("practice tasks were drawn")

    monkeypatch.setattr("env.phone.offer.practice_tasks", draw)
    assert chain.plan("sft", "sft.practice_tasks=8").estimate["demonstrations"] == 192


def test_training_that_diverges_ends_as_refused_quality_with_advice(chain, tmp_path, capsys):
    lab = chain.copy(tmp_path / "lab", "tasks")
    wild = ("sft.learning_rate=1.0e+30", "sft.num_demonstrations=8", "sft.batch_rows=8", "sft.num_updates=20")
    assert lab.start("sft", *wild) == 4
    assert "lower learning_rate" in capsys.readouterr().err


MODEL, SHAPE, TOKENIZER, WEIGHTS = ".", "config.json", "tokenizer.json", "model.safetensors"
SPOILT_MODELS: list[tuple[str, bytes | str | None, str]] = [
    (MODEL, None, "."),
    (MODEL, b"x", "."),
    (MODEL, "a folder", "config.json is missing"),
    (SHAPE, "a folder", "config.json is missing"),
    (SHAPE, b"\xff{", "config.json"),
    (SHAPE, b"[]", "config.json"),
    (TOKENIZER, None, "tokenizer.json is missing"),
    (TOKENIZER, "a folder", "tokenizer.json is missing"),
    (TOKENIZER, b"\xff\0", "is not readable"),
    (TOKENIZER, b"{", "is not readable"),
    (WEIGHTS, None, "no *.safetensors file"),
    (WEIGHTS, "a folder", "are not readable"),
    (WEIGHTS, b"\1\2", "are not readable"),
]


@pytest.mark.parametrize(("file", "content", "said"), SPOILT_MODELS)
def test_a_model_that_cannot_be_used_is_refused_as_base_and_as_trunk(chain, tmp_path, file, content, said):
    model = tmp_path / "model"
    shutil.copytree(chain.run_dir / "sft" / "policy", model)
    start = chain.begun("critic", f"critic.trunk={model}")
    assert trunk_of(start) == model
    replace_by(model / file, content)
    for use in (lambda: check_base(model, ["<|im_end|>"]), lambda: trunk_of(start)):
        with pytest.raises(ArtifactError) as raised:
            use()
        assert said in str(raised.value)
        assert str(model) in str(raised.value)


def test_a_model_whose_tokenizer_does_not_fit_is_refused(chain, tmp_path):
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


def test_a_wrong_trunk_or_gpu_fixes_no_plan(chain, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipeline.hardware.free_gpu_memory", lambda: [3.5])
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    for setting, code, said in (
        (f"critic.trunk={tmp_path / 'wrong'}", 3, "Name a folder"),
        ("hardware={num_gpus: 1, gpu_memory_gib: 22}", 2, "GPU 0 has 3.5 GiB free"),
    ):
        assert lab.start("critic", setting) == code
        assert said in capsys.readouterr().err
        assert not (lab.run_dir / "critic" / "plan.json").exists()


def test_guided_states_are_not_audited_of_a_critic_that_was_fitted_on_bare_ones(chain, monkeypatch):
    def of_bare_states(folder: Path, **options: bool) -> tuple[Contract, str]:
        contract, digest = read_contract(folder, **options)
        return dataclasses.replace(contract, contexts=("bare",)), digest

    monkeypatch.setattr("stages.critic_report.read_contract", of_bare_states)
    said = refused(chain, "critic_report", code=ExitCode.QUALITY)
    assert "critic_report.guided = true, but the critic was fitted on bare states" in said
    chain.plan("critic_report", "critic_report.guided=false")


def test_an_audit_of_few_clusters_says_beforehand_that_its_gate_will_fail(chain, capsys):
    chain.plan("critic_report", "critic_report.tasks_per_split=1")
    assert "below 10 no bound can be given, so the gate will fail" in capsys.readouterr().err


def test_a_critic_that_nothing_can_calibrate_is_refused_before_any_work(chain, monkeypatch):
    """As if another policy had played whatever is not fitted."""
    monkeypatch.setattr("critics.fit.data.outcome_states", lambda rollouts: outcome_states([]))
    said = "no graded rollout of the starting policy lies in the clusters that calibrate"
    with pytest.raises(ArtifactError, match=rf"(?s){said}.*Next: "):
        data_of(chain.begun("critic"))


FEW: dict[str, Any] = {"num_companies": 8, "num_train": 8, "num_val": 2, "num_test": 2, "seed": 1}


def of_files(folder: Path) -> list[Task]:
    return PHONE.make_tasks(PHONE.settings(files=str(folder)), 0)


def test_tasks_are_made_from_files_and_a_wrong_row_is_named(empty, tmp_path, capsys):
    made = generate_tasks(**FEW, level_shares={3: 1.0})
    write_files(made, tmp_path)
    assert empty.start("tasks", f"tasks.files={tmp_path}") == 0
    assert "clusters" in capsys.readouterr().out
    assert empty.tasks() == {task.task_id: task for task in made}
    path = tmp_path / "companies.jsonl"
    path.write_text(path.read_text().replace('"level": 3', '"level": 7', 1))
    with pytest.raises(ConfigError, match="row 1, field level: got 7"):
        of_files(tmp_path)


def test_an_environment_that_makes_no_task_ends_as_a_wrong_setting_and_leaves_nothing(
    empty, monkeypatch, capsys
):
    mute = dataclasses.replace(PHONE, make_tasks=lambda settings, seed: [])
    monkeypatch.setattr("stages.tasks.offer_of", lambda name: mute)
    for _ in range(2):  # nor does it count as complete afterwards
        assert empty.start("tasks") == 2
        assert "no task of 0 is of train or val" in capsys.readouterr().err
    assert not (empty.run_dir / "tasks" / "plan.json").exists()


@pytest.mark.parametrize("made", [None, random.random])
def test_tasks_of_an_environment_that_opens_otherwise_each_time_are_not_stored(
    empty, monkeypatch, capsys, made
):
    class Drawing(PhoneEnv):
        def reset(self, task, seed):
            said = super().reset(task, seed).messages
            return made and Observation(({"role": "user", "content": f"{said} {made()}"},))

    offer = dataclasses.replace(PHONE, make_env=lambda settings, verbosity: Drawing())
    monkeypatch.setattr("stages.tasks.offer_of", lambda name: offer)
    assert empty.start("tasks") == 2
    assert ("draws at random" if made else "allowed: Observation") in capsys.readouterr().err
    assert not (empty.run_dir / "tasks" / "plan.json").exists()


@pytest.mark.parametrize("name", ["companies.jsonl", "tasks.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\0", "a folder"])
def test_a_file_of_tasks_that_cannot_be_read_is_named(tmp_path, name, content):
    write_files(generate_tasks(**FEW, level_shares={1: 1.0}), tmp_path)
    replace_by(tmp_path / name, content)
    with pytest.raises(ConfigError, match=str(tmp_path / name)):
        of_files(tmp_path)
