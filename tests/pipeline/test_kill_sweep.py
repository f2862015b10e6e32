"""Every failpoint of the runner: fail there, run again, compare with a run that nothing disturbed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
POINTS = {
    "start",
    "lock_taken",
    "plan_written",
    "item_done",
    "shard.before_write",
    "shard.after_write",
    "shard.after_fsync",
    "shard.after_rename",
    "shard.after_ledger",
    "checkpoint.before",
    "checkpoint.mid",
    "checkpoint.after_files",
    "checkpoint.commit.temporary",
    "checkpoint.commit.published",
    "checkpoint.after_commit",
    "merge.before",
    "merge.after",
    "report_written",
    "manifest.temporary",
    "manifest.published",
    "exit",
}


def forks(cases: list[list[Any]]) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, str(HERE / "toy.py"), "forks"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=True,
    )
    return json.loads(answer.stdout)


def config(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "c.yaml").write_text(f"run: {{data_dir: {folder}}}\n")
    return str(folder / "c.yaml")


def facts(stage: Path) -> dict[str, Any]:
    """What must be equal however often the stage was stopped: rows, bytes, digests, and no litter."""
    manifest = json.loads((stage / "manifest.json").read_text())
    files = {f["path"]: f["sha256"] for f in manifest["files"] if f["kind"] != "volatile"}
    litter = sorted(
        str(p.relative_to(stage)) for p in stage.rglob("*") if ".tmp" in p.name or p.name.startswith("part-")
    )
    return {
        "content": manifest["content_digest"],
        "counts": manifest["counts"],
        "tables": manifest["tables"],
        "files": files,
        "litter": litter,
        "top": sorted(p.name for p in stage.iterdir()),
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Counter[str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    log = folder / "points.log"
    argv = [config(folder)]
    codes = forks([[{}, "source", argv], [{"VDAPO_FAILPOINTS_LOG": str(log)}, "toy", argv]])
    assert codes == [0, 0]
    return folder, facts(folder / "r" / "toy"), Counter(log.read_text().split())


def test_every_declared_point_is_passed_and_no_other(
    undisturbed: tuple[Path, dict[str, Any], Counter[str]],
) -> None:
    assert set(undisturbed[2]) == {f"toy.{name}" for name in POINTS}


def test_a_run_that_failed_at_any_point_ends_like_an_undisturbed_one(
    undisturbed: tuple[Path, dict[str, Any], Counter[str]], tmp_path: Path
) -> None:
    source, expected, hits = undisturbed
    cases = []
    for name, number in sorted(hits.items()):
        cases += [(name, nth, "kill", -9) for nth in sorted({1, number})]
        cases.append((name, 1, "enospc", 74))
    cases += [
        (f"toy.{name}", 2, "raise", 1) for name in ("item_done", "shard.after_rename", "checkpoint.mid")
    ]
    runs, folders = [], []
    for index, (name, nth, action, _) in enumerate(cases):
        folder = tmp_path / str(index)
        argv = [config(folder)]
        shutil.copytree(source / "r" / "source", folder / "r" / "source")
        folders.append(folder)
        runs += [[{"VDAPO_FAILPOINTS": f"{name}:{nth}={action}"}, "toy", argv], [{}, "toy", argv]]
    codes = forks(runs)
    for index, (case, folder) in enumerate(zip(cases, folders, strict=True)):
        assert codes[2 * index : 2 * index + 2] == [case[3], 0], case
        assert facts(folder / "r" / "toy") == expected, case
