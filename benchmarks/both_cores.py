"""Rollouts a second of the demo: processes of one thread each, beside one engine in the stage.

    python -m benchmarks.both_cores  # about 15 minutes on two quiet CPU cores

`one engine` plays as the demo did until now: in the stage's own process, with two threads, a shard after
the other. `processes` is the stage as it is, one process for every usable core. Whole commands take turns,
start-up included; ratios are between runs of one turn.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks._results import Criteria, Row, at_least, measured, ratios, spread
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact

CONFIG, RUN = "configs/demo.yaml", "both-cores"
THREADS = 2
"""Of the one engine: `training.threads` of the demo, which was the engine's too."""

CRITERIA: Criteria = {
    "processes: at least 1.9 times the rollouts a second": at_least(
        1.9, "processes", "rollouts a second / one engine"
    ),
    "processes: the rollouts of a single one": lambda t: t("processes", "rollouts of one process") == 1,
}


def one_engine(argv: Sequence[str]) -> int:
    """Runs the rollouts stage with its engine in this process; returns its exit code."""
    import torch

    import stages.bodies.rollouts as body
    from env.play.team import Here
    from pipeline.artifacts.runner import run_stage
    from stages.rollouts import STAGE
    from stages.settings import Config
    from stages.wiring.player import Seat

    torch.set_num_threads(THREADS)
    seat = Seat()
    body.make_hands = lambda *_: Here(seat.player, seat.close, in_parts=False)
    return run_stage(STAGE, Config, argv)


def seconds_of(asked: Asked, name: str, command: Sequence[str], *settings: str) -> float:
    """Returns how long a command takes that makes the rollouts of a new run with the same inputs."""
    run = asked.data_dir / f"{RUN}-{name}"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    for stage in ("tasks", "sft"):
        (run / stage).symlink_to(asked.data_dir / RUN / stage, target_is_directory=True)
    data_dir = f"run.data_dir={json.dumps(str(asked.data_dir))}"
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *command, CONFIG, "--run", run.name, *asked.settings, data_dir, *settings],
        check=True,
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def measure(asked: Asked) -> list[Row]:
    """Returns rollouts a second of both, their ratio, and whether one process makes the same tables."""
    make_stages(CONFIG, RUN, ("tasks", "sft"), asked.settings, asked.data_dir)
    commands = {
        "one engine": ["-m", "benchmarks.both_cores", "--stage"],
        "processes": ["-m", "stages.rollouts"],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(asked.options.repeats):
        for name, command in commands.items():
            seconds = seconds_of(asked, name.replace(" ", "-"), command)
            made = Artifact.open(asked.data_dir / f"{RUN}-{name.replace(' ', '-')}", "rollouts")
            rates[name].append(made.table("rollouts").num_rows / seconds)
    seconds_of(asked, "one-process", commands["processes"], "engine.replicas=1")
    several, single = (asked.data_dir / f"{RUN}-{name}" for name in ("processes", "one-process"))
    same = all(
        Artifact.open(several, "rollouts").table(table) == Artifact.open(single, "rollouts").table(table)
        for table in ("rollouts", "steps")
    )
    rows = [
        row
        for name in commands
        for row in measured(name, {"rollouts a second": spread(rates[name])}, asked.options.repeats)
    ]
    figures = {"rollouts a second / one engine": ratios(rates["processes"], rates["one engine"])}
    rows += measured("processes", figures, asked.options.repeats)
    return rows + measured("processes", {"rollouts of one process": float(same)}, 1)


BENCHMARK = Benchmark(
    "both_cores",
    __doc__,
    measure,
    CRITERIA,
    quick=(
        "tasks={num_companies: 40, num_train: 200, num_val: 20, num_test: 20, level_shares: {1: 1.0}}",
        "sft.num_updates=20",
        "sft.practice_tasks=0",
        "sft.num_demonstrations=200",
    ),
    options={"repeats": 5},
)

if __name__ == "__main__":
    sys.exit(one_engine(sys.argv[2:]) if sys.argv[1:2] == ["--stage"] else main(BENCHMARK))
