"""Bytes that an actor's start, hand-off, checkpoint and resume hash, read and send, before and after 0070.

    python -m benchmarks.handoff

The stage itself runs at the commit before and as it is now: a tiny model, two DeepSpeed ranks on gloo, ZeRO
2, engine and trainer taking turns. Wrapped functions count (benchmarks/_counting.py), so a busy machine
changes no figure but the ratio of digests, whose pairs are taken in turns. Figures are multiples of the
model's fp32 bytes.

Seconds at 8B are arithmetic, no measurement: 33 GB times the multiple, over what one thread digests
(GB_PER_SECOND: one H100's host, decision 0059) and over as many threads as work side by side.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from benchmarks import _counting
from benchmarks._results import Criteria, Row, measured, ratios
from benchmarks._run import ROOT, Asked, Benchmark, in_turns, main, make_stages, timed

BEFORE = "20cffbf"
RANKS = 2
SETTINGS = (
    "tasks={num_companies: 12, num_train: 24, num_held_out: 8, level_shares: {1: 1.0}}",
    "sft={practice_tasks: 0, num_demonstrations: 64, num_updates: 20, shares: {oracle: 1.0}}",
    "stored.objective={kind: none}",
    "actor={num_iterations: 3, tasks_per_update: 4, updates_per_iteration: 1, max_refills: 0, "
    "checkpoint_every: 1, evaluate_tasks: 4, chain: {num_attempts: 1, draws: 4}, "
    "credit: {mode: grpo, kl: 0.0}, stops: false}",
    "engine={max_live: 64, replicas: 1}",
    "sampling.max_response_tokens=96",
)
TRAINING = f"training={{backend: deepspeed, num_ranks: {RANKS}, threads: 1, micro_batch_tokens: 4096}}"
GB_OF_8B, GB_PER_SECOND = 33.0, 0.65
THREADS = {  # that digest side by side at 8B: of a checkpoint one in each of 8 ranks
    "before": {"start": 1, "hand-off": 1, "checkpoint": 1, "resume": 1},
    "after": {"start": 16, "hand-off": 16, "checkpoint": 8, "resume": 16},
}


def tree_of(commit: str, folder: Path) -> Path:
    """Returns a folder with the files of a commit."""
    if not folder.is_dir():
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder


def run_counted(tree: Path, run_dir: Path, log: Path, settings: list[str], failpoint: str = "") -> int:
    """Runs the actor of a tree under the counters; returns its exit code."""
    hooks = log.parent / "hooks"
    hooks.mkdir(parents=True, exist_ok=True)
    own = str(Path(_counting.__file__).parent)
    (hooks / "sitecustomize.py").write_text(_counting.HOOK.format(folder=own))
    log.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": f"{hooks}{os.pathsep}{tree}", _counting.LOG: str(log)}
    env["VDAPO_FAILPOINTS"] = failpoint
    command = [sys.executable, _counting.__file__, "stages.actor", "configs/demo.yaml"]
    command += ["--run", run_dir.name, *settings, TRAINING, f"run.data_dir={json.dumps(str(run_dir.parent))}"]
    return subprocess.run(command, cwd=tree, env=env, check=False).returncode


def counts_of(log: Path) -> dict[str, dict[str, list[int]]]:
    """Returns phase -> kind -> numbers, one for each time that the phase was entered.

    What precedes the first hand-off and is no resume is `start`; two resumes in a row are one.
    """
    lines = sorted((float(t), kind, int(n)) for t, _, kind, n in map(str.split, log.read_text().splitlines()))
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    phase, resumed = "start", False
    entered: dict[str, int] = defaultdict(int)
    entered["start"] = 1
    for _, kind, number in lines:
        if kind[0] == "+":
            phase = kind[1:]
            if not (phase == "resume" and resumed):
                entered[phase] += 1
            resumed |= phase == "resume"
        elif kind[0] == "-":
            phase = "elsewhere" if entered["hand-off"] else "start"
        else:
            numbers = found[phase][kind]
            numbers += [0] * (entered[phase] - len(numbers) or not numbers)
            numbers[-1] += number
    return found


def turns_of(log: Path) -> int:
    """Returns how often the GPUs change hands between the first two hand-offs."""
    lines = [line.split() for line in log.read_text().splitlines()]
    first, second, *_ = sorted(float(when) for when, _, kind, _ in lines if kind == "+hand-off")
    return sum(first < float(when) < second for when, _, kind, _ in lines if kind == "turn")


def multiples(tree: Path, asked: Asked, name: str) -> dict[str, float]:
    """Returns what each phase of an actor hashes, reads and sends, as multiples of its model."""
    data, log = asked.data_dir / "handoff", asked.data_dir / "handoff" / f"{name}.log"
    data.mkdir(parents=True, exist_ok=True)
    settings = [*SETTINGS, f"run.seed={asked.seed}", *asked.settings]
    make_stages("configs/demo.yaml", "made", ("tasks", "sft"), settings, data)
    run_dir = data / name
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(data / "made", run_dir)
    weights = [path.stat().st_size for path in (run_dir / "sft" / "policy").glob("*.safetensors")]
    size = sum(weights)
    code = run_counted(tree, run_dir, log, settings, "actor.checkpoint.after_commit:1=kill")
    if code != -9:
        raise SystemExit(f"{name}: the actor ended with {code}, not by the failpoint")
    first = counts_of(log)
    if code := run_counted(tree, run_dir, log, settings):
        raise SystemExit(f"{name}: the actor did not go on: {code}")
    again = counts_of(log)
    figures: dict[str, float] = {}
    for phase, counts in (("start", first), ("hand-off", first), ("checkpoint", first), ("resume", again)):
        for kind in ("hashed", "read", "sent"):
            figures[f"{phase}: {kind}"] = sum(counts[phase][kind][:1]) / size
    return figures | {"turns an iteration": turns_of(log)}


def at_8b(figures: Mapping[str, float], threads: Mapping[str, int]) -> dict[str, float]:
    """Returns gigabytes hashed at 8B, and the seconds that a phase's threads need by arithmetic."""
    found = {}
    for phase, side_by_side in threads.items():
        gigabytes = figures[f"{phase}: hashed"] * GB_OF_8B
        found[f"{phase}: GB hashed"] = gigabytes
        found[f"{phase}: seconds of digests"] = gigabytes / GB_PER_SECOND / side_by_side
    return found


def digests(asked: Asked) -> list[Row]:
    """Returns how much faster a digest of 512 MB is on threads than on one."""
    import torch

    from pipeline.models.policy import weights_digest

    weights = {str(number): torch.rand(2**23) for number in range(16)}

    def on_one_thread() -> None:
        hasher = hashlib.sha256()
        for tensor in weights.values():
            hasher.update(tensor.numpy().data)

    runs = {"one": timed(on_one_thread), "threads": timed(lambda: weights_digest(weights))}
    found = in_turns(runs, asked.options.repeats)
    cores = len(os.sched_getaffinity(0))
    return measured(
        "digest", {"one thread / threads": ratios(found["one"], found["threads"]), "cores": cores}
    )


def measure(asked: Asked) -> list[Row]:
    """Returns the multiples before and after, the arithmetic at 8B, and the ratio of digests."""
    trees = {"before": tree_of(BEFORE, asked.data_dir / "handoff" / f"tree-{BEFORE}"), "after": ROOT}
    rows: list[Row] = []
    for name, tree in trees.items():
        figures = multiples(tree, asked, name)
        rows += measured(name, figures)
        rows += measured(f"{name}, 8B by arithmetic", at_8b(figures, THREADS[name]))
        asked.keep(rows)
    return rows + digests(asked)


CRITERIA: Criteria = {
    "no hand-off, checkpoint or resume sends weights between ranks but to refresh those that compute": (
        lambda t: (
            t("after", "hand-off: sent") + t("after", "checkpoint: sent") < 0.1
            and t("after", "resume: sent") < 1.1 * RANKS
        )
    ),
    "a checkpoint hashes each byte once": lambda t: t("after", "checkpoint: hashed") < 3.1,
    "a resume hashes and reads each byte once": (
        lambda t: t("after", "resume: hashed") < 3.1 and t("after", "resume: read") < 6.2
    ),
    "the GPUs change hands twice an iteration": lambda t: t("after", "turns an iteration") == 2,
}

BENCHMARK = Benchmark("handoff", __doc__, measure, CRITERIA, options={"repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
