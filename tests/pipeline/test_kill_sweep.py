"""Every failpoint of the runner: fail there, run again, compare with a run that nothing disturbed."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import toy
from tests.pipeline.test_commit_protocol import POINTS as IN_ANY_STAGE

SCRIPT = Path(toy.__file__)
CHECKPOINT = ("before", "mid", "after_files", "after_commit", "commit.temporary", "commit.published")
POINTS = {*IN_ANY_STAGE, "item_done", *(f"checkpoint.{name}" for name in CHECKPOINT)}


def forks(cases: list[list[Any]]) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, SCRIPT, "forks"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=True,
    )
    return json.loads(answer.stdout)


def facts(stage: Path) -> dict[str, Any]:
    """What must be equal however often the stage was stopped: rows, bytes, digests, and no litter."""
    manifest = json.loads((stage / "manifest.json").read_text())
    files = {f["path"]: f["sha256"] for f in manifest["files"] if f["kind"] != "volatile"}
    litter = [p for p in stage.rglob("*") if ".tmp" in p.name or p.name.startswith("part-")]
    assert not litter
    return {
        "content": manifest["content_digest"],
        "counts": manifest["counts"],
        "tables": manifest["tables"],
        "files": files,
        "top": sorted(p.name for p in stage.iterdir()),
    }


@pytest.mark.slow
def test_a_run_that_failed_at_any_point_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    log, argv = tmp_path / "points.log", [toy.config_in(tmp_path)]
    assert forks([[{}, "source", argv], [{"VDAPO_FAILPOINTS_LOG": str(log)}, "toy", argv]]) == [0, 0]
    expected, hits = facts(tmp_path / "r" / "toy"), Counter(log.read_text().split())
    assert set(hits) == {f"toy.{name}" for name in POINTS}
    cases = [(f"toy.{name}", 2, "raise", 1) for name in ("item_done", "shard.after_rename", "checkpoint.mid")]
    for name, number in sorted(hits.items()):
        cases += [(name, number, "kill", -9), (name, 1, "enospc", 74)]
    runs, folders = [], []
    for index, (name, nth, action, _) in enumerate(cases):
        folders.append(tmp_path / str(index))
        argv = [toy.config_in(folders[-1])]
        shutil.copytree(tmp_path / "r" / "source", folders[-1] / "r" / "source")
        runs += [[{"VDAPO_FAILPOINTS": f"{name}:{nth}={action}"}, "toy", argv], [{}, "toy", argv]]
    codes = forks(runs)
    for index, (case, folder) in enumerate(zip(cases, folders, strict=True)):
        assert codes[2 * index : 2 * index + 2] == [case[3], 0], case
        assert facts(folder / "r" / "toy") == expected, case
