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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks._results import Criteria, Row, Table, measured
from benchmarks._run import ROOT, Asked, Benchmark, main
from benchmarks._tables import rows_of
from benchmarks.handoff import BEFORE, GB_PER_SECOND, RANKS, THREADS, tree_of
from pipeline.config import load_config
from pipeline.planner.memory import shape_of
from stages.settings import Config
from stages.settings.engine import Vllm
from stages.settings.training import Deepspeed
from stages.wiring.plan_models import model_config
from stages.wiring.plan_work import work_of

GB = 1e9
DISK_READ, DISK_WRITTEN = 6.9, 4.1  # GB/s of one NVMe disk (Samsung PM9A3)
PLAN = """
import json, sys
from pathlib import Path
from pipeline.config import load_config
from stages.settings import Config
from stages.settings.engine import Vllm
from stages.settings.training import Deepspeed
from stages.wiring.plan_memory import memory_of
from stages.wiring.plan_models import critic_config, model_config
config = load_config(Config, Path(sys.argv[1]), [])
policy = model_config(config)
context = config.sampling.max_response_tokens + config.prompt.max_feedback_tokens
phases = memory_of(policy, critic_config(config, policy), context, config).phases
print(json.dumps({name: (phase.device_bytes, phase.host_bytes) for name, phase in phases.items()}))
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


def job_of(node: Node) -> Job:
    """Returns what a node's configuration says."""
    config = load_config(Config, ROOT / node.config, [])
    engine, training = config.engine, config.training
    assert isinstance(engine, Vllm)
    assert isinstance(training, Deepspeed)
    shape = shape_of(model_config(config))
    [actor] = [work for work in work_of(config) if work.stage == "actor"]
    each = actor.trained_tokens / config.actor.num_updates / training.num_ranks
    return Job(
        shape.parameters,
        shape.cache_entries,
        engine.max_live // engine.replicas,
        config.sampling.max_response_tokens + config.prompt.max_feedback_tokens,
        engine.tensor_parallel,
        training.num_ranks,
        "zero3" in str(training.deepspeed),
        ceil(each / training.micro_batch_tokens),
    )


def work_moves(job: Job) -> Iterator[tuple[str, Moved]]:
    """Yields what one step of decoding and one update move; 0070 changed neither."""
    cache = 2 * job.cache_entries * job.live * job.context / 2 / GB  # rows are half full on average
    yield "a step of decoding", Moved(memory=(job.bf16 + cache) / job.split)
    passed_on = job.bf16 * (job.ranks - 1) / job.ranks  # by each rank, in a collective over a ring
    part = job.parameters / job.ranks / GB
    if job.offloads:  # weights are gathered forward and backward
        # fp32 sums of gradients come and go with each micro-batch, go once more; bf16 weights come back.
        host = (8 * job.micro_batches + 4 + 2) * part
        yield "an update", Moved(pcie=host, link=(2 + 1) * job.micro_batches * passed_on)
    else:  # bf16 gradients of each micro-batch, new weights once; AdamW: 4 fp32 read, 3 and one bf16 written
        yield "an update", Moved(memory=(7 * 4 + 2) * part, link=(job.micro_batches + 1) * passed_on)


def turn_moves(job: Job, counts: Table, when: str) -> Iterator[tuple[str, Moved]]:
    """Yields what an iteration's turns, a hand-off, a checkpoint and a resume move, before or after."""

    def counted(phase: str, **further: float) -> Moved:
        """Returns what was counted in a phase, beside what is known."""
        hashed, sent = (counts(when, f"{phase}: {kind}") for kind in ("hashed", "sent"))
        return Moved(hashed=hashed * job.fp32, link=sent / RANKS * job.fp32, **further)

    trainer = job.bf16 / (job.ranks if job.offloads else 1) + 3 * job.owned
    turns = counts(when, "turns an iteration")  # in each the trainer comes or goes
    yield "turns of an iteration", Moved(pcie=turns * trainer)
    yield "hand-off", counted("hand-off", pcie=job.owned + job.bf16 / job.split)
    yield "checkpoint", counted("checkpoint", pcie=3 * job.owned, written=3 * job.fp32)
    # However often a file is read, the disk gives it once, and the system's cache from then on.
    yield "resume", counted("resume", pcie=trainer, read=3 * job.fp32)


def planned(tree: Path, config: str) -> dict[str, tuple[int, int]]:
    """Returns phase -> bytes of each GPU and of the host, as the plan of a tree says."""
    command = [sys.executable, "-c", PLAN, config]
    done = subprocess.run(
        command, cwd=tree, env={"PYTHONPATH": str(tree)}, check=True, stdout=subprocess.PIPE
    )
    return dict(json.loads(done.stdout))


def measure(asked: Asked) -> list[Row]:
    """Returns bytes and seconds of every phase on both nodes, and the memory that is planned for it."""
    trees = {"before": tree_of(BEFORE, asked.data_dir / "handoff" / f"tree-{BEFORE}"), "after": ROOT}
    [counts] = rows_of("handoff").values()  # it has one seed
    rows: list[Row] = []
    for name, node in NODES.items():
        job = job_of(node)
        found = [(phase, "", 1, moved) for phase, moved in work_moves(job)]
        for when in trees:
            for phase, moved in turn_moves(job, counts, when):
                found.append((phase, f", {when}", THREADS[when].get(phase, 1), moved))
        for phase, when, threads, moved in found:
            figures = vars(moved) | {"seconds": moved.seconds(node, threads)}
            rows += measured(f"{name}: {phase}{when}", figures)
        plans = {when: planned(tree, node.config) for when, tree in trees.items()}
        for phase in plans["after"]:
            gib: dict[str, float | None] = {}
            for when, plan in plans.items():
                device, host = plan.get(phase, (None, None))  # not every phase was planned before
                gib |= {
                    f"GPU GiB {when}": device and device / 2**30,
                    f"host GiB {when}": host and host / 2**30,
                }
            rows += measured(f"{name}, memory: {phase}", gib)
    return rows


def is_shorter(phase: str) -> Callable[[Table], bool]:
    """Returns the criterion that a phase is a third as long as before, or shorter, on both nodes."""
    return lambda t: all(
        t(f"{name}: {phase}, after", "seconds") <= t(f"{name}: {phase}, before", "seconds") / 3
        for name in NODES
    )


CRITERIA: Criteria = {
    f"{phase}: a third as long": is_shorter(phase) for phase in ("hand-off", "checkpoint", "resume")
}


BENCHMARK = Benchmark("moves", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
