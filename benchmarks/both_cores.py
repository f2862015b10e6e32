"""Rollouts a second of the demo: processes of one thread each, beside one engine in the stage.

    python -m benchmarks.both_cores  # about 10 minutes on two quiet CPU cores; needs the repository's history

`former` is the last code whose stages played in their own process, on the same policy, with its own
configs/demo.yaml: the setting that is to be beaten. `one engine` plays the same way with the code as it is:
with two threads, a shard after the other. `processes` is the stage as it is, one process for every usable
core; `one process` has a single one. `side by side` is two of these stages at once, each of one process,
that share nothing: what the machine's second core can add. Whole commands take turns, start-up included;
ratios are between runs of one turn.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._results import Criteria, Row, at_least, measured, ratios, spread
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact

CONFIG, RUN = "configs/demo.yaml", "both-cores"
THREADS = 2
"""Of the one engine: `training.threads` of the demo, which was the engine's too."""

FORMER, FORMER_COMMIT = "former", "e435546"

COMMANDS = {
    FORMER: (["stages.rollouts"], []),
    "one-engine": (["benchmarks.both_cores", "--stage"], []),
    "processes": (["stages.rollouts"], []),
    "one-process": (["stages.rollouts"], ["engine.replicas=1"]),
}
"""Variant -> the module and its first words, and settings."""

CRITERIA: Criteria = {
    "processes: at least 1.9 times the rollouts a second": at_least(
        1.9, "processes", "rollouts a second / former"
    ),
    "processes: the rollouts of a single one": lambda t: t("processes", "rollouts of one process") == 1,
}


def one_engine(argv: Sequence[str]) -> int:
    """Runs the rollouts stage with its engine in this process; returns its exit code."""
    import torch

    import stages.bodies.rollouts as body
    from env.play.team import Here
    from pipeline.runner import run_stage
    from stages.rollouts import STAGE
    from stages.settings import Config
    from stages.wiring.player import Seat

    torch.set_num_threads(THREADS)
    seat = Seat()
    body.make_hands = lambda *_: Here(seat.player, seat.close, in_parts=False)
    return run_stage(STAGE, Config, argv)


def started(asked: Asked, name: str) -> subprocess.Popen[bytes]:
    """Returns a command at work that makes the rollouts of a new run with the same inputs."""
    words, settings = COMMANDS[name.partition(".")[0]]
    tree, source = (former_tree(asked), f"{RUN}-of-former") if name == FORMER else (ROOT, RUN)
    run = asked.data_dir / f"{RUN}-{name}"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    for stage in ("tasks", "sft"):
        (run / stage).symlink_to(asked.data_dir / source / stage, target_is_directory=True)
    return subprocess.Popen(command(asked, words, run.name, settings), cwd=tree, stderr=subprocess.DEVNULL)


def command(asked: Asked, words: Sequence[str], run: str, settings: Sequence[str]) -> list[str]:
    """Returns a stage's command; the tree in which it starts says which code it runs."""
    data_dir = f"run.data_dir={json.dumps(str(asked.data_dir))}"
    return [sys.executable, "-m", *words, CONFIG, "--run", run, *asked.settings, data_dir, *settings]


def former_tree(asked: Asked) -> Path:
    """Returns the folder of the former code."""
    tree = asked.data_dir / "former-code"
    if not tree.exists():
        code = subprocess.run(["git", "archive", FORMER_COMMIT], cwd=ROOT, check=True, capture_output=True)
        tree.mkdir()
        subprocess.run(["tar", "-x", "-C", str(tree)], input=code.stdout, check=True)
    return tree


def make_former_inputs(asked: Asked) -> None:
    """Makes tasks and starting policy in the former layout: the policy is a copy of the present one."""
    policy = json.dumps(str(asked.data_dir / RUN / "sft" / "policy"))
    for stage, settings in (("tasks", []), ("sft", [f"sft.base={policy}", "sft.num_updates=0"])):
        words = command(asked, [f"stages.{stage}"], f"{RUN}-of-former", settings)
        subprocess.run(words, cwd=former_tree(asked), check=True)


def made(asked: Asked, name: str, table: str) -> pa.Table:
    """Returns a table of the run of that name."""
    run = asked.data_dir / f"{RUN}-{name}"
    if name == FORMER:  # in a layout that `Artifact` refuses
        return pq.read_table(run / "rollouts" / f"{table}.parquet")
    return Artifact.open(run, "rollouts").table(table)


def rate(asked: Asked, *names: str) -> float:
    """Returns the rollouts a second of stages that work side by side."""
    began = time.perf_counter()
    at_work = [started(asked, name) for name in names]
    if any(process.wait() for process in at_work):
        raise SystemExit(f"{names}: a stage failed")
    return sum(made(asked, name, "rollouts").num_rows for name in names) / (time.perf_counter() - began)


def measure(asked: Asked) -> list[Row]:
    """Returns rollouts a second, their ratios, and whether one process makes the same tables."""
    make_stages(CONFIG, RUN, ("tasks", "sft"), asked.settings, asked.data_dir)
    make_former_inputs(asked)
    variants = {name: (name,) for name in COMMANDS} | {"side by side": ("one-process.1", "one-process.2")}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(asked.options.repeats):
        for variant, names in variants.items():
            rates[variant].append(rate(asked, *names))
    repeats = asked.options.repeats
    rows = [
        row for name in rates for row in measured(name, {"rollouts a second": spread(rates[name])}, repeats)
    ]
    for variant, base in (
        ("processes", FORMER),
        ("processes", "one-engine"),
        ("processes", "one-process"),
        ("side by side", "one-process"),
    ):
        figure = {f"rollouts a second / {base}": ratios(rates[variant], rates[base])}
        rows += measured(variant, figure, repeats)
    same = all(
        made(asked, "processes", table) == made(asked, "one-process", table)
        for table in ("rollouts", "steps")
    )
    return rows + measured("processes", {"rollouts of one process": float(same)}, 1)


BENCHMARK = Benchmark(
    "both_cores",
    __doc__,
    measure,
    CRITERIA,
    quick=(
        "tasks.num_companies=40",
        "tasks.num_train=200",
        "tasks.level_shares={1: 1.0}",
        "sft.num_updates=20",
        "sft.practice_tasks=0",
        "sft.num_demonstrations=200",
    ),
    options={"repeats": 2},
)

if __name__ == "__main__":
    sys.exit(one_engine(sys.argv[2:]) if sys.argv[1:2] == ["--stage"] else main(BENCHMARK))
