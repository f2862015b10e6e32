"""Several nodes at one stage: whatever their number and whoever dies, the tables are those of one process."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import process_start
from pipeline.artifacts.lock import Lock, holder, players
from pipeline.artifacts.manifest import NAME
from pipeline.runs import MAIN_CHAIN
from stages import nodes
from tests.pipeline.test_kill_sweep import facts
from tests.stages.test_kills import ROOT, SCRIPTED, WHOLE, Forks, forks, kill_at, log_of, passed, undisturbed

__all__ = ["forks", "undisturbed"]  # fixtures


def begun(chain: Any, forks: Forks, folder: Path, stage: str, *settings: str) -> Any:
    """Returns a lab in which a stage is planned, and nothing of it made."""
    lab = chain.copy(folder, *MAIN_CHAIN[: MAIN_CHAIN.index(stage)])
    assert forks(lab, stage, kill_at(f"{stage}.plan_written:1"), options=settings) == [-9]
    return lab


@pytest.mark.slow
def test_what_helpers_made_before_they_died_counts_once(
    chain: Any, forks: Forks, undisturbed: Any, tmp_path: Path
) -> None:
    lab = begun(chain, forks, tmp_path / "lab", "rollouts", SCRIPTED)
    folder, join = lab.run_dir / "rollouts", [SCRIPTED, "--join"]
    lead = Lock(folder)
    try:
        for point in ("item_done:5", "shard.after_rename:1", "shard.after_ledger:1"):
            assert forks(lab, "rollouts", kill_at(f"rollouts.{point}"), options=join) == [-9]
        assert len(ledger.read(folder)[0]) == 1
        assert forks(lab, "rollouts", kill_at("rollouts.helped:1"), options=join) == [-9]
    finally:
        lead.release()
    assert len(list((folder / "_ledger").iterdir())) == 2
    assert not (folder / NAME).exists()
    assert forks(lab, "rollouts", log_of(lab), options=join) == [0]
    assert not passed(lab)["rollouts.shard.before_write"]
    assert facts(folder) == undisturbed["facts"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["labels", "critic_report", "evaluation"])
def test_each_stage_that_samples_may_have_help(chain: Any, forks: Forks, tmp_path: Path, stage: str) -> None:
    """With a model: a helper plays all, and whoever leads measures and merges."""
    lab = begun(chain, forks, tmp_path / "lab", stage)
    lead = Lock(lab.run_dir / stage)
    try:
        assert forks(lab, stage, kill_at(f"{stage}.helped:1"), options=["--join"]) == [-9]
    finally:
        lead.release()
    assert not (lab.run_dir / stage / NAME).exists()
    assert forks(lab, stage, log_of(lab)) == [0]
    assert not passed(lab)[f"{stage}.shard.before_write"]
    assert facts(lab.run_dir / stage) == facts(chain.run_dir / stage)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_processes_at_once_with_random_kills(
    chain: Any, forks: Forks, undisturbed: Any, tmp_path: Path, seed: int
) -> None:
    rng, second = random.Random(seed), Forks()
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    options = [SCRIPTED, "--join"]

    def start(server: Forks, kill_after: float | None = None) -> int:
        return server(lab, "rollouts", WHOLE, options=options, kill_after=kill_after)[0]

    try:
        with ThreadPoolExecutor(2) as threads:
            for _ in range(4):
                moments = [rng.uniform(0, undisturbed["seconds"]) for _ in range(2)]
                assert set(threads.map(start, (forks, second), moments)) <= {0, -9}
            assert list(threads.map(start, (forks, second))) == [0, 0]
    finally:
        second.close()
    assert facts(lab.run_dir / "rollouts") == undisturbed["facts"]


LONGER = ("rollouts.chain.draws=8", "run.rollouts_per_shard=16")
"""Some dozens of shards, so that all nodes are at work when one is killed."""


@pytest.fixture
def cluster() -> Iterator[Any]:
    if find_spec("ray") is None:
        pytest.skip("make setup-real-model installs ray")
    # What has lost the head gives up after 5 s, not a minute; what Ray starts is as urgent as the tests.
    options = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_worker_niceness": "0"}
    environment = {**os.environ, **options, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=ROOT, text=True) as server:
        assert server.stdout is not None
        found = json.loads(server.stdout.readline())
        drivers: list[subprocess.Popen[bytes]] = []
        environment["RAY_ADDRESS"] = found["address"]
        yield {"environment": environment, "nodes": found["nodes"], "drivers": drivers}
        for driver in drivers:
            driver.kill()
            driver.wait()
        server.kill()  # it would miss those that are dead
        for pid in [pid for pids in found["nodes"] for pid in pids]:
            kill(pid)


def nodes_at(cluster: Any, lab: Any) -> subprocess.Popen[bytes]:
    """Returns the driver of a stage on all nodes, at work."""
    command = [sys.executable, "-m", "stages.nodes", "rollouts", lab.config, *LONGER]
    driver = subprocess.Popen(command, env=cluster["environment"], cwd=ROOT)
    cluster["drivers"].append(driver)
    return driver


def wait_for(condition: Callable[[], Any], seconds: float = 900) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def descent(pid: int) -> list[int]:
    """Returns a process and those that it descends from, the nearest first."""
    found = []
    while pid > 1:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def at_work(lab: Any) -> set[int]:
    """Returns the ids of the processes that play shards or hold the stage."""
    folder = lab.run_dir / "rollouts"
    leases = [*players(folder), *filter(None, [holder(folder)])]
    return {lease["pid"] for lease in leases}


def two_at_work(lab: Any, shards: int) -> set[int]:
    """Returns those that play once they are two and more than so many shards are done."""

    def found() -> set[int]:
        pids = at_work(lab)
        return pids if len(pids) == 2 and len(ledger.read(lab.run_dir / "rollouts")[0]) > shards else set()

    return set(wait_for(found))


def kill_node(cluster: Any, pids: set[int], number: int) -> None:
    """Kills what runs on a node for a stage, and all of the node's own processes."""
    own, doomed = cluster["nodes"][number], []
    for pid in pids:
        line = descent(pid)
        if top := [place for place, each in enumerate(line) if each in own]:
            doomed += line[: top[0]]
    assert doomed
    for pid in [*own, *doomed]:
        kill(pid)


def test_without_ray_the_driver_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "find_spec", lambda name: None)
    assert nodes.main(["rollouts", "some.yaml"]) == 2
    assert "a Slurm array, which needs no Ray" in capsys.readouterr().err
    assert nodes.main(["--help"]) == 2
    assert "python -m stages.nodes rollouts CONFIG.yaml" in capsys.readouterr().err


def test_the_driver_knows_stages_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "find_spec", lambda name: object())
    for name in ("nothing", "settings"):
        assert nodes.main([name, "some.yaml"]) == 2
        assert f"got the stage '{name}'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(chain: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The longer rollouts as one process makes them that nothing disturbs: facts."""
    lab = chain.copy(tmp_path_factory.mktemp("whole"), "tasks", "sft")
    assert lab.start("rollouts", *LONGER) == 0
    return facts(lab.run_dir / "rollouts")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_ray_cluster_that_loses_its_driver_and_then_a_node_loses_no_rollout(
    chain: Any, whole: Any, cluster: Any, tmp_path: Path
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    folder = lab.run_dir / "rollouts"
    driver = nodes_at(cluster, lab)
    wait_for(lambda: len(ledger.read(folder)[0]) > 2)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    driver = nodes_at(cluster, lab)
    pids = two_at_work(lab, shards=len(ledger.read(folder)[0]))
    kill_node(cluster, pids, 1)
    assert driver.wait(timeout=900) == 0
    assert len(list((folder / "_ledger").iterdir())) > 1
    assert facts(folder) == whole


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_ray_cluster_that_loses_its_head_loses_no_rollout(
    chain: Any, whole: Any, cluster: Any, tmp_path: Path
) -> None:
    """The driver ends with an error, what still plays ends or finishes, and then the same command goes on."""
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    folder = lab.run_dir / "rollouts"
    driver = nodes_at(cluster, lab)
    pids = two_at_work(lab, shards=1)
    kill_node(cluster, pids, 0)
    assert driver.wait(timeout=900) != 0
    # By its process, not by its locks: what survives holds none between two shards, nor before it leads.
    wait_for(lambda: not any(map(process_start, pids)))
    assert lab.start("rollouts", *LONGER) == 0
    assert facts(folder) == whole
