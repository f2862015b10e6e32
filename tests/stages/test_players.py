import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.commit import Shards
from pipeline.processes.pool import Pool
from pipeline.processes.worker import Worker
from pipeline.runs import MAIN_CHAIN
from stages.wiring import sft_data
from stages.wiring.demonstrator import Lesson, play_lesson


@pytest.mark.parametrize(
    "replicas", [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.soak)]
)
def test_rollouts_do_not_depend_on_the_number_of_processes(chain: Any, tmp_path: Path, replicas: int) -> None:
    """Token ids, log-probabilities, order and counts; the chain was made in one process."""
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("rollouts", f"engine.replicas={replicas}") == 0
    assert lab.played("rollouts") == chain.played("rollouts")
    logs = (lab.run_dir / "rollouts" / "logs" / "start_000").glob("player-*.log")
    assert len(list(logs)) == replicas


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["labels", "critic_report", "actor", "evaluation"])
def test_no_stage_depends_on_the_number_of_processes(chain: Any, tmp_path: Path, stage: str) -> None:
    """The actor's weights follow from its rollouts, and reach the processes in every iteration."""
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[: MAIN_CHAIN.index(stage)])
    assert lab.start(stage, "engine.replicas=2") == 0
    assert lab.played(stage) == chain.played(stage)
    assert lab.artifact(stage).content_digest == chain.artifact(stage).content_digest


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_its_rollouts_are_the_same(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []
    killed: list[int] = []
    hire, item_done = Pool._hire, Shards.item_done

    def noting(self: Pool) -> Any:
        desk = hire(self)
        started.append(desk.worker)
        return desk

    def killing(self: Shards, number: int = 1) -> None:
        item_done(self, number)
        if number and not killed:
            killed.append(started[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(Pool, "_hire", noting)
    monkeypatch.setattr(Shards, "item_done", killing)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("rollouts", "engine.replicas=2") == 0
    assert len(started) == 3
    assert lab.played("rollouts") == chain.played("rollouts")


def test_demonstrations_do_not_depend_on_how_many_processes_play_them(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, train = chain.begun("sft", "sft.num_demonstrations=10"), list(chain.tasks().values())[:4]
    start.log_folder = tmp_path
    monkeypatch.setattr(sft_data, "LESSON", 4)
    monkeypatch.setattr(sft_data, "num_processes", lambda: 3)
    played, lost = sft_data.play_demonstrations(start, train)
    assert not lost
    assert played == play_lesson(Lesson(start.config, start.seed, 0, tuple((train * 3)[:10])), lambda: None)
    assert len(list(tmp_path.glob("demonstrator-*.log"))) == 3
