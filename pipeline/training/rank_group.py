"""DeepSpeed's ranks as one group of processes, and the pipe to each: both of its ends."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

from pipeline.artifacts.failpoints import failpoint
from pipeline.errors import ArtifactError, disk_error
from pipeline.processes.life import TICK, Silence, limit_of, sign_of_life
from pipeline.processes.shared_weights import Files, Layout
from pipeline.processes.worker import Worker, connect_to_parent, hung

if TYPE_CHECKING:
    import torch

ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that set torch's allocator; the first wins."""


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """How DeepSpeed runs; nothing here changes what is computed but for rounding.

    Attributes:
        config: DeepSpeed's own configuration, see `deepspeed_config`.
    """

    num_ranks: int = 1  # processes, one GPU each
    config: Mapping[str, Any] = field(default_factory=lambda: {"zero_optimization": {"stage": 2}})
    threads: int = 0  # of each rank; 0 is an even share of the cores


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank needs to build its part of the trainer; `head` and `network` are options of `Network`."""

    model_class: str  # of transformers
    model_config: dict[str, Any]
    weights: Layout | Files  # shared by all ranks, none of which has a copy of its own
    dtype: torch.dtype  # that they compute in
    head: str
    network: dict[str, Any]
    weight_decay: float
    grad_clip: float
    trains: bool  # whether there is an optimizer at all
    options: DeepSpeedOptions
    lora_rank: int = 0  # of adapters that are trained in place of the weights; 0 trains the weights
    lora_alpha: int = 32


class RankGroup:
    """Ranks in processes of their own, `workers`, in order of rank; all are ready once it is made.

    Every call raises WorkerDiedError, of the rank that failed first, which makes the others fail;
    WorkerHungError when all that still work give no sign of life; a rank's OSError where a disk is full,
    its ArtifactError as it is.
    """

    def __init__(self, setup: RankSetup) -> None:
        # Ranks meet in a file of their own, where torch would want a port that others may take.
        self._meeting = os.memfd_create("vdapo-ranks")
        self.workers: list[Worker] = []
        try:
            for rank in range(setup.options.num_ranks):
                env = rank_environment(rank, setup.options)
                worker = Worker("pipeline.training.deepspeed_rank", f"DeepSpeed rank {rank}", env=env)
                self.workers.append(worker)
            for worker in self.workers:
                worker.send((setup, f"/proc/{os.getpid()}/fd/{self._meeting}"))
            self._answers("start")
        except BaseException:
            self.close()
            raise

    def tell(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every rank with the same arguments; returns their answers, in order."""
        return self.tell_each(method, [arguments] * len(self.workers))

    def tell_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank with arguments of its own; returns their answers, in order."""
        for worker, mine in zip(self.workers, arguments, strict=True):
            worker.send((method, mine))
        return self._answers(method)

    def close(self) -> None:
        """Ends the ranks; idempotent."""
        for worker in self.workers:
            worker.close()
        if self._meeting >= 0:
            os.close(self._meeting)
            self._meeting = -1

    def _answers(self, method: str) -> list[Any]:
        answers: dict[int, Any] = {}
        waiting = {rank.connection: place for place, rank in enumerate(self.workers)}
        # One that waits for the others is silent with reason, as long as any of them works.
        silence, limit = Silence([rank.signs for rank in self.workers]), limit_of(method)
        while waiting:
            ready = wait(list(waiting), TICK)
            if not ready and silence.seconds() > limit:
                raise hung([self.workers[place] for place in waiting.values()], limit, method)
            failures = []  # when, which rank
            for connection in cast("list[Connection]", ready):
                place = waiting.pop(connection)
                try:
                    kind, answers[place] = connection.recv()
                except (EOFError, OSError):  # killed, perhaps in mid-sentence: not by what others did
                    kind, answers[place] = "failed", 0.0
                if kind == "refused":
                    for worker in self.workers:
                        worker.close(grace=0.0)  # the others may wait for it
                    raise answers[place]
                if kind == "failed":
                    failures.append((answers[place], place))
            if failures:
                raise self.workers[min(failures)[1]].death()
        return [answers[place] for place in range(len(self.workers))]


def serve(make_rank: Callable[..., Any]) -> None:
    """Makes a rank as the group describes it, then answers the group's calls until it hangs up."""
    connection = connect_to_parent()
    try:
        rank = make_rank(*connection.recv())
        connection.send(("ready", None))
        while True:
            method, arguments = connection.recv()
            try:
                failpoint(f"rank{os.environ['RANK']}.{method}")
                sign_of_life("a call", call=True)  # so that one that never began it is behind
                answer = getattr(rank, method)(*arguments)
            except Exception as error:
                known = error if isinstance(error, ArtifactError) else disk_error(error)
                if known is None:
                    raise
                connection.send(("refused", known))
                continue
            connection.send(("done", answer))
    except EOFError:
        sys.exit(0)
    except Exception:
        failed = time.monotonic()
        traceback.print_exc()
        sys.stderr.flush()
        with suppress(OSError):  # the group may have hung up
            connection.send(("failed", failed))  # before the other ranks notice that this one is gone
        os._exit(1)  # an orderly end might wait for them


def rank_environment(rank: int, options: DeepSpeedOptions) -> dict[str, str]:
    """Returns what a rank's environment has over this process's.

    The allocator's segments grow, unless the user has set it: packed batches differ in size, and segments of
    fixed size would leave more and more holes. DeepSpeed itself binds NCCL to the rank's device.
    """
    threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.num_ranks)
    env = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(options.num_ranks),
        "OMP_NUM_THREADS": str(threads),
    }
    if not any(os.environ.get(name) for name in ALLOCATORS):
        env[ALLOCATORS[0]] = "expandable_segments:True"
    import torch

    if not torch.cuda.is_available():
        env["DS_ACCELERATOR"] = "cpu"
    return env
