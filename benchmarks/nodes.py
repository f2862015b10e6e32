"""Rollouts a second of several nodes at one stage, beside one process.

    python -m benchmarks.nodes  # about 25 minutes on two quiet CPU cores; needs ray (make setup-real-model)

The nodes are two of a Ray cluster on this machine, with a CPU each. `one process` is the stage's command
with one player of one thread, pinned to a core; `join` is two of it side by side with --join, as a Slurm
array starts them, each pinned to a core of its own; `ray` starts one on each node, where the system puts
it. Whole commands take turns, start-up included; ratios are between runs of one turn.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks._results import Criteria, Row, at_least, measured, ratios, spread
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact

CONFIG, RUN = "configs/demo.yaml", "nodes"
SETTINGS = (
    "engine.replicas=1",
    "rollouts.chain.feedback_free_draws=4",
    "rollouts.num_tasks=1700",
    "run.rollouts_per_shard=192",
)
"""A player for each process; minutes of work, in some three dozen shards."""

CRITERIA: Criteria = {
    "ray: at least 1.6 times the rollouts a second": at_least(1.6, "ray", "rollouts a second / one process"),
    "ray: the content of one process": at_least(1, "ray", "content of one process"),
    "join: the content of one process": at_least(1, "join", "content of one process"),
}


def run_of(variant: str) -> str:
    """Returns the run's name of a variant."""
    return f"{RUN}-{variant.replace(' ', '-')}"


def command(asked: Asked, variant: str, *words: str) -> list[str]:
    """Returns what makes the rollouts of a variant's run."""
    module = ["stages.nodes", "rollouts"] if variant == "ray" else ["stages.rollouts"]
    data_dir = f"run.data_dir={json.dumps(str(asked.data_dir))}"
    run = ["--run", run_of(variant)]
    return [sys.executable, "-m", *module, CONFIG, *run, *SETTINGS, *asked.settings, data_dir, *words]


def rate(asked: Asked, variant: str, address: str) -> float:
    """Returns the rollouts a second of a new run with the same inputs."""
    run = asked.data_dir / run_of(variant)
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    for stage in ("tasks", "sft"):
        (run / stage).symlink_to(asked.data_dir / RUN / stage, target_is_directory=True)
    environment = {**os.environ, "RAY_ADDRESS": address}
    words = [command(asked, variant)]
    if variant == "join":
        words = [command(asked, variant, "--join")] * 2
    began = time.perf_counter()
    at_work = [
        subprocess.Popen(pinned(each, None if variant == "ray" else core), cwd=ROOT, env=environment)
        for core, each in enumerate(words)
    ]
    if any(process.wait() for process in at_work):
        raise SystemExit(f"{variant}: a command failed")
    return Artifact.open(run, "rollouts").table("rollouts").num_rows / (time.perf_counter() - began)


def pinned(words: Sequence[str], core: int | None) -> list[str]:
    """Returns a command that has one of this process's cores alone; of any core with None."""
    if core is None:
        return list(words)
    return ["taskset", "--cpu-list", str(sorted(os.sched_getaffinity(0))[core]), *words]


def measure(asked: Asked) -> list[Row]:
    """Returns rollouts a second, their ratios, and whether the content is that of one process."""
    from ray.cluster_utils import Cluster

    make_stages(CONFIG, RUN, ("tasks", "sft"), asked.settings, asked.data_dir)
    os.environ |= {"RAY_worker_niceness": "0"}  # Ray's 15 would tell how busy the machine is
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    variants, repeats = ("one process", "join", "ray"), asked.options.repeats
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    try:
        for _ in range(repeats):
            for variant in variants:
                rates[variant].append(rate(asked, variant, cluster.address))
    finally:
        cluster.shutdown()
    made = {variant: Artifact.open(asked.data_dir / run_of(variant), "rollouts") for variant in variants}
    rows: list[Row] = []
    for variant in variants:
        figures = {
            "rollouts a second": spread(rates[variant]),
            "rollouts a second / one process": ratios(rates[variant], rates["one process"]),
        }
        writers = len(list((asked.data_dir / run_of(variant) / "rollouts" / "_ledger").iterdir()))
        same = made[variant].content_digest == made["one process"].content_digest
        rows += measured(variant, figures, repeats)
        rows += measured(
            variant, {"content of one process": float(same), "processes that played": writers}, 1
        )
    shards = len(ledger.read(made["ray"].folder)[0])
    return [
        *rows,
        *measured("ray", {"shards": shards, "rollouts": made["ray"].table("rollouts").num_rows}, 1),
    ]


BENCHMARK = Benchmark(
    "nodes",
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
        "run.rollouts_per_shard=64",
    ),
    options={"repeats": 3},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
