"""A stage trains over two nodes, of this machine: as on one, and whatever is lost ends it for both."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.lock import holder
from pipeline.processes.nodes import MEETING
from tests.stages.conftest import Lab, make_lab
from tests.stages.test_hangs import RANKS, SHORT
from tests.stages.test_nodes import cluster

__all__ = ["cluster"]  # a fixture

ROOT = Path(__file__).parents[2]
ONE_RANK = (*RANKS, *SHORT, "training.num_ranks=1", "run.patience=0.05")
Start = Callable[..., list[subprocess.Popen[bytes]]]

pytestmark = pytest.mark.slow


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands beside each other; kills them at last."""
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    started: list[subprocess.Popen[bytes]] = []

    def at_once(*commands: Sequence[str], **env: str) -> list[subprocess.Popen[bytes]]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", **env}
        for command in commands:
            words = [sys.executable, "-m", *command]
            started.append(subprocess.Popen(words, env=environment, cwd=ROOT))
        return started[-len(commands) :]

    yield at_once
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content digest of what two ranks of one node train."""
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    lab = make_lab(tmp_path_factory.mktemp("whole"))
    assert [lab.start("tasks"), lab.start("sft", *RANKS, *SHORT)] == [0, 0]
    return digest(lab)


def digest(lab: Lab) -> str:
    return str(lab.artifact("sft").manifest["content_digest"])


def last_end(lab: Lab) -> tuple[int, str]:
    """Returns code and message of the last start of sft."""
    record = max((lab.run_dir / "sft" / "logs").glob("start_*/exit.json"))
    ended: dict[str, Any] = json.loads(record.read_text())
    return ended["code"], ended["message"]


def updates(lab: Lab) -> int:
    path = lab.run_dir / "sft" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(1800)
def test_what_is_lost_on_either_node_ends_both_and_the_same_command_trains_as_one_node(
    empty: Lab, start: Start, whole: str
) -> None:
    """The checkpoint of each start lets the next one get further."""
    assert empty.start("tasks") == 0
    command = ("stages.sft", empty.config, "--nodes", "2", *ONE_RANK)
    faults = {
        "rank1.update:3=kill": r"DeepSpeed rank 1 on \S+ \(process \d+\) was killed by SIGKILL",
        "rank1.update:3=hang": r"DeepSpeed rank 1 on \S+ .* gave no sign of life for 30 s in update: waiting",
        "agent": r"DeepSpeed rank 1 on \S+, of the node \S+ \(process \d+\), was lost: its process has ended",
    }
    for fault, words in faults.items():
        before = updates(empty)
        processes = start(command, command, VDAPO_FAILPOINTS="" if fault == "agent" else fault)
        expected = [75, 75]
        if fault == "agent":
            while updates(empty) < before + 2:
                time.sleep(0.1)
                assert all(process.poll() is None for process in processes)
            lease = holder(empty.run_dir / "sft")
            assert lease is not None
            [(place, agent)] = [(i, p) for i, p in enumerate(processes) if p.pid != lease["pid"]]
            agent.kill()
            expected[place] = -9
        assert [process.wait(timeout=600) for process in processes] == expected, fault
        code, said = last_end(empty)
        assert code == 75
        assert re.search(words, said), said
    assert [process.wait(timeout=600) for process in start(command, command)] == [0, 0]
    assert not (empty.run_dir / "sft" / MEETING).exists()
    assert digest(empty) == whole  # to the bit


@pytest.mark.timeout(1200)
def test_deepspeeds_own_launcher_starts_a_stage_on_two_nodes(
    empty: Lab, start: Start, whole: str, tmp_path: Path
) -> None:
    """Without ssh, which is not here: on each node by hand, as pdsh would do it."""
    assert empty.start("tasks") == 0
    hosts = tmp_path / "hosts"
    hosts.write_text("first slots=2\nsecond slots=2\n")  # two processes each, one of which ends at once
    launcher = [
        "deepspeed.launcher.runner",
        "--hostfile",
        str(hosts),
        "--no_ssh",
        "--master_addr",
        "127.0.0.1",
    ]
    command = ["--no_local_rank", "--module", "stages.sft", empty.config, "--nodes", "2", *ONE_RANK]
    processes = start(*([*launcher, "--node_rank", str(rank), *command] for rank in range(2)))
    assert [process.wait(timeout=900) for process in processes] == [0, 0]
    assert digest(empty) == whole


@pytest.mark.timeout(1200)
def test_a_ray_cluster_trains_on_all_of_its_nodes(empty: Lab, cluster: Any, whole: str) -> None:
    assert empty.start("tasks") == 0
    command = [sys.executable, "-m", "stages.nodes", "sft", empty.config, *ONE_RANK]
    driver = subprocess.Popen(command, env=cluster["environment"], cwd=ROOT)
    cluster["drivers"].append(driver)
    assert driver.wait(timeout=900) == 0
    assert digest(empty) == whole
    logs = empty.run_dir / "sft" / "logs" / "start_000"
    assert {path.name[:16] for path in logs.glob("DeepSpeed-*")} == {"DeepSpeed-rank-0", "DeepSpeed-rank-1"}
