"""The Slurm scripts, with stand-ins for Slurm and for the stage: signals, codes, order."""

import importlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.cli.runs import MAIN_CHAIN

SLURM = Path(__file__).parents[2] / "configs" / "slurm"

STAGE = """#!/bin/bash
echo "$@" > "$OUT/asked"
trap 'echo told >> "$OUT/told"; exit 75' USR1
touch "$OUT/started"
if [ -n "$CODE" ]; then exit "$CODE"; fi
while :; do sleep 0.05; done
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    number = 'echo "$(wc -l < "$OUT/sbatch.log");cluster"'
    for name, text in {
        "python": STAGE,
        "scontrol": '#!/bin/bash\necho "$@" >> "$OUT/scontrol.log"\n',
        "sbatch": f'#!/bin/bash\necho "$@" >> "$OUT/sbatch.log"\n{number}\n',
    }.items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def environment(out: Path, code: str = "") -> dict[str, str]:
    mine = {"OUT": str(out), "CODE": code, "PYTHON": str(out / "python"), "SLURM_JOB_ID": "17"}
    return {**os.environ, **mine, "PATH": f"{out}:{os.environ['PATH']}"}


def start(out: Path, code: str = "") -> subprocess.Popen[bytes]:
    command = ["bash", str(SLURM / "stage.sbatch"), "actor", "some.yaml", "--run", "mine", "run.seed=1"]
    return subprocess.Popen(command, env=environment(out, code))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_job_that_is_told_to_stop_tells_the_stage_and_asks_to_be_queued_again(
    out: Path, number: signal.Signals
) -> None:
    job = start(out)
    while not (out / "started").exists():
        time.sleep(0.01)
    job.send_signal(number)
    assert job.wait(timeout=30) == 75
    assert (out / "told").read_text() == "told\n"
    assert (out / "scontrol.log").read_text() == "requeue 17\n"
    assert (out / "asked").read_text() == "-m stages.actor some.yaml --run mine run.seed=1\n"


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "4", "5", "73", "74"])
def test_only_an_early_stop_is_queued_again(out: Path, code: str) -> None:
    assert start(out, code).wait(timeout=30) == int(code)
    assert not (out / "scontrol.log").exists()


def test_a_chain_waits_for_each_stage_before(out: Path) -> None:
    command = ["bash", str(SLURM / "chain.sh"), "some.yaml", "--run", "mine"]
    asked = environment(out) | {"STAGES": "tasks sft actor", "SBATCH_ARGS": "--partition=a100 --account=me"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tasks", "1", "sft", "2", "actor", "3"]
    lines = (out / "sbatch.log").read_text().splitlines()
    assert [("--dependency=" in line) for line in lines] == [False, True, True]
    assert "--dependency=afterok:2" in lines[2]
    for line, stage in zip(lines, ("tasks", "sft", "actor"), strict=True):
        assert "--partition=a100 --account=me" in line
        assert line.endswith(f"stage.sbatch {stage} some.yaml --run mine")


def test_a_chain_over_nodes_gives_them_to_the_stages_that_may_have_help(out: Path) -> None:
    command = ["bash", str(SLURM / "chain.sh"), "some.yaml"]
    subprocess.run(command, env=environment(out) | {"NODES": "3"}, check=True, stdout=subprocess.DEVNULL)
    lines = dict(zip(MAIN_CHAIN, (out / "sbatch.log").read_text().splitlines(), strict=True))
    helped = {name for name in MAIN_CHAIN if importlib.import_module(f"stages.{name}").STAGE.may_have_help}
    assert helped == {"rollouts", "labels", "critic_report", "evaluation"}
    for name, line in lines.items():
        assert ("--array=0-2" in line, line.endswith("--join")) == (name in helped, name in helped)
