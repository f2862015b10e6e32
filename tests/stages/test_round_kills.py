"""A round that is killed anywhere serves what was served before, or what was promoted, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.artifacts.lock import Lock
from pipeline.artifacts.signals import StopRequested
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ExitCode
from pipeline.runner import run_stage
from pipeline.served import POINTER, served_policy
from stages.settings import Config
from stages.wiring.rounds import play_round
from tests.stages import toy_rounds

ROOT = Path(__file__).parents[2]


class Rounds:
    """Rounds of toy stages, each in a process of its own."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.server = subprocess.Popen(
            [sys.executable, toy_rounds.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def __call__(self, folder: Path, decision: str, environment: dict[str, str] | None = None) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps([environment or {}, str(folder), decision]) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


@pytest.fixture(scope="module")
def rounds() -> Any:
    made = Rounds()
    yield made
    made.server.communicate(timeout=60)


def begun(folder: Path) -> Path:
    toy_rounds.begin(folder)
    return folder


def serves(folder: Path) -> str:
    """Returns what the served policy holds, verified as whoever serves it would."""
    return (served_policy(folder / "r")[1] / "weights").read_text()


def test_the_pointer_follows_the_decisions(rounds: Rounds, tmp_path: Path) -> None:
    folder = begun(tmp_path / "lab")
    with pytest.raises(ArtifactError, match="no round has begun"):
        serves(folder)
    served = []
    for decision in ("continue", "promote", "roll_back"):
        assert rounds(folder, decision) == 0
        served.append(serves(folder))
    assert served == ["r actor", "002 stored", "002 stored"]
    files = (folder / "r" / "rounds" / f"{number:03d}.yaml" for number in (1, 2, 3))
    bases = [yaml.safe_load(file.read_text())["sft"]["base"] for file in files]
    begin = ("actor/actor", "actor/actor", "rounds/002/stored/policy")
    assert bases == [str(folder / "r" / of) for of in begin]


def test_what_is_damaged_or_was_taken_back_is_not_served_and_settled_by_the_next_round(
    rounds: Rounds, tmp_path: Path
) -> None:
    folder = begun(tmp_path / "lab")
    assert rounds(folder, "promote") == 0
    weights, pointer = folder / "r/rounds/001/stored/policy/weights", folder / "r" / "rounds" / POINTER
    weights.write_text("another!!!")
    with pytest.raises(ArtifactError, match="damaged"):
        serves(folder)
    weights.write_text("001 stored")
    whole = pointer.read_bytes()
    for data in (b"", b"{}", whole[:50], whole.replace(b"001", b"002"), b"\0" * len(whole)):
        pointer.write_bytes(data)
        with pytest.raises(ArtifactError, match="damaged"):
            serves(folder)
    assert rounds(folder, "roll_back") == 0
    assert serves(folder) == "001 stored"
    (folder / "r/rounds/001/promotion").rename(folder / "r/rounds/001/_promotion")
    with pytest.raises(ArtifactError, match="never promoted"):
        serves(folder)
    assert rounds(folder, "continue") == 0
    assert serves(folder) == "r actor"


def test_another_policy_of_the_run_s_own_is_not_served_once_rounds_were_held_against_one(
    rounds: Rounds, tmp_path: Path
) -> None:
    folder = begun(tmp_path / "lab")
    assert rounds(folder, "continue") == 0
    remade = folder / "r" / "actor"
    remade.rename(folder / "r" / "_old_actor")
    config = folder / "r.yaml"
    assert run_stage(toy_rounds.fake("actor", weights="others"), Config, [str(config)]) == 0
    with pytest.raises(ArtifactError, match="was never promoted"):
        serves(folder)
    assert rounds(folder, "roll_back") == ExitCode.ARTIFACT
    with pytest.raises(ArtifactError, match="was never promoted"):
        serves(folder)
    shutil.rmtree(remade)
    (folder / "r" / "_old_actor").rename(remade)
    config.write_text(
        config.read_text() + "stored: {objective: {kind: likelihood}}\nevaluation: {of: stored}\n"
    )
    assert run_stage(toy_rounds.fake("stored"), Config, [str(config)]) == 0
    assert rounds(folder, "roll_back") == ExitCode.ARTIFACT
    assert serves(folder) == "r actor"


def test_a_round_whose_items_failed_names_what_repairs_them(tmp_path: Path) -> None:
    folder = begun(tmp_path / "lab")
    config = load_config(Config, folder / "r.yaml")

    def finish(stage: str, file: Path) -> int:
        return 5 if stage == "rollouts" else run_stage(toy_rounds.fake(stage), Config, [str(file)])

    with pytest.raises(
        ArtifactError, match=r"make rollouts CONFIG=\S*001\.yaml SET=--repair, then the same"
    ) as failed:
        play_round(config, finish=finish)
    assert failed.value.code == ExitCode.FAILED_ITEMS


def test_two_rounds_at_once_are_one(rounds: Rounds, tmp_path: Path) -> None:
    folder = begun(tmp_path / "lab")
    (folder / "r" / "rounds").mkdir()
    lock = Lock(folder / "r" / "rounds")
    assert rounds(folder, "promote") == 73
    lock.release()
    assert rounds(folder, "promote") == 0


def test_an_abandoned_round_is_no_base_of_a_later_one(rounds: Rounds, tmp_path: Path) -> None:
    folder = begun(tmp_path / "lab")
    assert rounds(folder, "promote", {"VDAPO_FAILPOINTS": "promotion.start:1=kill"}) == -9
    assert toy_rounds.one_round(folder, "promote", 2) == 0
    assert serves(folder) == "002 stored"
    assert "001/stored" not in (folder / "r/rounds/002.yaml").read_text()


def test_a_stop_that_comes_with_the_verdict_still_moves_the_pointer(tmp_path: Path) -> None:
    folder = begun(tmp_path / "lab")

    def stop() -> None:
        if (folder / "r/rounds/001/promotion/manifest.json").exists():
            raise StopRequested("SIGTERM")

    assert toy_rounds.one_round(folder, "promote", stop_if_asked=stop) == 0
    assert serves(folder) == "001 stored"


POINTERS = tuple(f"round.pointer.{name}" for name in ("before", "temporary", "swapped"))


@pytest.mark.parametrize(
    ("decision", "near"),
    [
        ("promote", r"manifest|pointer"),
        pytest.param("promote", "", marks=pytest.mark.slow),
        pytest.param("roll_back", r"manifest|exit", marks=pytest.mark.slow),
    ],
    ids=["promote", "promote-everywhere", "roll_back"],
)
def test_a_kill_at_any_point_serves_only_what_was_promoted_and_the_same_command_goes_on(
    rounds: Rounds, tmp_path: Path, decision: str, near: str
) -> None:
    """Round 2, killed once at every point of its promotion and after it; round 1 promoted its candidate.

    In the fast lane only near the verdict and the pointer.
    """
    first, log = begun(tmp_path / "first"), tmp_path / "points.log"
    assert rounds(first, "promote") == 0
    assert rounds(first, decision, {"VDAPO_FAILPOINTS": "promotion.start:1=kill"}) == -9
    whole = copied(first, tmp_path / "whole")
    assert rounds(whole, decision, {"VDAPO_FAILPOINTS_LOG": str(log)}) == 0
    hits = Counter(log.read_text().split())
    assert {name for name in hits if "pointer" in name} == set(POINTERS if decision == "promote" else ())
    points = [name for name in hits if name.startswith(("round.", "promotion."))]
    assert len(points) > 10
    after = "002 stored" if decision == "promote" else "001 stored"
    for index, point in enumerate(name for name in points if re.search(near, name)):
        folder = copied(first, tmp_path / str(index))
        assert rounds(folder, decision, {"VDAPO_FAILPOINTS": f"{point}:{hits[point]}=kill"}) == -9, point
        assert serves(folder) == (after if point == "round.pointer.swapped" else "001 stored"), point
        decided = (folder / "r/rounds/002/promotion/manifest.json").exists()
        # Undecided, the same round goes on; decided, the next start settles the pointer before anything else.
        killed = {"VDAPO_FAILPOINTS": "round.begun:1=kill"} if decided else {}
        assert rounds(folder, decision, killed) == (-9 if decided else 0), point
        assert serves(folder) == after, point
        assert not list((folder / "r" / "rounds").glob(".*.tmp"))


@pytest.mark.slow
def test_a_kill_in_any_stage_before_promotion_leaves_what_is_served(rounds: Rounds, tmp_path: Path) -> None:
    first, log = begun(tmp_path / "first"), tmp_path / "points.log"
    assert rounds(first, "promote") == 0
    whole = copied(first, tmp_path / "whole")
    assert rounds(whole, "promote", {"VDAPO_FAILPOINTS_LOG": str(log)}) == 0
    hits = Counter(log.read_text().split())
    points = [name for name in hits if not name.startswith(("round.", "promotion."))]
    assert {"rollouts", "replay", "stored", "evaluation"} <= {name.split(".")[0] for name in points}
    for index, point in enumerate(points):
        folder = copied(first, tmp_path / str(index))
        assert rounds(folder, "promote", {"VDAPO_FAILPOINTS": f"{point}:{hits[point]}=kill"}) == -9, point
        assert serves(folder) == "001 stored", point
        assert rounds(folder, "promote") == 0, point
        assert serves(folder) == "002 stored", point


def copied(source: Path, folder: Path) -> Path:
    """Returns a copy of a run that names its own folder where the other named itself."""
    shutil.copytree(source, folder)
    for path in [folder / "r.yaml", *(folder / "r" / "rounds").glob("*.yaml")]:
        path.write_text(path.read_text().replace(str(source), str(folder)))
    return folder
