"""Injected: what hangs, dies or finds the disk full; a clear end, and the same command goes on."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.processes.life import LIMIT, LIMITS
from tests.pipeline.test_kill_sweep import facts
from tests.stages.conftest import Lab
from tests.stages.test_kills import Forks


def ended(lab: Lab, stage: str, number: int) -> tuple[int, str, Path]:
    """Returns exit code and message of a start, and the folder of its logs."""
    folder = lab.run_dir / stage / "logs" / f"start_{number:03d}"
    record = json.loads((folder / "exit.json").read_text())
    return record["code"], record["message"], folder


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting with which whoever works and says nothing for 12 s hangs; to start they may take long."""
    for doing in LIMITS:
        monkeypatch.setitem(LIMITS, doing, 60 * LIMIT)
    return "run.patience=0.02"


@pytest.mark.parametrize(
    "how", [pytest.param("hang", marks=pytest.mark.slow), pytest.param("stop", marks=pytest.mark.soak)]
)
def test_a_player_that_hangs_ends_the_stage_and_the_same_command_plays_the_same(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: str, how: str
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    settings = ("engine.replicas=2", hasty)
    with monkeypatch.context() as patch:
        patch.setenv("VDAPO_FAILPOINTS", f"pool.job:2={how}")
        assert lab.start("rollouts", *settings) == 75
    code, said, logs = ended(lab, "rollouts", 0)
    assert code == 75
    assert "gave no sign of life for 12 s in its work: " in said
    assert "the same command again" in said
    log = next(path for path in logs.glob("player-*.log") if str(path) in said)
    assert ("stopped, last sign" in said) if how == "stop" else ("in failpoint" in log.read_text())
    assert lab.start("rollouts", *settings) == 0
    assert facts(lab.run_dir / "rollouts") == facts(chain.run_dir / "rollouts")


@pytest.mark.slow
def test_a_full_disk_at_a_checkpoint_is_said_so_and_the_same_command_trains_the_same(
    chain: Lab, tmp_path: Path
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks")
    full: dict[str, str] = {"VDAPO_FAILPOINTS": "sft.checkpoint.mid:2=enospc"}
    with closing(Forks()) as forks:
        assert forks(lab, "sft", full, {}) == [74, 0]
    code, said, _ = ended(lab, "sft", 0)
    assert code == 74
    assert "No space left on device" in said
    assert "MB free). Next: make room, then the same command goes on" in said
    assert facts(lab.run_dir / "sft") == facts(chain.run_dir / "sft")


RANKS = ("training.backend=deepspeed", "training.num_ranks=2", "training.threads=1")
SHORT = ("sft.num_updates=8", "sft.checkpoint_every=2", "sft.num_demonstrations=32")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ranks_that_hang_or_die_or_find_the_disk_full_end_the_stage_and_change_nothing(
    empty: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: str
) -> None:
    """Each start saves a checkpoint before its fault, so the next one gets further."""
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    assert empty.start("tasks") == 0
    whole = empty.copy(tmp_path / "whole", "tasks")
    settings = (*RANKS, *SHORT, hasty)
    faults = [
        ("rank1.update:3=hang", 75, "DeepSpeed rank 1 .* gave no sign of life for 12 s in update: waiting"),
        ("rank0.update:3=stop", 75, "DeepSpeed rank 0 .* gave no sign of life for 12 s in update: stopped"),
        ("rank1.update:3=kill", 75, "DeepSpeed rank 1 .* was killed by SIGKILL"),
        ("rank1.save:1=enospc", 74, "No space left on device .* Next: make room, then the same command"),
    ]
    for number, (fault, expected, words) in enumerate(faults):
        with monkeypatch.context() as patch:
            patch.setenv("VDAPO_FAILPOINTS", fault)
            assert empty.start("sft", *settings) == expected, fault
        code, said, logs = ended(empty, "sft", number)
        assert code == expected
        assert re.search(words, said), said
        assert {path.name for path in logs.glob("DeepSpeed*")} == {f"DeepSpeed-rank-{i}.log" for i in (0, 1)}
    assert empty.start("sft", *settings) == 0
    assert whole.start("sft", *settings) == 0
    manifests = [lab.artifact("sft").manifest for lab in (empty, whole)]
    assert len({manifest["content_digest"] for manifest in manifests}) == 1  # to the bit
    assert manifests[0]["counts"] == manifests[1]["counts"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_replica_of_vllm_that_stops_answering_ends_the_stage_and_the_same_command_goes_on(
    empty: Lab, monkeypatch: pytest.MonkeyPatch, hasty: str
) -> None:
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    assert [empty.start("tasks"), empty.start("sft", *SHORT)] == [0, 0]
    settings = ("engine.kind=vllm", hasty, "run.patience=0.05")  # it compiles in its first steps
    with monkeypatch.context() as patch:
        patch.setenv("VDAPO_FAILPOINTS", "replica.step:50=hang")
        assert empty.start("rollouts", *settings) == 75
    _, said, logs = ended(empty, "rollouts", 0)
    assert "vLLM replica 0 " in said
    assert "no sign of life for 30 s in generate: waiting, last sign after a step of the engine" in said
    assert "in failpoint" in (logs / "vLLM-replica-0.log").read_text()
    assert empty.start("rollouts", *settings) == 0
    assert len({rollout.task_id for rollout in empty.rollouts("rollouts")}) == 24
