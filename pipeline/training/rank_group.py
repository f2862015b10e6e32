"""DeepSpeed's ranks as one group of processes, and the pipe to each: both of its ends.

Some may be on other nodes (`far_ranks.py`); the group treats all alike.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

from pipeline.artifacts.signals import stop_if_asked
from pipeline.errors import ArtifactError, disk_error
from pipeline.processes.failpoints import failpoint
from pipeline.processes.life import TICK, Silence, further_nodes, limit_of, sign_of_life
from pipeline.processes.shared_weights import Files, Layout
from pipeline.processes.worker import Worker, WorkerHungError, connect_to_parent, hung
from pipeline.training.far_ranks import FarRank, NodeRanks

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore

ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that set torch's allocator; the first wins."""
SETTLED = 2.0
"""Seconds after the first failure in which others may reach this node that came before it elsewhere."""


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """How DeepSpeed runs; nothing here changes what is computed but for rounding.

    Attributes:
        config: DeepSpeed's own configuration, see `deepspeed_config`.
    """

    num_ranks: int = 1  # processes on each node, one GPU each
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
    """Ranks in processes of their own, `ranks`, in order of rank; all are ready once it is made.

    Those of this node, `workers`, come first, then those of each node that lends its own to the start. Every
    call raises WorkerDiedError, of the rank that failed first, which makes the others fail; WorkerHungError
    when all that still work give no sign of life; a rank's OSError where a disk is full, its ArtifactError as
    it is. A method `write_...` of a rank fills its last argument, a `Layout`; others read theirs.
    """

    def __init__(self, setup: RankSetup) -> None:
        # Ranks meet in a file of their own, where torch would want a port that others may take.
        self._meeting = os.memfd_create("vdapo-ranks")
        self._store: TCPStore | None = None  # the same for several nodes: at a port that this process has
        self.workers: list[Worker] = []
        self.ranks: list[Worker | FarRank] = []
        self._nodes: list[NodeRanks] = []
        try:
            lent, number = further_nodes(), setup.options.num_ranks
            for place, (name, link) in enumerate(lent.links() if lent else [], 1):
                self._nodes.append(NodeRanks(name, link, range(place * number, (place + 1) * number)))
            nodes, meeting = 1 + len(self._nodes), f"/proc/{os.getpid()}/fd/{self._meeting}"
            if nodes > 1 and setup.trains:
                from torch.distributed import TCPStore

                self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                meeting = f"tcp://127.0.0.1:{self._store.port}"
            for worker in start_ranks(setup.options, 0, nodes):
                self.workers.append(worker)
            self.ranks = [*self.workers, *(rank for node in self._nodes for rank in node.ranks)]
            for place, node in enumerate(self._nodes, 1):
                node.begin(setup, place, nodes, self._store.port if self._store else 0)
            for worker in self.workers:
                worker.send((setup, meeting))
            self._answers("start")
        except BaseException:
            self.close()
            raise

    def tell(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every rank with the same arguments; returns their answers, in order."""
        return self.tell_each(method, [arguments] * len(self.ranks))

    def tell_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank with arguments of its own; returns their answers, in order."""
        messages = [(method, mine) for mine in arguments]
        first = len(self.workers)
        for node in self._nodes:
            node.tell(messages[first : first + len(node.ranks)])
            first += len(node.ranks)
        for worker, message in zip(self.workers, messages, strict=False):
            worker.send(message)
        return self._answers(method)

    def close(self, grace: float = 5.0) -> None:
        """Ends the ranks; idempotent."""
        for worker in self.workers:
            worker.close(grace)
        for node in self._nodes:
            node.close(grace)
        self._store = None
        if self._meeting >= 0:
            os.close(self._meeting)
            self._meeting = -1

    def _answers(self, method: str) -> list[Any]:
        answers: dict[int, Any] = {}
        waiting: dict[Any, int] = {rank.connection: place for place, rank in enumerate(self.ranks)}
        # One that waits for the others is silent with reason, as long as any of them works.
        silence, limit = Silence([rank.signs for rank in self.ranks]), limit_of(method)
        failures: list[tuple[float, int]] = []  # when, which rank
        until = math.inf
        while waiting and time.monotonic() < until:
            ready = wait(list(waiting), TICK)
            if method in ("start", "load"):  # with nothing to save; ranks amid another call could not save
                stop_if_asked()
            if not ready and not failures and silence.seconds() > limit:
                raise self._hung([self.ranks[place] for place in waiting.values()], limit, method)
            for connection in cast("list[Connection]", ready):
                place = waiting.pop(connection)
                try:
                    kind, answers[place] = connection.recv()
                except (EOFError, OSError):  # killed, perhaps in mid-sentence: not by what others did
                    kind, answers[place] = "failed", 0.0
                if kind == "refused":
                    self.close(grace=0.0)  # the others may wait for it
                    raise answers[place]
                if kind == "failed":
                    failures.append((answers[place], place))
            if failures:
                until = min(until, time.monotonic() + SETTLED * bool(self._nodes))
        if failures:
            raise self.ranks[min(failures)[1]].death()
        return [answers[place] for place in range(len(self.ranks))]

    def _hung(self, silent: Sequence[Worker | FarRank], limit: float, method: str) -> WorkerHungError:
        """Ends all ranks; returns the error that names the one that is behind."""
        far = [rank for rank in silent if isinstance(rank, FarRank)]
        accounts = []
        for node in self._nodes:  # whose ranks live on, so that nobody's stack tells of an end
            if mine := [rank for rank in far if rank.node is node]:
                accounts += node.accounts(mine)
        error = hung([rank for rank in silent if not isinstance(rank, FarRank)], limit, method, accounts)
        for node in self._nodes:
            node.close(grace=0.0)
        return error


def start_ranks(options: DeepSpeedOptions, node: int = 0, nodes: int = 1) -> Iterator[Worker]:
    """Yields the ranks of a node as they start; they wait for their setup and where they meet."""
    for place in range(options.num_ranks):
        env = rank_environment(place, options, node, nodes)
        name = f"DeepSpeed rank {env['RANK']}" + (f" on {socket.gethostname()}" if nodes > 1 else "")
        yield Worker("pipeline.training.deepspeed_rank", name, env=env)


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


def rank_environment(place: int, options: DeepSpeedOptions, node: int = 0, nodes: int = 1) -> dict[str, str]:
    """Returns what the environment of a node's rank has over this process's.

    The allocator's segments grow, unless the user has set it: packed batches differ in size, and segments of
    fixed size would leave more and more holes. DeepSpeed itself binds NCCL to the rank's device.
    """
    threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.num_ranks)
    env = {
        "RANK": str(node * options.num_ranks + place),
        "LOCAL_RANK": str(place),
        "WORLD_SIZE": str(nodes * options.num_ranks),
        "OMP_NUM_THREADS": str(threads),
    }
    if nodes > 1:  # no rank serves the port where they meet
        env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    if not any(os.environ.get(name) for name in ALLOCATORS):
        env[ALLOCATORS[0]] = "expandable_segments:True"
    import torch

    if not torch.cuda.is_available():
        env["DS_ACCELERATOR"] = "cpu"
    return env
