from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import publish_once, sealed, unsealed
from pipeline.artifacts.lock import Lock, holder
from pipeline.artifacts.manifest import SCHEMA_VERSION, read_manifest
from pipeline.artifacts.metrics import Metrics, read_metrics
from pipeline.artifacts.runner import Start, run_stage
from pipeline.columns import VALUES
from pipeline.errors import ArtifactError
from pipeline.tables import values_table

HERE = Path(__file__).parent


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy", HERE / "toy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toy"] = module
    spec.loader.exec_module(module)
    return module


toy: Any = _load()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with c.yaml, whose run is `r`."""
    (tmp_path / "c.yaml").write_text(f"run: {{data_dir: {tmp_path}}}\n")
    return tmp_path


def run(data: Path, name: str, *argv: str) -> int:
    return toy.run(name, str(data / "c.yaml"), *argv)


@pytest.fixture
def made(data: Path) -> Path:
    """The same with both stages complete."""
    assert run(data, "source") == 0
    assert run(data, "toy") == 0
    return data


def test_a_complete_stage_says_so_and_its_tables_can_be_opened(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Artifact.open(made / "r", "toy")
    assert artifact.table("values")["rollout_id"].to_pylist() == [f"item-{i}" for i in range(7)]
    assert artifact.tables == ("values", "labels", "summary")
    assert (
        artifact.path("policy/weights.txt").read_text()
        == artifact.path("policy").joinpath("weights.txt").read_text()
    )
    assert artifact.report["opening"] == ["It went well."]
    assert artifact.manifest["verdict"] == {"ok": True}
    artifact.verify()
    with pytest.raises(ArtifactError, match="has no table 'steps'; it has: values, labels, summary"):
        artifact.table("steps")
    with pytest.raises(ArtifactError, match="lists no such file"):
        artifact.path("plan.json")
    for outside in ("../source/values.parquet", "/etc/hostname", ""):
        with pytest.raises(ArtifactError):
            artifact.path(outside)
    assert run(made, "toy", "--fresh") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "planned 7 = done 7 + failed 0 + skipped 0"


def test_the_second_run_is_up_to_date_without_torch_and_writes_nothing(made: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (made / "r").rglob("*")}
    code = (
        "import sys, runpy; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(HERE / "toy.py"), "toy", str(made / "c.yaml")],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("toy: up to date")
    assert {p: p.stat().st_mtime_ns for p in (made / "r").rglob("*")} == before


SEMANTIC = [
    ("toy.num_items=8", "toy.num_items: 7 -> 8"),
    ("toy.shard_size=2", "toy.shard_size: 3 -> 2"),
    ("toy.rate=0.2", "toy.rate: 0.1 -> 0.2"),
    ("toy.kind=other", 'toy.kind: "plain" -> "other"'),
    ("toy.shares.a=0.25", "toy.shares.a: 0.5 -> 0.25"),
    ("toy.inner.depth=3", "toy.inner.depth: 2 -> 3"),
    ("run.seed=1", "run.seed: 0 -> 1"),
]


@pytest.mark.parametrize("half_done", [True, False])
def test_every_changed_semantic_setting_is_refused_field_by_field(
    data: Path, half_done: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(data, "source") == 0
    if half_done:
        monkeypatch.setenv("TOY_SIGNALS", "1")
    assert run(data, "toy") == (75 if half_done else 0)
    monkeypatch.delenv("TOY_SIGNALS", raising=False)
    # the source depends on the seed too, so it is taken from a run of that seed for the last one
    for override, line in SEMANTIC[:-1]:
        assert run(data, "toy", override) == 3
        error = capsys.readouterr().err
        assert line in error
        assert ("half done" if half_done else "complete") in error
    assert run(data, "toy", "toy.rate=0.3", "toy.kind=other") == 3
    error = capsys.readouterr().err
    assert "toy.rate: 0.1 -> 0.3" in error
    assert "toy.kind" in error
    assert run(data, "toy", SEMANTIC[-1][0]) == 3
    assert SEMANTIC[-1][1] in capsys.readouterr().err
    assert run(data, "toy") == 0


def test_runtime_settings_may_change_and_are_recorded(made: Path, data: Path) -> None:
    shutil.rmtree(made / "r" / "toy")
    assert run(data, "toy", "toy.note=a", "toy.inner.workers=3") == 0
    manifest = read_manifest(made / "r" / "toy")
    assert manifest is not None
    assert manifest["runtime"]["toy"] == {"inner": {"workers": 3}, "note": "a"}
    assert run(data, "toy", "toy.note=b") == 0


def test_a_changed_input_is_refused_by_name_and_fresh_keeps_the_old_folder(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Artifact.open(made / "r", "source").content_digest
    assert run(made, "source", "source.value=0.75", "--fresh") == 0
    new = Artifact.open(made / "r", "source").content_digest
    assert old != new
    capsys.readouterr()
    assert run(made, "toy") == 3
    error = capsys.readouterr().err
    assert f"toy was made from source {old[:8]}, the folder now holds {new[:8]}" in error
    assert "--fresh" in error
    assert run(made, "toy", "--fresh") == 0
    assert sorted(p.name for p in (made / "r" / "_old").iterdir()) == ["source-000", "toy-000"]
    assert (made / "r" / "_old" / "toy-000" / "values.parquet").exists()


def test_an_input_made_again_with_equal_content_keeps_later_stages(made: Path) -> None:
    assert run(made, "source", "--fresh") == 0
    assert run(made, "toy") == 0
    assert not (made / "r" / "_old" / "toy-000").exists()


def test_a_stage_behind_a_stale_stage_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = toy.stage_of("last", [], lambda start: pytest.fail("must not run"), inputs=("toy",))
    assert run(made, "source", "source.value=0.75", "--fresh") == 0
    assert run_stage(last, toy.ToyConfig, [str(made / "c.yaml")]) == 3
    assert "toy was made from source" in capsys.readouterr().err


def test_a_new_code_version_is_a_change(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_stage(replace(toy.TOY, code_version=2), toy.ToyConfig, [str(made / "c.yaml")]) == 3
    assert "code_version: 1 -> 2" in capsys.readouterr().err


def test_a_missing_and_an_unfinished_input_say_what_to_run(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(data, "toy") == 3
    assert "source is missing. Run: make source" in capsys.readouterr().err
    assert run(data, "source") == 0
    monkeypatch.setenv("TOY_SIGNALS", "1")
    assert run(data, "toy") == 75
    with pytest.raises(ArtifactError, match=r"not complete \(1 of 3 shards\)\. Run: make toy"):
        Artifact.open(data / "r", "toy")


def test_damage_of_a_complete_stage_is_found(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made / "r" / "source" / "values.parquet"
    whole = path.read_bytes()
    for size in (0, 1, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert run(made, "source") == 3
        assert str(path) in capsys.readouterr().err
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match="SHA-256"):
            Artifact.open(made / "r", "source").table("values")
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ArtifactError, match="symbolic link"):
        Artifact.open(made / "r", "source")


def test_a_flipped_byte_of_manifest_or_plan_is_found(made: Path) -> None:
    for name in ("manifest.json", "plan.json"):
        path = made / "r" / "toy" / name
        whole = path.read_bytes()
        for place in range(0, len(whole), 3):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ArtifactError):
                unsealed(path)
        path.write_bytes(whole)


def test_repair_makes_a_damaged_complete_stage_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Artifact.open(made / "r", "toy").content_digest
    assert run(made, "toy", "--repair") == 0
    assert "nothing to repair" in capsys.readouterr().out
    path = made / "r" / "toy" / "labels.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])  # same size: only a digest can tell
    assert run(made, "toy", "--repair") == 0
    assert Artifact.open(made / "r", "toy").content_digest == before
    assert (made / "r" / "_old" / "toy-000").exists()
    (made / "r" / "toy" / "manifest.json").write_text("{")
    assert run(made, "toy") == 3
    assert "--repair" in capsys.readouterr().err
    assert run(made, "toy", "--repair") == 0
    assert Artifact.open(made / "r", "toy").content_digest == before


def test_a_damaged_committed_shard_is_refused_and_repaired(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(data, "source") == 0
    monkeypatch.setenv("TOY_SIGNALS", "1")
    assert run(data, "toy") == 75
    monkeypatch.delenv("TOY_SIGNALS")
    shard = next((data / "r" / "toy" / "shards" / "values").glob("part-00000-*"))
    whole = shard.read_bytes()
    for size in (0, 4, len(whole) - 1):
        shard.write_bytes(whole[:size])
        assert run(data, "toy") == 3
        assert str(shard) in capsys.readouterr().err
    shard.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    assert run(data, "toy") == 3
    assert run(data, "toy", "--repair") == 0
    assert run(data, "toy") == 0
    Artifact.open(data / "r", "toy").verify()


def test_a_torn_ledger_line_means_that_shard_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(data, "source") == 0
    monkeypatch.setenv("TOY_SIGNALS", "1")
    assert run(data, "toy") == 75
    monkeypatch.delenv("TOY_SIGNALS")
    (path,) = (data / "r" / "toy" / "_ledger").glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert run(data, "toy") == 0
    assert Artifact.open(data / "r", "toy").table("values").num_rows == 7
    assert "torn or damaged" in (data / "r" / "toy" / "logs" / "start_001" / "stage.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_with_75_and_the_next_run_goes_on(data: Path, number: signal.Signals) -> None:
    def make(start: Start[Any]) -> None:
        for shard in start.shards.to_do():
            start.shards.commit(
                shard.index, {"values": values_table([(shard.item_ids[0], 0, "bare", "c", 0.0)])}, done=1
            )
            os.kill(os.getpid(), number)
        start.finish()

    stage = toy.stage_of("s", [["a"], ["b"]], make, (VALUES,))
    former = signal.getsignal(number)
    codes = [run_stage(stage, toy.ToyConfig, [str(data / "c.yaml")]) for _ in range(2)]
    assert codes == [75, 0]
    assert signal.getsignal(number) is former
    logs = data / "r" / "s" / "logs"
    exits = [json.loads((logs / f"start_00{i}" / "exit.json").read_text())["code"] for i in range(2)]
    assert exits == [75, 0]
    assert (logs / "start_000" / "config.yaml").read_text().startswith("run:")
    assert "start 0" in (logs / "start_000" / "stage.log").read_text()


def test_a_second_signal_stops_at_once(made: Path) -> None:
    argv = [sys.executable, str(HERE / "toy.py"), "toy", str(made / "c.yaml"), "--run", "other"]
    shutil.copytree(made / "r" / "source", made / "other" / "source")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "TOY_SIGNALS": "2"}
    answer = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert answer.returncode == 75
    assert "second signal" in answer.stderr
    assert not (made / "other" / "toy" / "logs" / "start_000" / "exit.json").exists()
    assert subprocess.run(argv, env={**environment, "TOY_SIGNALS": ""}, capture_output=True).returncode == 0


def test_a_second_process_is_refused_naming_the_first_and_its_death_frees_the_stage(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(made / "r" / "toy")
    mark = made / "mark"
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "TOY_HANG": "item-4",
        "TOY_HANG_FILE": str(mark),
    }
    first = subprocess.Popen(
        [sys.executable, str(HERE / "toy.py"), "toy", str(made / "c.yaml")], env=environment
    )
    while not mark.exists():
        assert first.poll() is None
        time.sleep(0.02)
    assert run(made, "toy") == 73
    error = capsys.readouterr().err
    assert f"pid {first.pid}" in error
    assert "host " in error
    lease = holder(made / "r" / "toy")
    assert lease is not None
    assert lease["pid"] == first.pid
    first.kill()
    first.wait()
    assert holder(made / "r" / "toy") is None
    assert run(made, "toy") == 0


def test_a_child_does_not_keep_the_lock_alive(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with pytest.raises(ArtifactError, match="held by another process") as caught:
        Lock(tmp_path)
    assert caught.value.code == 73
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        Lock(tmp_path).release()
    finally:
        child.kill()
        child.wait()


def test_where_the_kernel_lock_is_ignored_the_lease_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, flags: None)
    lease = {"host": "elsewhere", "pid": 1, "since": time.time()}
    (tmp_path / "_lock").write_text(json.dumps(lease))
    with pytest.raises(ArtifactError, match="host elsewhere, pid 1"):
        Lock(tmp_path)
    long_ago = time.time() - 121
    os.utime(tmp_path / "_lock", (long_ago, long_ago))
    Lock(tmp_path).release()


def test_counts_that_do_not_balance_are_a_defect(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def make_with(done: int) -> Any:
        def make(start: Start[Any]) -> None:
            start.shards.commit(0, {}, done=done)
            start.finish()

        return make

    argv = [str(data / "c.yaml")]
    for number, (items, make, words) in enumerate(
        [
            ([["a", "b"]], make_with(1), "planned 2 != done 1"),
            ([["a", "b"]], make_with(3), "planned 2 != done 3"),
            ([["a"], ["b"]], make_with(1), "shards without a commit: [1]"),
            ([["a"]], lambda start: None, "without finish"),
        ]
    ):
        assert run_stage(toy.stage_of(f"s{number}", items, make), toy.ToyConfig, argv) == 1
        assert words in capfd.readouterr().err
        assert not (data / "r" / f"s{number}" / "manifest.json").exists()


def test_too_many_failed_items_exit_5_and_repair_tries_them_again(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Artifact.open(made / "r", "toy").content_digest
    shutil.rmtree(made / "r" / "toy")
    monkeypatch.setenv("TOY_FAILED", "1")
    assert run(made, "toy") == 5
    assert "failed 1 (infra_error 1)" in capsys.readouterr().err
    monkeypatch.delenv("TOY_FAILED")
    assert run(made, "toy") == 5
    assert run(made, "toy", "--repair") == 0
    assert Artifact.open(made / "r", "toy").content_digest == before


def test_a_dry_run_prints_the_plan_and_makes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "source") == 0
    capsys.readouterr()
    assert run(data, "toy", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "would make 7 items in 3 shards" in out
    assert "rows: 7" in out
    assert "/r/toy (absent)" in out
    assert not (data / "r" / "toy").exists()


def test_a_full_disk_exits_74_and_says_how_much_is_free(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(start: Start[Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/there")

    assert run_stage(toy.stage_of("s", [], make), toy.ToyConfig, [str(data / "c.yaml")]) == 74
    assert " MB free). Next: make room, then the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("file", 2, "Not a directory"),
        ("file/below", 2, "Not a directory"),
        ("dangling", 2, "File exists"),
        ("loop", 2, "Too many levels of symbolic links"),
        ("/proc/vdapo", 2, "No such file or directory"),
        ("/sys/vdapo", 2, "cannot be a folder"),
        ("long" * 100, 2, "File name too long"),
        ('"a\\0b"', 2, "embedded null byte"),
    ],
)
def test_a_data_dir_that_cannot_be_made_is_a_wrong_setting(
    data: Path, given: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "file").touch()
    (data / "dangling").symlink_to(data / "nowhere")
    (data / "loop").symlink_to(data / "loop")
    place = given if given.startswith(("/", '"')) else str(data / given)
    assert run(data, "source", f"run.data_dir={place}") == code
    error = capsys.readouterr().err
    assert said in error
    assert "run.data_dir = " in error
    assert "Next: name another" in error


@pytest.mark.parametrize(
    ("spoilt", "folder", "code", "said"),
    [
        ("source", False, 3, "is no folder; a stage's folder belongs there"),
        ("source/manifest.json", True, 3, "a folder where a file belongs"),
        ("source/values.parquet", True, 3, "missing, though the manifest lists it"),
        ("toy", False, 3, "is no folder; a stage's folder belongs there"),
        ("toy/plan.json", True, 3, "a folder where a file belongs"),
        ("toy/manifest.json", True, 3, "a folder where a file belongs"),
        ("toy/_lock", True, 74, "remove what is in the way"),
        ("toy/logs", False, 74, "remove what is in the way"),
        ("toy/shards", False, 74, "remove what is in the way"),
        ("toy/_ledger", False, 74, "remove what is in the way"),
        ("toy/_ledger/w.jsonl", True, 74, "remove what is in the way"),
        ("toy/checkpoints", False, 74, "remove what is in the way"),
        ("toy/values.parquet", True, 74, "remove what is in the way"),
        ("toy/report.json", True, 74, "remove what is in the way"),
    ],
)
def test_what_lies_in_the_way_is_named_and_never_a_defect(
    data: Path, spoilt: str, folder: bool, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, "source") == 0
    path = data / "r" / spoilt
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if folder else path.write_text("x")
    assert run(data, "toy") == code
    error = capsys.readouterr().err
    assert said in error
    assert str(path) in error
    shutil.rmtree(path) if folder else path.unlink()
    if spoilt.startswith("toy"):
        assert run(data, "toy") == 0


def test_a_stage_folder_that_somebody_removes_meanwhile_is_no_defect(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(start: Start[Any]) -> None:
        shutil.rmtree(start.folder)
        start.shards.commit(0, {}, done=1)

    assert run_stage(toy.stage_of("s", [["a"]], make), toy.ToyConfig, [str(data / "c.yaml")]) == 74
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["source", "toy"])
def test_a_run_of_the_former_layout_is_refused_with_what_to_do(
    made: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made / "r" / stage / "manifest.json"
    manifest = {key: value for key, value in unsealed(path).items() if key != "digest"}
    path.write_bytes(sealed({**manifest, "schema_version": 1, "git_commit": "abcdef0123456789"}))
    assert run(made, "toy") == 3
    error = capsys.readouterr().err
    assert f"{made / 'r' / stage} was made by a version of this program" in error
    assert f"(layout 1; this one reads {SCHEMA_VERSION}). Next: make it again as another run" in error
    assert "git abcdef0123" in error
    if stage == "toy":
        assert run(made, "toy", "--fresh") == 0


def test_wrong_usage_exits_2(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "toy", "toy.num_item=3") == 2
    assert "did you mean toy.num_items?" in capsys.readouterr().err
    assert run(data, "toy", "--frsh") == 2
    assert run(data, "toy", "--fresh", "--repair") == 2
    assert toy.run("toy", str(data / "absent.yaml")) == 2
    assert not (data / "r").exists()


def test_options_and_overrides_may_come_in_any_order(data: Path) -> None:
    assert (
        toy.run("source", "--run", "x", str(data / "c.yaml"), "run.seed=3", "--fresh", "source.value=0.25")
        == 0
    )
    assert Artifact.open(data / "x", "source").table("values")["value"].to_pylist() == [0.25]


def test_a_damaged_checkpoint_is_skipped_with_a_log_line(data: Path) -> None:
    seen: list[Any] = []

    def make(start: Start[Any]) -> None:
        checkpoints = start.checkpoints
        assert checkpoints.latest() is None
        for update in (1, 2, 3):
            checkpoints.save(
                update, lambda f, u=update: (f / "w").write_text(f"weights {u}"), {"update": update}
            )
        folders = sorted(checkpoints.folder.iterdir())
        assert [folder.name[:9] for folder in folders] == ["u00000002", "u00000003"]
        (folders[1] / "w").write_text("weights 4")
        latest = checkpoints.latest()
        seen.append(latest)
        checkpoints.save(3, lambda f: (f / "w").write_text("weights 3"), {"update": 3})
        assert len(list(checkpoints.folder.iterdir())) == 2
        assert not folders[1].exists()
        start.finish(done=1)

    assert run_stage(toy.stage_of("s", [["a"]], make), toy.ToyConfig, [str(data / "c.yaml")]) == 0
    assert seen[0][1] == {"update": 2}
    log = (data / "r" / "s" / "logs" / "start_000" / "stage.log").read_text()
    assert "checkpoint skipped" in log


def test_of_two_checkpoints_of_one_update_the_later_is_the_newest(data: Path) -> None:
    """As after an iteration without an update: its state differs, its weights do not."""
    seen: list[Any] = []

    def make(start: Start[Any]) -> None:
        for number in range(12):
            saved = start.checkpoints.save(7, lambda f: (f / "w").write_text("weights"), {"number": number})
            if number == 0:
                saved.rename(saved.with_name("u00000007-ffffffff"))  # as of before saves were counted
            latest = start.checkpoints.latest()
            assert latest is not None
            seen.append(latest[1]["number"])
        start.finish(done=1)

    assert run_stage(toy.stage_of("s", [["a"]], make), toy.ToyConfig, [str(data / "c.yaml")]) == 0
    assert seen == list(range(12))


def test_output_names_of_the_runner_are_refused_and_unwritten_ones_noticed(data: Path) -> None:
    def make(start: Start[Any]) -> None:
        for name in ("manifest.json", "shards/x", "_lock", ".hidden"):
            with pytest.raises(ValueError, match="belong to the runner"):
                start.output(name)
        with pytest.raises(ArtifactError):
            start.output("../x")
        start.output("policy")
        start.finish(done=1)

    assert run_stage(toy.stage_of("s", [["a"]], make), toy.ToyConfig, [str(data / "c.yaml")]) == 1


def test_a_file_is_published_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert publish_once(tmp_path / "m", sealed({"a": 1}), "x")
    assert not publish_once(tmp_path / "m", sealed({"a": 2}), "x")
    assert unsealed(tmp_path / "m") == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["m"]

    def no_links(*args: Any) -> None:
        raise OSError(1, "links are missing here")

    monkeypatch.setattr("os.link", no_links)
    assert publish_once(tmp_path / "n", sealed({"a": 1}), "x")
    assert not publish_once(tmp_path / "n", sealed({"a": 2}), "x")
    assert unsealed(tmp_path / "n") == {"a": 1}


def test_metrics_read_back_as_one_history_and_never_raise(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    warnings: list[str] = []
    for start, updates in ((0, (0, 1, 2, 3)), (1, (2, 3, 4))):
        metrics = Metrics(path, start, warnings.append)
        for update in updates:
            metrics.write({"update": update, "loss": float("nan") if update == 4 else start})
    with path.open("a") as file:
        file.write('{"update": 5, "lo')
    lines = read_metrics(path)
    assert [(line["update"], line["start"]) for line in lines] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
    assert lines[-1]["loss"] != lines[-1]["loss"]
    full = Metrics(Path("/dev/full"), 0, warnings.append)
    full.write({"update": 1})
    full.write({"update": 2, "odd": object()})
    assert len(warnings) == 1


def test_a_worker_s_own_error_is_a_defect(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_WORKER_AT", "item-4")
    monkeypatch.setenv("TOY_WORKER", "failed")
    assert run(made, "toy", "--fresh") == 1
    assert "w (process" in capsys.readouterr().err
    monkeypatch.delenv("TOY_WORKER_AT")
    assert run(made, "toy") == 0


def test_a_third_start_that_loses_a_worker_without_progress_ends_the_series(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler starts a stage again after every 75, for ever if the worker dies each time."""
    monkeypatch.setenv("TOY_WORKER", "killed")
    monkeypatch.setenv("TOY_WORKER_AT", "item-0")
    assert run(made, "toy", "--fresh") == 75
    assert run(made, "toy") == 75
    monkeypatch.setenv("TOY_WORKER_AT", "item-4")
    assert run(made, "toy") == 75  # a shard was committed: counted anew from here on
    assert run(made, "toy") == 75
    assert run(made, "toy") == 75
    capsys.readouterr()
    assert run(made, "toy") == 5
    assert "3 starts running lost a worker before anything was committed" in capsys.readouterr().err
    assert run(made, "toy") == 75  # somebody has looked, and the count begins again
    monkeypatch.delenv("TOY_WORKER_AT")
    assert run(made, "toy") == 0


def test_a_worker_that_a_scheduler_ends_with_the_stage_does_not_count(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_WORKER", "killed and told to stop")
    monkeypatch.setenv("TOY_WORKER_AT", "item-0")
    assert run(made, "toy", "--fresh") == 75
    for _ in range(4):
        assert run(made, "toy") == 75
    assert "stopped early by SIGTERM" in capsys.readouterr().err
