"""The Slurm scripts, with stand-ins for Slurm and for the stage: signals, codes, order."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.runs import MAIN_CHAIN
from stages.wiring import run_chain

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "configs" / "slurm"

STAGE = """#!/bin/bash
echo "$@" > "$OUT/asked"
trap 'echo told >> "$OUT/told"; exit 75' USR1
touch "$OUT/started"
if [ -n "$CODE" ]; then exit "$CODE"; fi
while :; do sleep 0.05; done
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name, text in {
        "python": STAGE,
        "scontrol": '#!/bin/bash\necho "$@" >> "$OUT/scontrol.log"\n',
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


def test_a_job_of_an_array_asks_for_itself_and_not_for_all(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm gives one of them the number of the array, which stands for all where it stands alone."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert start(out, "75").wait(timeout=30) == 75
    assert (out / "scontrol.log").read_text() == "requeue 17_0\n"


def test_nodes_of_one_job_all_get_the_command_and_are_told_to_stop(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = out / "srun"
    srun.write_text('#!/bin/bash\necho "$1 $2 $3" > "$OUT/srun.log"\nshift 3\nexec "$@"\n')
    srun.chmod(0o755)
    for name, value in {"SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "64"}.items():
        monkeypatch.setenv(name, value)
    job = start(out)
    while not (out / "started").exists():
        time.sleep(0.01)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=30) == 75
    assert (out / "srun.log").read_text() == "--ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1\n"
    assert (out / "asked").read_text() == "-m stages.actor some.yaml --nodes 2 --run mine run.seed=1\n"


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "4", "5", "73", "74"])
def test_only_an_early_stop_is_queued_again(out: Path, code: str) -> None:
    assert start(out, code).wait(timeout=30) == int(code)
    assert not (out / "scontrol.log").exists()


# All that the chain asks of Python: the run's folder and stages, whether a stage with a manifest is complete.
ASKED = """#!/bin/bash
if [ "$2" = stages.wiring.run_chain ]; then printf "$OUT/data/mine\\ntasks sft\\n"; exit 0; fi
echo "$2" >> "$OUT/looked_at"
stage=${2#stages.}
if [ -e "$OUT/data/mine/$stage/refuses" ]; then echo "$stage: other settings" >&2; exit 3; fi
"""
# A queue of lines "name id folder".
SQUEUE = """#!/bin/bash
for argument in "$@"; do case "$argument" in --name=*) name=${argument#--name=} ;; esac; done
touch "$OUT/queue"
while read -r queued id folder; do
  if [ "$queued" = "$name" ]; then echo "$id $folder"; fi
done < "$OUT/queue"
"""
SBATCH = """#!/bin/bash
echo "$@" >> "$OUT/sbatch.log"
if [ -e "$OUT/full" ] && [ "$(wc -l < "$OUT/sbatch.log")" -gt 1 ]; then echo "limit reached" >&2; exit 1; fi
id=$((100 + $(wc -l < "$OUT/sbatch.log")))
for argument in "$@"; do case "$argument" in --job-name=*) name=${argument#--job-name=} ;; esac; done
echo "$name $id $PWD" >> "$OUT/queue"
echo "$id;cluster"
"""


@pytest.fixture
def slurm(out: Path) -> Path:
    for name, text in {"python": ASKED, "squeue": SQUEUE, "sbatch": SBATCH}.items():
        (out / name).write_text(text)
        (out / name).chmod(0o755)
    return out


def chain(
    slurm: Path, *more: str, code: int = 0, stages: str = "tasks sft actor", args: str = ""
) -> list[str]:
    """Submits, and returns the lines that it printed."""
    command = ["bash", str(SLURM / "chain.sh"), "some.yaml", "--run", "mine", *more]
    asked = environment(slurm) | {"STAGES": stages, "SBATCH_ARGS": args}
    done = subprocess.run(command, env=asked, cwd=slurm, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return (done.stdout + done.stderr).splitlines()


def submitted(slurm: Path) -> list[str]:
    log = slurm / "sbatch.log"
    return log.read_text().splitlines() if log.exists() else []


def complete(slurm: Path, *stages: str) -> None:
    """Ends stages: each has its manifest, and its job is out of the queue."""
    for stage in stages:
        (slurm / "data" / "mine" / stage).mkdir(parents=True, exist_ok=True)
        (slurm / "data" / "mine" / stage / "manifest.json").touch()
    lines = (slurm / "queue").read_text().splitlines()
    left = [line for line in lines if line.split()[0].removeprefix("mine-") not in stages]
    (slurm / "queue").write_text("".join(f"{line}\n" for line in left))


def test_a_chain_waits_for_each_stage_before(slurm: Path) -> None:
    printed = chain(slurm, args="--partition=a100 --account=me")
    assert printed == ["tasks 101: submitted", "sft 102: submitted", "actor 103: submitted"]
    lines = submitted(slurm)
    assert [("--dependency=" in line) for line in lines] == [False, True, True]
    assert "--dependency=afterok:102" in lines[2]
    for line, stage in zip(lines, ("tasks", "sft", "actor"), strict=True):
        assert f"--job-name=mine-{stage} --partition=a100 --account=me" in line
        assert line.endswith(f"stage.sbatch {stage} some.yaml --run mine")


def test_a_chain_without_stages_of_its_own_is_what_the_evaluation_needs(slurm: Path) -> None:
    assert chain(slurm, stages="") == ["tasks 101: submitted", "sft 102: submitted"]


def test_a_chain_that_is_submitted_again_goes_on_where_it_stopped(slurm: Path) -> None:
    chain(slurm)
    jobs = ("tasks 101", "sft 102", "actor 103")
    queued = [f"{job}: queued or running already" for job in jobs]
    assert chain(slurm) == queued
    assert len(submitted(slurm)) == 3
    complete(slurm, "tasks")
    assert chain(slurm) == ["tasks: complete", *queued[1:]]
    # Slurm has lost the rest: what waited for a job that failed is cancelled with it.
    (slurm / "queue").write_text("")
    assert chain(slurm) == ["tasks: complete", "sft 104: submitted", "actor 105: submitted"]
    assert "--dependency" not in submitted(slurm)[3]
    assert "--dependency=afterok:104" in submitted(slurm)[4]
    complete(slurm, "sft", "actor")
    lines = chain(slurm)
    assert lines == [
        *(f"{s}: complete" for s in ("tasks", "sft", "actor")),
        f"all complete: {slurm}/data/mine",
    ]
    assert len(submitted(slurm)) == 5


def test_a_stage_waits_for_one_that_is_queued_already(slurm: Path) -> None:
    chain(slurm, stages="sft")
    assert chain(slurm, stages="sft actor")[1] == "actor 102: submitted"
    assert "--dependency=afterok:101" in submitted(slurm)[1]


def test_jobs_of_other_runs_and_folders_are_not_this_run_s(slurm: Path) -> None:
    (slurm / "queue").write_text(f"other-sft 7 {slurm}\nmine-sft 8 {slurm} copy\nmine-sft 9 /elsewhere\n")
    assert chain(slurm, stages="sft") == ["sft 101: submitted"]


def test_jobs_are_this_run_s_where_its_folder_is_known_by_a_symbolic_link(
    slurm: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(slurm, target_is_directory=True)
    (slurm / "queue").write_text(f"mine-sft 8 {slurm}\n")  # as sbatch, which asks the kernel where it is
    command = ["bash", str(SLURM / "chain.sh"), "some.yaml", "--run", "mine"]
    asked = environment(slurm) | {"STAGES": "sft", "PWD": str(link)}
    done = subprocess.run(command, env=asked, cwd=link, capture_output=True, text=True, check=True)
    assert done.stdout == "sft 8: queued or running already\n"


def test_a_queue_of_many_jobs_is_read_to_its_end(slurm: Path) -> None:
    lines = [f"mine-sft 9 {slurm}"] * 3000  # more than a pipe holds
    (slurm / "queue").write_text("\n".join([*lines, ""]))
    assert chain(slurm, stages="sft") == ["sft 9: queued or running already"]


def test_a_chain_that_a_full_queue_cut_short_is_completed_by_the_same_command(slurm: Path) -> None:
    (slurm / "full").touch()
    assert chain(slurm, code=1) == ["tasks 101: submitted", "limit reached"]
    (slurm / "full").unlink()
    assert chain(slurm)[0] == "tasks 101: queued or running already"
    assert [line.split("stage.sbatch ")[1].split()[0] for line in submitted(slurm)] == [
        *("tasks", "sft"),  # the second one was refused
        *("sft", "actor"),
    ]


def test_a_complete_stage_of_other_settings_ends_the_chain_with_what_it_says(slurm: Path) -> None:
    (slurm / "queue").touch()
    complete(slurm, "tasks", "sft")
    (slurm / "data" / "mine" / "sft" / "refuses").touch()
    assert chain(slurm, code=3) == ["tasks: complete", "sft: other settings"]
    assert submitted(slurm) == []
    # Behind a stage that is being made its inputs may yet be right.
    (slurm / "queue").write_text(f"mine-tasks 55 {slurm}\n")
    assert chain(slurm, stages="tasks sft")[1] == "sft 101: submitted"


@pytest.mark.parametrize("option", ["--fresh", "--repair"])
def test_what_begins_again_is_left_to_the_job(slurm: Path, option: str) -> None:
    (slurm / "queue").touch()
    complete(slurm, "tasks", "sft", "actor")
    assert chain(slurm, option, stages="sft") == ["sft 101: submitted"]
    assert not (slurm / "looked_at").exists()  # here it would begin at once
    assert submitted(slurm)[0].endswith(option)


def test_where_a_run_is_and_its_stages_follow_from_what_a_stage_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--run", "mine", str(SLURM.parent / "demo.yaml"), f"run.data_dir={tmp_path}", "--fresh"]
    assert run_chain.main(given) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mine'}\n{' '.join(MAIN_CHAIN)}\n"
    assert run_chain.main([*given, "evaluation.of=dpo", "stored.objective={kind: none}"]) == 0
    assert capsys.readouterr().out.split("\n")[1] == "tasks sft rollouts preferences dpo evaluation"
    assert run_chain.main([*given, "run.nonsense=1"]) == 2
    assert "run.nonsense" in capsys.readouterr().err


@pytest.mark.slow
def test_a_chain_leaves_out_a_stage_that_is_really_complete(slurm: Path) -> None:
    (slurm / "python").write_text(f'#!/bin/bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    few = ["run.data_dir=data", "tasks.num_train=8", "tasks.num_held_out=4", "tasks.num_companies=8"]
    command = ["bash", str(SLURM / "chain.sh"), str(SLURM.parent / "demo.yaml"), "--run", "mine", *few]
    stage = [str(slurm / "python"), "-m", "stages.tasks", *command[2:]]
    subprocess.run(stage, cwd=slurm, check=True, capture_output=True)
    asked = environment(slurm) | {"STAGES": "tasks"}
    for more, code, said in (
        ([], 0, "tasks: complete\nall complete: data/mine"),
        (["run.seed=1"], 3, "run.seed"),
    ):
        again = [*command, *more]
        done = subprocess.run(again, env=asked, cwd=slurm, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr
    assert submitted(slurm) == []


def test_a_chain_over_nodes_gives_them_to_the_stages_that_may_have_help(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODES", "3")
    chain(slurm, stages=" ".join(MAIN_CHAIN))
    lines = dict(zip(MAIN_CHAIN, submitted(slurm), strict=True))
    helped = {name for name in MAIN_CHAIN if importlib.import_module(f"stages.{name}").STAGE.may_have_help}
    assert helped == {"rollouts", "labels", "critic_report", "evaluation"}
    for name, line in lines.items():
        assert ("--array=0-2" in line, line.endswith("--join")) == (name in helped, name in helped)
    (slurm / "queue").write_text("")
    chain(slurm, "--fresh", stages="rollouts")  # which goes with no --join
    assert submitted(slurm)[-1].endswith("--run mine --fresh")
    assert "--array" not in submitted(slurm)[-1]
