import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.checkpoints import Checkpoints
from pipeline.artifacts.disk import made_durable, publish_once, sealed, unsealed
from pipeline.artifacts.lock import Lock, holder
from pipeline.artifacts.manifest import SCHEMA_VERSION
from pipeline.artifacts.metrics import Metrics, read_metrics
from pipeline.columns import VALUES
from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.processes.worker import Worker
from pipeline.runner import Start, run_stage
from pipeline.tables import values_table
from tests.pipeline import toy

Run = Callable[..., str]
SCRIPT = Path(toy.__file__)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Starts a stage, a toy's by its name, in the run `r` of a folder; returns what it said.

    It must end with `code`, and say `words`.
    """
    config = toy.config_in(tmp_path)

    def start(stage: Any, *argv: str, code: int = 0, words: Sequence[str] = ()) -> str:
        capfd.readouterr()
        stage = toy.STAGES[stage] if isinstance(stage, str) else stage
        ended = run_stage(stage, toy.ToyConfig, [config, *argv])
        said = "".join(capfd.readouterr())
        assert ended == code, said
        assert [part for part in words if part not in said] == [], said
        return said

    return start


@pytest.fixture
def data(run: Run, tmp_path: Path) -> Path:
    """The folder, with a complete `source`."""
    run("source")
    return tmp_path


@pytest.fixture
def made(run: Run, data: Path) -> Path:
    """The folder, with both stages complete."""
    run("toy")
    return data


@pytest.fixture
def half_done(run: Run, data: Path) -> Path:
    """The folder, with `toy` stopped in its second shard."""
    with patch.dict(os.environ, TOY_SIGNALS="1"):
        run("toy", code=75)
    return data


def test_a_complete_stage_can_be_opened_and_its_second_run_writes_nothing(made: Path, run: Run) -> None:
    artifact = Artifact.open(made / "r", "toy")
    assert artifact.table("values")["rollout_id"].to_pylist() == [f"item-{i}" for i in range(7)]
    assert artifact.tables == ("values", "labels", "summary")
    weights = artifact.path("policy/weights.txt").read_text()
    assert weights == (artifact.path("policy") / "weights.txt").read_text()
    assert artifact.report["opening"] == ["It went well."]
    assert artifact.manifest["verdict"] == {"ok": True}
    assert not (made / "r" / "toy" / "checkpoints").exists()  # of 8B: 196 GB
    artifact.verify()
    with pytest.raises(ArtifactError, match="has no table 'steps'; it has: values, labels, summary"):
        artifact.table("steps")
    for outside in ("plan.json", "../source/values.parquet", "/etc/hostname", ""):
        with pytest.raises(ArtifactError):
            artifact.path(outside)
    before = {p: p.stat().st_mtime_ns for p in (made / "r").rglob("*")}
    assert run("toy").startswith("toy: up to date")
    assert {p: p.stat().st_mtime_ns for p in (made / "r").rglob("*")} == before
    run("toy", "--fresh", words=["\nplanned 7 = done 7 + failed 0 + skipped 0\n"])


@pytest.mark.parametrize("state", ["half done", "complete"])
def test_a_changed_semantic_setting_is_refused_field_by_field_and_a_runtime_one_recorded(
    state: str, run: Run, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue("made" if state == "complete" else "half_done")
    for overrides, words in {
        ("toy.num_items=8",): ["toy.num_items: 7 -> 8"],
        ("toy.shard_size=2",): ["toy.shard_size: 3 -> 2"],
        ("toy.shares.a=0.25",): ["toy.shares.a: 0.5 -> 0.25"],
        ("toy.inner.depth=3",): ["toy.inner.depth: 2 -> 3"],
        ("toy.rate=0.3", "toy.kind=other"): ["toy.rate: 0.1 -> 0.3", 'toy.kind: "plain" -> "other"'],
        ("run.seed=1",): ["run.seed: 0 -> 1"],
    }.items():
        run("toy", *overrides, code=3, words=[*words, state])
    run(replace(toy.STAGES["toy"], code_version=2), code=3, words=["code_version: 1 -> 2"])
    run("toy", "toy.note=a", "toy.inner.workers=3")
    manifest = Artifact.open(folder / "r", "toy").manifest
    as_made = {"half done": {"inner": {"workers": 3}, "note": "a"}}
    assert manifest["runtime"]["toy"] == as_made.get(state, {"inner": {"workers": 1}, "note": ""})


def test_a_changed_input_is_refused_by_name_and_fresh_keeps_the_old_folder(made: Path, run: Run) -> None:
    old = Artifact.open(made / "r", "source").content_digest[:8]
    run("source", "--fresh")
    run("toy", words=["toy: up to date"])  # made again, of equal content
    run("source", "source.value=0.75", "--fresh")
    new = Artifact.open(made / "r", "source").content_digest[:8]
    last = toy.stage_of("last", [], lambda start: pytest.fail("must not run"), inputs=("toy",))
    for stage in ("toy", last):  # the stage itself, and one behind it
        said = f"toy was made from source {old}, the folder now holds {new}"
        run(stage, code=3, words=[said, "--fresh"])
    run("toy", "--fresh")
    kept = made / "r" / "_old"
    assert sorted(p.name for p in kept.iterdir()) == ["source-000", "source-001", "toy-000"]
    assert (kept / "toy-000" / "values.parquet").exists()


def test_an_unfinished_input_says_what_to_run(half_done: Path) -> None:
    with pytest.raises(ArtifactError, match=r"not complete \(1 of 3 shards\)\. Run: make toy"):
        Artifact.open(half_done / "r", "toy")


def test_a_table_that_is_a_link_is_refused(made: Path) -> None:
    path = made / "r" / "source" / "values.parquet"
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ArtifactError, match="symbolic link"):
        Artifact.open(made / "r", "source")


@pytest.mark.parametrize("name", ["manifest.json", "plan.json"])
def test_a_flipped_byte_of_manifest_or_plan_is_found_and_repaired(made: Path, name: str, run: Run) -> None:
    before = Artifact.open(made / "r", "toy").content_digest
    path = made / "r" / "toy" / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArtifactError):
            unsealed(path)
    if name == "manifest.json":
        run("toy", code=3, words=["--repair"])
    run("toy", "--repair")
    assert Artifact.open(made / "r", "toy").content_digest == before
    run("toy", "--repair", words=["nothing to repair"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_with_75_and_the_next_run_goes_on(tmp_path: Path, number: int, run: Run) -> None:
    def make(start: Start[Any]) -> None:
        for shard in start.shards.to_do():
            rows = [(shard.item_ids[0], 0, "bare", "c", 0.0)]
            start.shards.commit(shard.index, {"values": values_table(rows)}, done=1)
            os.kill(os.getpid(), number)
        start.finish()

    stage = toy.stage_of("s", [["a"], ["b"]], make, (VALUES,))
    former = signal.getsignal(number)
    logs = tmp_path / "r" / "s" / "logs"
    for index, code in enumerate((75, 0)):
        run(stage, code=code)
        assert json.loads((logs / f"start_00{index}" / "exit.json").read_text())["code"] == code
    assert signal.getsignal(number) is former
    assert (logs / "start_000" / "config.yaml").read_text().startswith("run:")
    assert "start 0" in (logs / "start_000" / "stage.log").read_text()


def test_a_second_signal_stops_at_once(data: Path, run: Run) -> None:
    command = [sys.executable, SCRIPT, "toy", data / "c.yaml"]
    answer = subprocess.run(command, env=ENVIRONMENT | {"TOY_SIGNALS": "2"}, capture_output=True, text=True)
    assert answer.returncode == 75
    assert "second signal" in answer.stderr
    assert not (data / "r" / "toy" / "logs" / "start_000" / "exit.json").exists()
    run("toy")


def test_a_second_process_is_refused_and_the_first_s_death_frees_the_stage(data: Path, run: Run) -> None:
    folder = data / "r" / "toy"
    folder.mkdir()
    script = f"import pathlib, time; from {Lock.__module__} import Lock; Lock(pathlib.Path({str(folder)!r}))"
    command = [sys.executable, "-c", f"{script}; print(flush=True); time.sleep(60)"]
    first = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    run("toy", code=73, words=[f"pid {first.pid}"])
    first.kill()
    first.communicate()
    assert holder(folder) is None
    run("toy")


def test_a_child_does_not_keep_the_lock_alive(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        Lock(tmp_path).release()
    finally:
        child.kill()
        child.wait()


def test_items_without_an_end_are_a_defect(tmp_path: Path, run: Run) -> None:
    def make(start: Start[Any]) -> None:
        start.shards.commit(0, {}, done=1)
        start.finish()

    said = "planned 2 != done 1 + failed 0 + skipped 0 items; shards"
    for does, words in ((make, said), (lambda start: None, "without finish")):
        run(toy.stage_of("s", [["a"], ["b"]], does), code=1, words=[words])
    assert not (tmp_path / "r" / "s" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("file", "Not a directory"),
        ("dangling", "File exists"),
        ("loop", "Too many levels of symbolic links"),
        ("/sys/vdapo", "cannot be a folder"),
        ("long" * 100, "File name too long"),
        ('"a\\0b"', "embedded null byte"),
    ],
)
def test_a_data_dir_that_cannot_be_made_is_refused(tmp_path: Path, given: str, said: str, run: Run) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    place = given if given.startswith(("/", '"')) else str(tmp_path / given)
    run("source", f"run.data_dir={place}", code=2, words=[said, "run.data_dir = ", "Next: name another"])


IN_THE_WAY = {  # at its end a slash: a folder is in the way, else a file
    "is no folder; a stage's folder belongs there": ["source", "toy"],
    "a folder where a file belongs": ["source/manifest.json/", "toy/plan.json/"],
    "missing, though it is listed": ["source/values.parquet/"],
    "remove what is in the way": [
        *("toy/_lock/", "toy/logs", "toy/shards", "toy/_ledger", "toy/_ledger/w.jsonl/"),
        *("toy/checkpoints", "toy/values.parquet/", "toy/report.json/"),
    ],
}


@pytest.mark.parametrize(
    ("spoilt", "said"), [(place, said) for said, places in IN_THE_WAY.items() for place in places]
)
def test_what_lies_in_the_way_is_named(data: Path, spoilt: str, said: str, run: Run) -> None:
    path = data / "r" / spoilt
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if spoilt.endswith("/") else path.write_text("x")
    run("toy", code=74 if said.startswith("remove") else 3, words=[said, str(path)])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if spoilt.startswith("toy"):
        run("toy")


def test_a_run_of_the_former_layout_is_refused_with_what_to_do(made: Path, run: Run) -> None:
    path = made / "r" / "source" / "manifest.json"
    manifest = {key: value for key, value in unsealed(path).items() if key != "digest"}
    path.write_bytes(sealed({**manifest, "schema_version": 1, "git_commit": "abcdef0123456789"}))
    what = f"{path.parent} was made by a version of this program"
    step = f"(layout 1; this one reads {SCHEMA_VERSION}). Next: make it again as another run"
    run("toy", code=3, words=[what, step, "git abcdef0123"])


def test_wrong_usage_exits_2_and_options_may_come_in_any_order(tmp_path: Path, run: Run) -> None:
    run("toy", "toy.num_item=3", code=2, words=["did you mean toy.num_items?"])
    assert toy.run("toy", str(tmp_path / "c.yaml"), "--frsh") == 2
    assert toy.run("toy", str(tmp_path / "c.yaml"), "--fresh", "--repair") == 2
    assert toy.run("toy", str(tmp_path / "absent.yaml")) == 2
    assert not (tmp_path / "r").exists()
    config = str(tmp_path / "c.yaml")
    assert toy.run("source", "--run", "x", config, "run.seed=3", "--fresh", "source.value=0.25") == 0
    assert Artifact.open(tmp_path / "x", "source").table("values")["value"].to_pylist() == [0.25]


def test_a_damaged_checkpoint_is_skipped_and_an_update_s_last_save_is_the_newest(tmp_path: Path) -> None:
    """An update is saved again after an iteration without one: its state differs, its weights do not."""
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, "s", said.append)

    def latest() -> Any:
        found = checkpoints.latest()
        return found and found[1]

    def save(update: int, number: int) -> None:
        words = f"weights {update}"
        checkpoints.save(update, lambda f: (f / "w").write_text(words) and {}, {"number": number})
        assert latest() == {"number": number}

    assert latest() is None
    for number, update in enumerate((1, 2, *[3] * 12)):
        save(update, number)
    folders = sorted(checkpoints.folder.iterdir())
    assert [folder.name[:14] for folder in folders] == ["u00000003-0010", "u00000003-0011"]
    (folders[1] / "w").write_text("weights 4")
    assert latest() == {"number": 12}
    assert "checkpoint skipped" in said[0]
    save(3, 99)
    assert len(list(checkpoints.folder.iterdir())) == 2
    assert not folders[1].exists()


def test_what_was_never_committed_leaves_its_room_to_the_next_save(tmp_path: Path) -> None:
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, "s", said.append)

    def full(folder: Path) -> Any:
        (folder / "w").write_text("half of it")
        raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(1, full, {})
    assert list(checkpoints.folder.iterdir()) == []
    kept = checkpoints.save(1, lambda folder: (folder / "w").write_text("all") and {}, {})
    killed = checkpoints.folder / "u00000002-0000-00000000"
    killed.mkdir()
    assert checkpoints.latest() == (kept, {})
    assert not killed.exists()
    assert "was never committed" in said[0]


def test_what_a_writer_vouches_for_is_not_read_again_and_a_flipped_byte_of_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return file_sha256(path)

    def write(folder: Path) -> dict[str, dict[str, Any]]:
        for name in ("a", "b", "c"):
            (folder / name).write_text(f"part {name}")
        return {name: made_durable(folder / name) for name in ("a", "b")}

    monkeypatch.setattr("pipeline.artifacts.disk.file_sha256", counted)
    checkpoints = Checkpoints(tmp_path, "s", print)
    earlier = checkpoints.save(1, write, {"number": 1})
    folder = checkpoints.save(2, write, {"number": 2})
    assert sorted(hashed) == sorted(["a", "b", "c"] * 2)
    hashed.clear()
    assert checkpoints.latest() == (folder, {"number": 2})
    assert sorted(hashed) == ["a", "b", "c"]
    (folder / "b").write_text("part d")
    assert checkpoints.latest() == (earlier, {"number": 1})


def test_a_stage_s_files_are_compared_once_and_a_flipped_byte_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(start: Start[Any]) -> None:
        for name in ("a", "b", "c"):
            path = start.output(f"policy/{name}")
            path.write_text(f"weights {name}")
        start.finish(done=1)

    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return file_sha256(path)

    run(toy.stage_of("s", [["a"]], make))
    monkeypatch.setattr("pipeline.artifacts.disk.file_sha256", counted)
    artifact = Artifact.open(tmp_path / "r", "s")
    for _ in range(2):
        artifact.path("policy")
    assert sorted(hashed) == ["a", "b", "c"]
    (artifact.folder / "policy" / "b").write_text("weights B")
    with pytest.raises(ArtifactError, match=r"policy/b: damaged \(SHA-256 differs\).*--repair"):
        Artifact.open(tmp_path / "r", "s").path("policy")


def test_output_names_of_the_runner_are_refused_and_unwritten_ones_noticed(run: Run) -> None:
    def make(start: Start[Any]) -> None:
        for name in ("manifest.json", "shards/x", "_lock", ".hidden"):
            with pytest.raises(ValueError, match="belong to the runner"):
                start.output(name)
        with pytest.raises(ArtifactError):
            start.output("../x")
        start.output("policy")
        start.finish(done=1)

    run(toy.stage_of("s", [["a"]], make), code=1, words=["'policy' was asked for and not written"])


def test_a_file_is_published_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: Any) -> None:
        raise OSError(errno.EPERM, "links are missing here")

    for name in ("m", "n"):
        assert publish_once(tmp_path / name, sealed({"a": 1}), "x")
        assert not publish_once(tmp_path / name, sealed({"a": 2}), "x")
        assert unsealed(tmp_path / name) == {"a": 1}
        monkeypatch.setattr("os.link", no_links)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "n"]


def test_metrics_read_back_as_one_history_and_never_raise(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    warnings: list[str] = []
    for start, updates in ((0, (0, 1, 2, 3)), (1, (2, 3, 3, 4))):
        metrics = Metrics(path, start, warnings.append)
        for update in updates:
            metrics.write({"update": update, "loss": float("nan") if update == 4 else start})
    with path.open("a") as file:
        file.write('{"update": 5, "lo')
    lines = read_metrics(path)
    kept = [(line["update"], line["start"]) for line in lines]
    assert kept == [(0, 0), (1, 0), (2, 1), (3, 1), (3, 1), (4, 1)]
    assert lines[-1]["loss"] != lines[-1]["loss"]
    full = Metrics(Path("/dev/full"), 0, warnings.append)
    full.write({"update": 1})
    full.write({"update": 2, "odd": object()})
    assert len(warnings) == 1


def loses_a_worker(at: Sequence[int], how: str) -> Any:
    """Returns a stage of two shards; at its n-th start it loses a worker before shard `at[n]`."""

    def make(start: Start[Any]) -> None:
        for shard in start.shards.to_do():
            if shard.index == at[start.number]:
                worker = Worker("tests.pipeline.toy_worker", "w", env=ENVIRONMENT)
                worker.receive(60)  # that it is ready
                if how == "killed and told to stop":
                    os.kill(os.getpid(), signal.SIGTERM)
                if how == "failed":
                    worker.send(("exit", 1))
                else:
                    os.kill(worker.pid, signal.SIGKILL)
                worker.receive(60)
            start.shards.commit(shard.index, {}, done=1)
        start.finish()

    return toy.stage_of("s", [["a"], ["b"]], make)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("failed", 1, "w (process"), ("killed and told to stop", 75, "stopped early by SIGTERM")],
)
def test_only_a_worker_s_own_error_is_a_defect(how: str, code: int, said: str, run: Run) -> None:
    """A scheduler that ends both may do so as often as it likes."""
    for _ in range(4):
        run(loses_a_worker([0] * 4, how), code=code, words=[said])


def test_a_third_start_that_loses_a_worker_at_the_same_place_ends_the_series(run: Run) -> None:
    """A scheduler starts a stage again after every 75, for ever if the worker dies each time."""
    stage = loses_a_worker([0, 0, 1, 1, 1, 1, -1], "killed")
    for code in (75, 75, 75, 75, 5, 75, 0):  # the third commits a shard; after the fifth somebody has looked
        said = "3 starts running lost a worker and committed nothing between" if code == 5 else ""
        run(stage, code=code, words=[said])
