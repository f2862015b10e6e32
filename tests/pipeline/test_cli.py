import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import pytest
from rich.console import Console

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import sealed, unsealed
from pipeline.artifacts.progress import Progress
from pipeline.cli.tables import figures_table, texts_table
from pipeline.columns import LABELS, ROLLOUTS, STEPS
from pipeline.errors import ConfigError
from pipeline.hub import load_rows
from pipeline.runner import Start, run_stage
from pipeline.tables import labels_table, rollouts_table, steps_table
from pipeline.types import Label, Step
from stages.command import main
from tests.pipeline import toy

ROOT = Path(__file__).parents[2]
EVIL = "\x1b[2J[bold]x[/bold] \u202egnp"


def run(
    folder: Path, name: str, items: list[list[str]], make: Callable[[Start[Any]], None], **more: Any
) -> int:
    """Runs one start of a stage of fixed items."""
    return run_stage(toy.stage_of(name, items, make, **more), toy.ToyConfig, [toy.config_in(folder)])


ROLLOUT = toy.rollout(
    1,
    rollout_id="r0",
    feedback_in_context="you asked twice",
    messages=({"role": "user", "content": "hello"}, {"role": "assistant", "content": EVIL}),
    steps=(Step(0, 0, 0, 2, EVIL), Step(1, 0, 3, 5, "second")),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with complete `rollouts`, complete `critic` and half-done `labels`."""

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

    tables = (ROLLOUTS, STEPS)
    assert run(tmp_path, "rollouts", [["r0", "r1"]], rollouts, unit="rollouts", tables=tables) == 0
    assert run(tmp_path, "critic", [["u"]], critic, inputs=("rollouts",)) == 0
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "labels", [["r0"], ["r1"]], labels, unit="states", tables=(LABELS,))
    return tmp_path / "r"


@pytest.fixture
def out(run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "200")

    def command(*argv: object, code: int = 0, words: Sequence[str] = ()) -> str:
        """Returns what a command printed; it must end with `code` and print `words`."""
        capsys.readouterr()
        ended = main([str(part) for part in argv])
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert ended == code, text
        assert [part for part in words if part not in text] == [], text
        return text

    return command


def row_of(text: str, stage: str) -> str:
    """Returns the line of a stage in what `vdapo status` printed."""
    return next(line for line in text.splitlines() if line.startswith(f"{stage} "))


def test_status_tells_absent_resumable_complete_stale_and_damaged_apart(out: Any, run_dir: Path) -> None:
    path, table = run_dir / "rollouts" / "manifest.json", run_dir / "rollouts" / "rollouts.parquet"
    whole, text = path.read_bytes(), out("status", run_dir)
    assert "absent" in row_of(text, "tasks")
    for words in ("complete", "2 rollouts", unsealed(path)["content_digest"][:8]):
        assert words in row_of(text, "rollouts")
    for words in ("resumable, 1 of 2 shards", "1 of 2 states"):
        assert words in row_of(text, "labels")
    path.write_bytes(sealed({**unsealed(path), "content_digest": "f" * 32}))
    assert "stale" in row_of(out("status", run_dir), "critic")
    path.write_bytes(whole)
    for spoilt, content in ((table, table.read_bytes() + b"x"), (path, b"{}")):
        spoilt.write_bytes(content)
        assert "damaged" in row_of(out("status", run_dir, code=3), "rollouts")


def test_status_counts_what_is_done_and_what_was_skipped(out: Any, run_dir: Path) -> None:
    def stored(start: Start[Any]) -> None:
        start.shards.commit(0, {}, done=0, skipped={"objective_none": 1})
        start.finish(report={})

    assert run(run_dir.parent, "stored", [["policy"]], stored, unit="policies") == 0
    text = out("status", run_dir)
    assert "0 policies, 1 skipped" in row_of(text, "stored")
    assert "1 policy" not in text


def test_no_table_cuts_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("critic_report", "an_arm_of_a_name_longer_than_its_column", "evaluation")
    for width in (80, 60):
        figures = figures_table("stage", ("rollouts", "sampled", "%", "trained", "%", "GB kept"), "at most")
        texts = texts_table(("stage", "state", "items"), "runs/[bold]x")
        for name in names:
            figures.add_row(name, "15,844", "1,234.5", "100", "1,234.5", "100", "12.34")
            texts.add_row(name, "resumable, 1 of 2 shards", "x" * 2 * width)
        console = Console(width=width, file=io.StringIO())
        console.print(figures, texts)
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= width
        assert printed.count("critic_report  ") == 2
        assert printed.count("1,234.5") == 6
        assert printed.count("x") >= 6 * width
        assert "runs/[bold]x" in printed


def test_status_finds_runs_under_data(out: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_dir)
    out("status", code=3, words=["make demo"])
    (run_dir / "data").symlink_to(run_dir.parent)
    out("status", words=["data/r"])


def test_show_prints_rollouts_as_dialogues_with_hostile_text_made_harmless(out: Any, run_dir: Path) -> None:
    words = [
        "assistant: ␛[2J[bold]x[/bold] <U+202E>gnp",
        "rollouts: 2 rows; tables here: rollouts, steps",
        "user: hello",
        "guided by feedback, attempt 1",
        "feedback in the prompt: you asked twice",
        "event in turn 0: ok sales a, b d",
        "reward 1, cost 0, success, ok, 4 sampled tokens of 5",
        "feedback (rules/observed): f",
    ]
    text = out("show", run_dir / "rollouts", "--rows", 1, words=words)
    assert "\x1b" not in text
    assert text.count("user: hello") == 1
    out("show", run_dir / "rollouts", words=["reward none"])


def test_what_nobody_reads_on_ends_quietly(run_dir: Path) -> None:
    """As under `| head`, with and without a buffer in between."""
    cases = ([["status", str(run_dir)], unbuffered] for unbuffered in ("1", ""))
    for argv, unbuffered in (*cases, (["settings"], ""), (["--help"], "")):
        reads, writes = os.pipe()
        os.close(reads)
        command = [sys.executable, "-m", "stages.command", *argv]
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=writes, stderr=subprocess.PIPE)
        os.close(writes)
        assert (done.returncode, done.stderr) == (0, b""), argv


def test_show_is_told_a_stage_in_any_way(out: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_dir / "rollouts")
    for path in (".", "../rollouts"):
        out("show", path, words=["rollouts: 2 rows"])
    out("show", ".", "--rows", 10**20, words=["rollouts: 2 rows"])


def test_show_prints_any_table_and_the_report_of_a_stage_without_one(out: Any, run_dir: Path) -> None:
    def sft(start: Start[Any]) -> None:
        out("show", run_dir / "sft", words=["sft has no tables; and no report.json yet"])
        start.finish(report={"updates": 7, "name": EVIL}, done=1)

    hostile = "text: ␛[2J[bold]x[/bold] <U+202E>gnp"
    out("show", run_dir / "rollouts", "--table", "steps", words=[hostile])
    out("show", f"{run_dir}/labels/", words=["labels: 1 rows", "target: 0.5"])
    assert out("show", run_dir / "critic") == "The gate passed: [bold]yes[/bold].\n"
    assert run(run_dir.parent, "sft", [["u"]], sft) == 0
    text = out("show", run_dir / "sft", words=["sft has no tables; report.json says: {", '"updates": 7'])
    assert "\x1b" not in text


def test_show_and_export_refuse_what_is_not_there(out: Any, run_dir: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    to = ("--to", "datasets")
    for argv, code, said in (
        (["show", run_dir / "actor"], 3, f"{run_dir}/actor is missing or no stage of a run. Run: make actor"),
        (["show", run_dir], 3, f"{run_dir} is missing or no stage of a run. Give RUN_DIR/STAGE"),
        (["show", run_dir / "rollouts", "--table", "labels"], 2, "it has: rollouts, steps"),
        (["export", run_dir, *to, "--stage", "rolouts", tmp_path / "new"], 2, "did you mean rollouts?"),
        (["export", run_dir, *to, "--stage", "x", tmp_path / "new"], 2, "this run's stages: tasks, sft, "),
        (["show", run_dir / "rollouts", "--rows", 0], 2, "--rows is 0; allowed: 1 or more"),
        (["export", run_dir, *to, full], 2, "is not empty"),
        (["export", run_dir, *to, full / "x"], 2, "cannot be a folder"),
        (["export", tmp_path / "no", *to, tmp_path / "new"], 3, "is no folder"),
        (["export", full, *to, tmp_path / "new"], 3, "no table of a complete stage"),
        (
            ["export", run_dir, "--to", "sessions", "--stage", "labels", tmp_path / "new"],
            *(3, "labels is not complete (1 of 2 shards). Run: make labels"),
        ),
    ):
        out(*argv, code=code, words=[said])


def test_status_and_verify_look_at_refreshes_too(out: Any, run_dir: Path) -> None:
    made = run_dir / "refresh" / "00003-abcdef"
    for stage in ("rollouts", "critic"):
        shutil.copytree(run_dir / stage, made / stage)
    (run_dir / "refresh" / "policies" / "00003-abcdef").mkdir(parents=True)
    text = out("status", run_dir)
    assert text.count("\ncritic ") == 2
    assert "policies" not in text
    out("verify", run_dir, words=["refresh/00003-abcdef/critic: complete and sound"])
    (made / "critic" / "critic" / "weights.txt").write_text("x")
    out("verify", run_dir, code=3, words=["refresh/00003-abcdef/critic: WRONG"])


def test_verify_passes_a_sound_run_and_finds_damage_and_contradictions(out: Any, run_dir: Path) -> None:
    sound = ["rollouts: complete and sound", "labels: resumable and sound: 1 of 2 shards"]
    out("verify", run_dir, words=sound)
    files = [run_dir / "rollouts" / "rollouts.parquet", run_dir / "critic" / "critic" / "weights.txt"]
    files += list((run_dir / "labels" / "shards" / "labels").iterdir())
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert out("verify", run_dir, code=3, words=[str(path)]).count("WRONG") == 1
        path.write_bytes(whole)
    manifest = run_dir / "rollouts" / "manifest.json"
    whole = manifest.read_bytes()
    for changed, said in (
        ({"counts": {"planned": 2, "done": 1, "failed": {}, "skipped": {}}}, "counts do not balance"),
        ({"verdict": {"passed": True}}, "does not match the manifest's own parts"),
    ):
        manifest.write_bytes(sealed(unsealed(manifest) | changed))  # under a right digest
        out("verify", run_dir, code=3, words=[said])
        manifest.write_bytes(whole)
    out("verify", run_dir)
    out("verify", run_dir / "nothing", code=3)


def test_verify_finds_steps_that_do_not_tile(out: Any, run_dir: Path, tmp_path: Path) -> None:
    def make(start: Start[Any]) -> None:
        wrong = replace(ROLLOUT, steps=(Step(0, 0, 0, 1, "x"),))
        start.shards.commit(0, {"rollouts": rollouts_table([wrong]), "steps": steps_table([wrong])}, done=1)
        start.finish()

    assert run(tmp_path / "wrong", "rollouts", [["r0"]], make, tables=(ROLLOUTS, STEPS)) == 0
    out("verify", tmp_path / "wrong" / "r", code=3, words=["steps must tile"])


def test_an_exported_run_is_read_by_datasets(out: Any, run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    text = out("export", run_dir, "--to", "datasets", folder, words=["rollouts.parquet: 2 rows"])
    assert "labels" not in text  # not complete
    artifact = Artifact.open(run_dir, "rollouts")
    loaded = datasets.load_dataset(str(folder), "rollouts", cache_dir=str(tmp_path / "cache"))["train"]
    assert loaded.to_list() == artifact.table("rollouts").to_pylist()
    steps = datasets.load_dataset(str(folder), "rollouts_steps", cache_dir=str(tmp_path / "cache"))["train"]
    assert steps["text"][0] == EVIL
    wanted, names = [[name] for name in loaded.column_names], loaded.column_names
    file = str(folder / "rollouts" / "rollouts.parquet")
    assert load_rows(file, wanted=wanted) == (loaded.to_list(), names)
    assert load_rows(str(folder), config="rollouts", wanted=wanted) == (loaded.to_list(), names)


def test_exported_sessions_say_nothing_of_how_they_were_sampled(
    out: Any, run_dir: Path, tmp_path: Path
) -> None:
    none = ["no graded rollout of a bare prompt; rollouts left out: 1 guided, 1 ungraded (ok)"]
    out("export", run_dir, "--to", "sessions", tmp_path / "none", code=3, words=none)
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    said = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": EVIL, "tool_calls": calls})
    bare = replace(ROLLOUT, rollout_id="b", guided=False, feedback_in_context="", messages=said, reward=0.25)
    others = [replace(bare, rollout_id="c", kind="continuation"), replace(bare, rollout_id="d", guided=True)]

    def make(start: Start[Any]) -> None:
        tables = {"rollouts": rollouts_table([bare, *others]), "steps": steps_table([bare])}
        start.shards.commit(0, tables, done=3)
        start.finish()

    assert run(tmp_path / "bare", "rollouts", [["b", "c", "d"]], make, tables=(ROLLOUTS, STEPS)) == 0
    folder = tmp_path / "sessions"
    words = ["sessions.jsonl: 1 rows", "left out: 1 continuation", "left out: 1 guided"]
    out("export", tmp_path / "bare" / "r", "--to", "sessions", folder, words=words)
    [line] = (folder / "sessions.jsonl").read_text("utf-8").splitlines()
    session = {"session_id": "b", "task_id": bare.task_id, "messages": list(said), "reward": 0.25}
    assert json.loads(line) == session
    out("export", tmp_path / "bare" / "r", "--to", "sessions", folder, code=2, words=["is not empty"])


ROWS = [{"question": "1 + 1?", "answer": 2}, {"question": 'ü, "x"', "answer": -3}]


def test_rows_are_loaded_from_files_and_saved_folders(tmp_path: Path) -> None:
    data, names = datasets.Dataset.from_list(ROWS), list(ROWS[0])
    data.to_parquet(str(tmp_path / "rows.parquet"))
    data.to_json(str(tmp_path / "rows.jsonl"), force_ascii=False)
    data.to_csv(str(tmp_path / "rows.csv"))
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"val": data}).save_to_disk(str(tmp_path / "splits"))
    for name in ("rows.parquet", "rows.jsonl", "rows.csv", "saved"):
        loaded = load_rows(str(tmp_path / name), wanted=[["q", "question"], ["answer.x"]])
        assert loaded == (ROWS, names), name
    loaded = load_rows(str(tmp_path / "splits"), "val", wanted=[["answer", "question"]])
    assert loaded == ([{"answer": 2}, {"answer": -3}], names)  # up to the column that has values
    assert load_rows(str(tmp_path / "saved"), wanted=[["x"]]) == ([{}, {}], names)


@pytest.mark.parametrize("name", ["rows.txt", "bad.parquet", "bad.jsonl", "empty", "splits", "no/such/set"])
@patch("datasets.config.HF_HUB_OFFLINE", True)
def test_rows_that_cannot_be_loaded_are_a_wrong_setting(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "empty").mkdir()
    datasets.DatasetDict({"val": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"allowed|Allowed"):
        load_rows(str(tmp_path / name), wanted=[["question"]])


@pytest.mark.parametrize(
    ("told", "expected"),
    [((2, 1), [1, 2, 2, 3, 3]), ((0, 0), [2, 3]), ((3, 0), [1, 2, 3, 3, 3])],  # the last: shards overlap
)
def test_the_bar_counts_each_item_once_whether_or_not_it_is_told_before_its_shard_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: tuple[int, int], expected: list[int]
) -> None:
    counts, shown = [], Progress.set
    monkeypatch.setattr(Progress, "set", lambda self, count: (counts.append(count), shown(self, count))[1])

    def make(start: Start[Any]) -> None:
        for shard in start.shards.to_do():
            for _ in range(told[shard.index]):
                start.shards.item_done()
            start.shards.commit(shard.index, {}, done=len(shard.item_ids))
        start.finish()

    assert run(tmp_path, "bar", [["a", "b"], ["c"]], make) == 0
    assert counts == expected
