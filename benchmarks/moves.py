"""What each phase of an actor moves and takes at 8B, on 24 and 80 GB, by arithmetic and data sheet.

    python -m benchmarks.moves

No GPU is needed, and nothing here is measured on one. Bytes follow from the configurations (dtypes, ranks,
ZeRO's stage, as DeepSpeed moves them); hashed and sent bytes are the multiples of a model that
`benchmarks.handoff` counted in the stage itself, before decision 0070 and after it. Seconds divide them by
what the hardware's data sheet gives, one kind of move after another: a phase in which nothing overlaps takes
at least that. A digest has no data sheet: a thread's speed was measured (decision 0059). Memory is what
`vdapo plan` says, at the commit before and now.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks._results import Row, Table, measured
from benchmarks._run import ROOT, Asked, Benchmark, main
from benchmarks._tables import rows_of
from benchmarks.handoff import BEFORE, GB_PER_SECOND, RANKS, THREADS, tree_of
from pipeline.config import load_config
from pipeline.planner.memory import shape_of
from stages.settings import Config
from stages.settings.engine import Vllm
from stages.settings.training import Deepspeed
from stages.wiring.plan_models import model_config, training_of
from stages.wiring.plan_work import work_of

GB = 1e9
DISK_READ, DISK_WRITTEN = 6.9, 4.1  # GB/s of one NVMe disk (Samsung PM9A3)
PLAN = """
import json, sys
from pathlib import Path
from pipeline.config import load_config
from stages.settings import Config
from stages.wiring.plan_memory import memory_of
from stages.wiring.plan_models import critic_config, model_config
config = load_config(Config, Path(sys.argv[1]), [])
policy = model_config(config)
context = config.sampling.max_response_tokens + config.prompt.max_feedback_tokens
memory = memory_of(policy, critic_config(config, policy), context, config)
phases = {name: (phase.device_bytes, phase.host_bytes) for name, phase in memory.phases.items()}
print(json.dumps((memory.live, phases)))
"""


@dataclass(frozen=True)
class Node:
    """Eight GPUs, and what their data sheets say, in GB/s each way."""

    config: str
    memory: float  # of a GPU (H100 SXM; RTX 4090)
    pcie: float  # between a GPU and the host: PCIe 5.0 and 4.0, 16 lanes
    link: float  # between GPUs: NVLink 4; the 4090 has none and sends through the host


NODES = {
    "80 GB": Node("configs/phone-qwen3-8b-8x80gb.yaml", 3350, 64, 450),
    "24 GB": Node("configs/phone-qwen3-8b-8x24gb.yaml", 1008, 32, 32),
}


@dataclass(frozen=True)
class Moved:
    """GB that a phase moves: on or at each GPU, but `hashed`, `read` and `written` by the whole machine."""

    memory: float = 0  # read and written in a GPU's own memory
    pcie: float = 0  # between a GPU and the host
    link: float = 0  # between a GPU and the others
    hashed: float = 0
    read: float = 0  # of files
    written: float = 0  # to files

    def seconds(self, node: Node, threads: int) -> float:
        """Returns how long all of it takes, one kind after another."""
        inside = self.memory / node.memory + self.pcie / node.pcie + self.link / node.link
        files = self.read / DISK_READ + self.written / DISK_WRITTEN
        return inside + files + self.hashed / GB_PER_SECOND / threads


@dataclass(frozen=True)
class Job:
    """What a configuration says of its model and of those that share it."""

    parameters: int
    cache_entries: int  # of a token
    live: int  # rollouts in a replica
    layers: int
    width: int
    has_reference: bool  # a second model, which leaves the GPUs in every turn and comes back for its own
    context: int
    split: int  # GPUs of a replica
    ranks: int
    offloads: bool  # master copy and moments live on the host (ZeRO 3)
    micro_batches: int  # of a rank in an update, at the longest responses

    @property
    def bf16(self) -> float:
        """GB of the weights."""
        return 2 * self.parameters / GB

    @property
    def fp32(self) -> float:
        """GB of the weights, the master copy, or one of the moments."""
        return 4 * self.parameters / GB

    @property
    def owned(self) -> float:
        """GB of the master copy, or a moment, on each GPU."""
        return 0 if self.offloads else self.fp32 / self.ranks


def job_of(node: Node, live: int, has_reference: bool) -> Job:
    """Returns what a node's configuration says; its plan has said how many rollouts live in a replica."""
    config = load_config(Config, ROOT / node.config, [])
    engine, training = config.engine, config.training
    assert isinstance(engine, Vllm)
    assert isinstance(training, Deepspeed)
    policy = model_config(config)
    shape = shape_of(policy)
    context = config.sampling.max_response_tokens + config.prompt.max_feedback_tokens
    [actor] = [work for work in work_of(config) if work.stage == "actor"]
    each = actor.trained_tokens / config.actor.num_updates / training.num_ranks
    return Job(
        parameters=shape.parameters,
        cache_entries=shape.cache_entries,
        live=live,
        layers=shape.layers,
        width=shape.width,
        has_reference=has_reference,
        context=context,
        split=engine.tensor_parallel,
        ranks=training.num_ranks,
        offloads=training_of(config, policy, context).offload,
        micro_batches=ceil(each / training.micro_batch_tokens),
    )


def work_moves(job: Job) -> Iterator[tuple[str, Moved]]:
    """Yields what one step of decoding and one update move; 0070 changed neither."""
    cache = 2 * job.cache_entries * job.live * job.context / 2 / GB  # rows are half full on average
    summed = 2 * job.layers * 2 * job.live * job.width / GB if job.split > 1 else 0  # twice a layer, in bf16
    yield "a step of decoding", Moved(memory=(job.bf16 + cache) / job.split, link=summed)
    passed_on = job.bf16 * (job.ranks - 1) / job.ranks  # by each rank, in one half of a ring's all-reduce
    part, batches = job.parameters / job.ranks / GB, job.micro_batches
    passes = 4 * batches * job.bf16  # weights are read forward, once more and backward; gradients are written
    if job.offloads:
        # Weights are gathered forward and backward, gradients divided. Their fp32 sums come and go with each
        # micro-batch, and once more; bf16 weights come back.
        host = (8 * batches + 8 + 2) * part
        yield "an update", Moved(memory=passes, pcie=host, link=(2 + 1) * batches * passed_on)
    else:
        # DeepSpeed sums whole buckets of bf16 gradients on all ranks and drops what is another's; new weights
        # go round once. AdamW reads 4 fp32 numbers, writes 3 and one in bf16.
        adam = (7 * 4 + 2) * part
        yield "an update", Moved(memory=passes + adam, link=(2 * batches + 1) * passed_on)


def turn_moves(job: Job, counts: Table, when: str) -> Iterator[tuple[str, Moved]]:
    """Yields what an iteration's turns, a hand-off, a checkpoint and a resume move, before or after."""

    def counted(phase: str, kind: str, per: int = 1) -> float:
        return counts(when, f"{phase}: {kind}") / per * job.fp32

    trainer = job.bf16 / (job.ranks if job.offloads else 1) + 3 * job.owned
    turns = counts(when, "turns an iteration") * trainer  # in each the trainer comes or goes
    yield "turns of an iteration", Moved(pcie=turns + job.has_reference * job.bf16)
    # Each of two ranks was sent a whole model where weights were gathered.
    sent, hashed = counted("hand-off", "sent", RANKS), counted("hand-off", "hashed")
    yield "hand-off", Moved(pcie=job.owned + job.bf16 / job.split, link=sent, hashed=hashed)
    sent, hashed = counted("checkpoint", "sent", RANKS), counted("checkpoint", "hashed")
    yield "checkpoint", Moved(pcie=3 * job.owned, link=sent, hashed=hashed, written=3 * job.fp32)
    # ZeRO 2 sends what computes, in bf16, to all ranks; before, each had read all of it itself.
    sent = 0 if job.offloads or when == "before" else job.bf16 * (job.ranks - 1) / job.ranks
    # However often a file is read, the disk gives it once where the system's cache has room.
    resumed = Moved(pcie=trainer, link=sent, hashed=counted("resume", "hashed"), read=3 * job.fp32)
    yield "resume", resumed


def planned(tree: Path, config: str) -> tuple[int, dict[str, tuple[int, int]]]:
    """Returns rollouts in a replica, and phase -> bytes of each GPU and of the host, by a tree's plan."""
    command = [sys.executable, "-c", PLAN, config]
    done = subprocess.run(
        command, cwd=tree, env={"PYTHONPATH": str(tree)}, check=True, stdout=subprocess.PIPE
    )
    live, phases = json.loads(done.stdout)
    return live, phases


def measure(asked: Asked) -> list[Row]:
    """Returns bytes and seconds of every phase on both nodes, and the memory that is planned for it."""
    trees = {"before": tree_of(BEFORE, asked.data_dir / "handoff" / f"tree-{BEFORE}"), "after": ROOT}
    [counts] = rows_of("handoff").values()  # it has one seed
    rows: list[Row] = []
    for name, node in NODES.items():
        plans = {when: planned(tree, node.config) for when, tree in trees.items()}
        live, phases = plans["after"]
        job = job_of(node, live, "reference pass" in phases)
        found = [(phase, "", 1, moved) for phase, moved in work_moves(job)]
        for when in trees:
            for phase, moved in turn_moves(job, counts, when):
                found.append((phase, f", {when}", THREADS[when].get(phase, 1), moved))
        for phase, when, threads, moved in found:
            figures = vars(moved) | {"seconds": moved.seconds(node, threads)}
            rows += measured(f"{name}: {phase}{when}", figures)
        for phase in phases:
            gib: dict[str, float | None] = {}
            for when, (_, plan) in plans.items():
                device, host = plan.get(phase, (0, 0))  # not every phase was planned before, nor its host
                gib |= {f"GPU GiB {when}": device / 2**30 or None, f"host GiB {when}": host / 2**30 or None}
            rows += measured(f"{name}: {phase}", gib)
    return rows


BENCHMARK = Benchmark("moves", __doc__, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
