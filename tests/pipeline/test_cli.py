from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import sealed, unsealed
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.columns import LABELS, ROLLOUTS, STEPS
from pipeline.errors import ConfigError
from pipeline.hub import load_rows
from pipeline.schema import TableSpec
from pipeline.settings import Section
from pipeline.tables import labels_table, rollouts_table, steps_table
from pipeline.types import Event, Label, Rollout, Step
from stages.command import main

EVIL = "\x1b[2J[bold]x[/bold] \u202egnp"


class Run(Section):
    name: str = "r"
    seed: int = 0
    data_dir: str = "data"
    tracking: str = "none"


class Config(Section):
    run: Run = Run()


def run(
    name: str,
    items: list[list[str]],
    make: Callable[[Start[Any]], None],
    argv: list[str],
    *,
    unit: str = "items",
    tables: tuple[TableSpec, ...] = (),
    inputs: tuple[str, ...] = (),
) -> int:
    """Runs one start of a stage of fixed items."""
    stage: Stage[Any, None] = Stage(
        name,
        1,
        lambda config: inputs,
        (),
        lambda start: Plan(items=items, tables=tables, unit=unit, work=None),
        lambda start, _: make(start),
    )
    return run_stage(stage, Config, argv)


ROLLOUT = Rollout(
    rollout_id="r0",
    kind="whole",
    task_id="t",
    group_id="g",
    iteration=0,
    attempt=1,
    draw=0,
    parent_rollout_ids=(),
    start_step_index=0,
    guided=True,
    feedback_in_context="you asked twice",
    messages=({"role": "user", "content": "hello"}, {"role": "assistant", "content": EVIL}),
    prompt_token_ids=(1,),
    response_token_ids=(2, 3),
    loss_mask=(1, 1),
    logprobs=(-1.0, -1.0),
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    max_response_tokens=8,
    seed=0,
    policy_digest="p",
    tokenizer_digest="t",
    template_digest="m",
    finish_reason="ended",
    reward=0.0,
    cost=0.25,
    env_status="ok",
    events=(Event("probe", 0, "sales", ("city",), "asked before"),),
    feedback_text="wrong department",
    feedback_source="rules/observed",
    steps=(Step(0, 0, 0, 2, EVIL),),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with complete `rollouts`, complete `critic` and half-done `labels`."""
    (tmp_path / "c.yaml").write_text(f"run: {{data_dir: {tmp_path}}}\n")
    argv = [str(tmp_path / "c.yaml")]

    def rollouts(start: Start[Any]) -> None:
        both = [ROLLOUT, replace(ROLLOUT, rollout_id="r1", reward=None, guided=False)]
        start.shards.commit(0, {"rollouts": rollouts_table(both), "steps": steps_table(both)}, done=2)
        start.finish()

    def critic(start: Start[Any]) -> None:
        start.output("critic/weights.txt").write_text("w")
        start.finish(report={"opening": ["The gate passed: [bold]yes[/bold]."]}, done=1)

    def labels(start: Start[Any]) -> None:
        label = Label("r0", 0, "bare", 1, 1, None, 0.5, 1.0, "continuation", "p")
        start.shards.commit(0, {"labels": labels_table([label])}, done=1)
        raise KeyboardInterrupt

    assert run("rollouts", [["r0", "r1"]], rollouts, argv, unit="rollouts", tables=(ROLLOUTS, STEPS)) == 0
    assert run("critic", [["u"]], critic, argv, inputs=("rollouts",)) == 0
    with pytest.raises(KeyboardInterrupt):
        run("labels", [["r0"], ["r1"]], labels, argv, unit="states", tables=(LABELS,), inputs=("rollouts",))
    return tmp_path / "r"


@pytest.fixture
def out(run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "200")
    capsys.readouterr()

    def command(*argv: object) -> tuple[int, str]:
        code = main([str(part) for part in argv])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return command


def test_status_tells_absent_resumable_and_complete_apart(out: Any, run_dir: Path) -> None:
    code, text = out("status", run_dir)
    assert code == 0
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "absent" in lines["tasks"]
    assert "complete" in lines["rollouts"]
    assert "2 rollouts" in lines["rollouts"]
    assert "resumable, 1 of 2 shards" in lines["labels"]
    assert "1 of 2 states" in lines["labels"]
    manifest = unsealed(run_dir / "rollouts" / "manifest.json")
    assert manifest["content_digest"][:8] in lines["rollouts"]


def test_status_finds_runs_under_data_and_says_what_to_do_without_any(
    out: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir)
    code, text = out("status")
    assert code == 3
    assert "make demo" in text
    (run_dir / "data").symlink_to(run_dir.parent)
    code, text = out("status")
    assert code == 0
    assert "data/r" in text


def test_status_says_damaged_and_stale(out: Any, run_dir: Path) -> None:
    path = run_dir / "rollouts" / "manifest.json"
    manifest = unsealed(path)
    path.write_bytes(sealed({**manifest, "content_digest": "f" * 32}))
    code, text = out("status", run_dir)
    assert code == 0
    assert "stale" in next(line for line in text.splitlines() if line.startswith("│ critic "))
    path.write_text("{}")
    code, text = out("status", run_dir)
    assert code == 3
    assert "damaged" in text


def test_status_says_that_a_file_of_a_complete_stage_is_damaged(out: Any, run_dir: Path) -> None:
    table = next((run_dir / "rollouts").rglob("*.parquet"))
    table.write_bytes(table.read_bytes() + b"x")
    code, text = out("status", run_dir)
    assert code == 3
    assert "damaged" in next(line for line in text.splitlines() if line.startswith("│ rollouts "))


def test_show_prints_rollouts_as_dialogues_with_hostile_text_made_harmless(out: Any, run_dir: Path) -> None:
    code, text = out("show", run_dir / "rollouts", "--rows", 1)
    assert code == 0
    assert "assistant: ␛[2J[bold]x[/bold] <U+202E>gnp" in text
    assert "\x1b" not in text
    for words in (
        "rollouts: 2 rows; tables here: rollouts, steps",
        "user: hello",
        "guided by feedback, attempt 1",
        "feedback in the prompt: you asked twice",
        "event in turn 0: probe sales city asked before",
        "reward 0, cost 0.25, ended, ok, 2 sampled tokens of 2",
        "feedback (rules/observed): wrong department",
    ):
        assert words in text
    assert text.count("user: hello") == 1
    assert "reward none" in out("show", run_dir / "rollouts")[1]


def test_show_prints_any_table_of_complete_and_half_done_stages(out: Any, run_dir: Path) -> None:
    code, text = out("show", run_dir / "rollouts", "--table", "steps")
    assert code == 0
    assert "text: ␛[2J[bold]x[/bold] <U+202E>gnp" in text
    code, text = out("show", f"{run_dir}/labels/")
    assert code == 0
    assert "labels: 1 rows" in text
    assert "target: 0.5" in text


def test_show_prints_the_opening_of_a_report(out: Any, run_dir: Path) -> None:
    code, text = out("show", run_dir / "critic")
    assert code == 0
    assert text == "The gate passed: [bold]yes[/bold].\n"


def judge(run_dir: Path, opening: str, *argv: str) -> int:
    """Makes a critic_report of the run's critic; returns the exit code."""

    def make(start: Start[Any]) -> None:
        start.finish(report={"opening": opening}, done=1)

    config = str(run_dir.parent / "c.yaml")
    return run("critic_report", [["u"]], make, [config, *argv], inputs=("critic",))


def test_show_prints_the_first_lines_of_the_report_on_a_critic(
    out: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(run_dir, "PASS. It explains [bold]41 %[/bold].") == 0
    out("status", run_dir)  # takes what the stage printed
    assert out("show", run_dir / "critic") == (0, "PASS. It explains [bold]41 %[/bold].\n")
    (run_dir.parent / "data").mkdir()
    run_dir.rename(run_dir.parent / "data" / "r")
    monkeypatch.chdir(run_dir.parent)
    assert out("show", "critic")[1].startswith("PASS.")
    (run_dir.parent / "data" / "s" / "critic").mkdir(parents=True)
    code, text = out("show", "critic")
    assert code == 2
    assert "data/r/critic, data/s/critic" in text


def test_a_report_on_another_critic_is_not_shown(out: Any, run_dir: Path) -> None:
    assert judge(run_dir, "PASS.") == 0
    path = run_dir / "critic_report" / "manifest.json"
    path.write_bytes(sealed(unsealed(path) | {"inputs": {"critic": "f" * 32}}))
    out("status", run_dir)
    assert out("show", run_dir / "critic")[1] == "The gate passed: [bold]yes[/bold].\n"


def test_status_and_verify_look_at_refreshes_too(out: Any, run_dir: Path) -> None:
    made = run_dir / "refresh" / "00003-abcdef"
    for stage in ("rollouts", "critic"):
        shutil.copytree(run_dir / stage, made / stage)
    (run_dir / "refresh" / "policies" / "00003-abcdef").mkdir(parents=True)
    code, text = out("status", run_dir)
    assert code == 0
    assert text.count("│ critic ") == 2
    assert "policies" not in text
    code, text = out("verify", run_dir)
    assert code == 0
    assert "refresh/00003-abcdef/critic: complete and sound" in text
    damaged = made / "critic" / "critic" / "weights.txt"
    damaged.write_text("x")
    code, text = out("verify", run_dir)
    assert code == 3
    assert "refresh/00003-abcdef/critic: WRONG" in text


def test_show_prints_the_report_of_a_stage_without_tables_or_opening(out: Any, run_dir: Path) -> None:
    def sft(start: Start[Any]) -> None:
        assert "sft has no tables; and no report.json yet" in out("show", run_dir / "sft")[1]
        start.finish(report={"updates": 7, "name": EVIL}, done=1)

    argv = [str(run_dir.parent / "c.yaml")]
    assert run("sft", [["u"]], sft, argv) == 0
    out("status", run_dir)  # takes what the stage printed
    code, text = out("show", run_dir / "sft")
    assert code == 0
    assert "sft has no tables; report.json says: {" in text
    assert '"updates": 7' in text
    assert "\x1b" not in text


def test_show_refuses_what_is_not_there(out: Any, run_dir: Path) -> None:
    assert out("show", run_dir / "actor") == (
        3,
        f"vdapo: {run_dir}/actor is missing or has not begun. Run: make actor, with its run's CONFIG and "
        "RUN\n",
    )
    code, text = out("show", run_dir)
    assert code == 3
    assert f"{run_dir} is a run. Give one of its stages: {run_dir}/critic, " in text
    assert "nonsense is no stage of a run. Stages of the main chain: tasks, " in out("show", "nonsense")[1]
    code, text = out("show", run_dir / "rollouts", "--table", "labels")
    assert code == 2
    assert "it has: rollouts, steps" in text
    assert out("show", run_dir / "rollouts", "--rows", 0)[0] == 2


def test_verify_passes_a_sound_run_and_finds_any_damage(out: Any, run_dir: Path) -> None:
    code, text = out("verify", run_dir)
    assert code == 0
    assert "rollouts: complete and sound" in text
    assert "labels: resumable and sound: 1 of 2 shards" in text
    files = [run_dir / "rollouts" / "rollouts.parquet", run_dir / "critic" / "critic" / "weights.txt"]
    files += list((run_dir / "labels" / "shards" / "labels").iterdir())
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        code, text = out("verify", run_dir)
        assert code == 3
        assert str(path) in text
        assert text.count("WRONG") == 1
        path.write_bytes(whole)
    assert out("verify", run_dir)[0] == 0
    assert out("verify", run_dir / "nothing")[0] == 3


def test_verify_finds_counts_that_do_not_balance_even_under_a_right_digest(out: Any, run_dir: Path) -> None:
    path = run_dir / "rollouts" / "manifest.json"
    manifest = unsealed(path)
    manifest["counts"]["done"] -= 1
    path.write_bytes(sealed(manifest))
    code, text = out("verify", run_dir)
    assert code == 3
    assert "counts do not balance" in text


def test_verify_finds_steps_that_do_not_tile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps({"run": {"data_dir": str(tmp_path)}}))

    def make(start: Start[Any]) -> None:
        wrong = replace(ROLLOUT, steps=(Step(0, 0, 0, 1, "x"),))
        start.shards.commit(0, {"rollouts": rollouts_table([wrong]), "steps": steps_table([wrong])}, done=1)
        start.finish()

    assert run("rollouts", [["r0"]], make, [str(tmp_path / "c.yaml")], tables=(ROLLOUTS, STEPS)) == 0
    assert main(["verify", str(tmp_path / "r")]) == 3
    assert "steps must tile" in capsys.readouterr().out


def test_an_exported_run_is_read_by_datasets_and_equals_its_tables(
    out: Any, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exported"
    code, text = out("export", run_dir, "--to", "datasets", folder)
    assert code == 0
    assert "rollouts: 2 rows" in text
    assert "labels" not in text  # not complete
    artifact = Artifact.open(run_dir, "rollouts")
    loaded = datasets.load_dataset(str(folder), "rollouts", cache_dir=str(tmp_path / "cache"))["train"]
    assert loaded.to_list() == artifact.table("rollouts").to_pylist()
    steps = datasets.load_dataset(str(folder), "rollouts_steps", cache_dir=str(tmp_path / "cache"))["train"]
    assert steps["text"][0] == EVIL
    assert load_rows(str(folder / "rollouts" / "rollouts.parquet")) == loaded.to_list()


def test_an_export_refuses_what_it_cannot_write_or_read(out: Any, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for run_folder, folder, code, words in (
        (run_dir, tmp_path / "full", 2, "is not empty"),
        (run_dir, tmp_path / "full" / "x", 2, "cannot be a folder"),
        (tmp_path / "no", tmp_path / "new", 3, "is no folder"),
        (tmp_path / "full", tmp_path / "new", 3, "no table of a complete stage"),
    ):
        said = out("export", run_folder, "--to", "datasets", folder)
        assert said[0] == code
        assert words in said[1]


ROWS = [{"question": "1 + 1?", "answer": 2}, {"question": 'ü, "x"', "answer": -3}]


def test_rows_are_loaded_from_files_and_saved_folders(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(ROWS)
    data.to_parquet(str(tmp_path / "rows.parquet"))
    data.to_json(str(tmp_path / "rows.jsonl"), force_ascii=False)
    data.to_csv(str(tmp_path / "rows.csv"))
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"val": data}).save_to_disk(str(tmp_path / "splits"))
    for name in ("rows.parquet", "rows.jsonl", "rows.csv", "saved"):
        assert load_rows(str(tmp_path / name)) == ROWS, name
    assert load_rows(str(tmp_path / "splits"), "val") == ROWS


@pytest.mark.parametrize("name", ["rows.txt", "bad.parquet", "bad.jsonl", "empty", "splits", "no/such/set"])
def test_rows_that_cannot_be_loaded_are_a_wrong_setting(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "empty").mkdir()
    datasets.DatasetDict({"val": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"allowed|Allowed"):
        load_rows(str(tmp_path / name))
