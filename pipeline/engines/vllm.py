"""Generation with vLLM: replicas in processes of their own, one queue before them.

This side knows no vLLM: it hands requests to the replicas (`vllm_replica.py`), gathers what they finish,
and starts a replica that died again with the weights it had.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait as ready_of
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open

from pipeline.artifacts.signals import stop_if_asked
from pipeline.engines.protocol import Generation, GenerationRequest, check_requests, refuse_in_flight
from pipeline.engines.vllm_options import STEP, VllmOptions, replica_environment
from pipeline.errors import ConfigError
from pipeline.models.folder import weight_files
from pipeline.processes.life import TICK, Silence, limit_of
from pipeline.processes.shared_weights import Layout, SharedWeights
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError, WorkerHungError, hung

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
MAX_RESTARTS = 3
"""Deaths of replicas that one engine survives."""


@dataclass(slots=True)
class _Replica:
    """A worker and where it stands; a `ready` one is awake, with the weights it should have."""

    index: int
    worker: Worker
    state: Literal["starting", "stale", "loading", "ready", "asleep"] = "starting"
    in_flight: dict[str, GenerationRequest] = field(default_factory=dict)
    silence: Silence = field(init=False)  # while something is in flight

    def __post_init__(self) -> None:
        self.silence = Silence([self.worker.signs])


class VllmEngine:
    """An `Engine` over vLLM replicas, with the weights of a policy folder until others are loaded.

    The prefix cache is vLLM's own: by content, in whole blocks, so `cache_key` only keeps the requests of
    a rollout on one replica. `max_length` is the model's limit, `options.max_length` that of the replicas.
    """

    def __init__(self, folder: Path, policy_digest: str, max_length: int, options: VllmOptions) -> None:
        self.policy_digest = policy_digest
        self.max_length = max_length
        self.closed = False
        self._options = options
        self.room = min(max_length, options.max_length or max_length)
        self._folder = folder
        self._shared = SharedWeights()
        self._weights: Layout | str = str(folder)  # where the weights are that every replica should have
        self._restarts_left = MAX_RESTARTS
        self._owner: dict[str, int] = {}  # cache key -> replica
        self._finished: list[Generation] = []
        self._replicas = [_Replica(i, self._start(i)) for i in range(options.replicas)]

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue; raises ConfigError, adding none, where replicas lack room for one.

        Cut short it would be another sample.
        """
        check_requests(requests, self._in_flight(), self.max_length)
        for request in requests:
            size, new = len(request.prompt_token_ids), request.max_new_tokens
            if size + new > self.room:
                raise ConfigError(
                    f"request {request.request_id!r} needs {size + new} positions ({size} of prompt and "
                    f"{new} new), vLLM was started for {self.room}, the model has {self.max_length}. Next: "
                    "raise prompt.max_feedback_tokens, which makes room for longer prompts"
                )
        batches: dict[int, list[GenerationRequest]] = {}
        for request in requests:
            replica = self._choose(request.cache_key)
            if not replica.in_flight:
                replica.silence.begin()
            replica.in_flight[request.request_id] = request
            batches.setdefault(replica.index, []).append(request)
        for index, batch in batches.items():
            replica = self._replicas[index]
            if replica.state == "ready":
                with self._surviving(replica):
                    replica.worker.send(("submit", batch))

    def collect(self) -> list[Generation]:
        """Returns finished requests.

        Raises WorkerDiedError when replicas died more often than may be chance, WorkerFailedError when the
        last of these deaths was an error, or a replica refused to start, WorkerHungError when one hangs.
        """
        while not self._finished and any(replica.in_flight for replica in self._replicas):
            stop_if_asked()
            self._make_ready()
            busy = [replica for replica in self._replicas if replica.in_flight]
            ready = ready_of([replica.worker.connection for replica in busy], TICK)
            for replica in busy:
                if replica.worker.connection in ready:
                    self._take(replica)
                else:
                    is_new = replica.worker.signs.last().after != STEP
                    doing = "its first step" if is_new else "generate"
                    if replica.silence.seconds() > (limit := limit_of(doing)):
                        raise hung([replica.worker], limit, doing)
        finished, self._finished = self._finished, []
        return finished

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets which replica served these keys; vLLM's cache drops what is least recently used."""
        for key in cache_keys:
            self._owner.pop(key, None)

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Hands the weights to every replica. Raises ValueError if a name is missing or unknown."""
        refuse_in_flight(self._in_flight(), "loading weights")
        complete = complete_weights(weights, self._folder)
        self._weights = self._shared.write(complete, getattr(torch, self._options.dtype))
        self._owner.clear()
        for replica in self._replicas:
            if replica.state != "starting":
                replica.state = "stale"
        self._make_ready()
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Frees weights and cache of every replica; on a CPU vLLM only drops the prefix cache and pauses."""
        if self.closed:
            return
        refuse_in_flight(self._in_flight(), "sleeping")
        self._owner.clear()
        while awake := [replica for replica in self._replicas if replica.state != "asleep"]:
            for replica in awake:
                self._await_ready(replica)  # one that is starting would take its memory later
                with self._surviving(replica):
                    replica.worker.send(("sleep", None))
            for replica in awake:
                if replica.state == "ready":  # else it died, is starting again, and has another turn
                    with self._surviving(replica):
                        replica.worker.receive(limit_of("sleep"), "sleep")
                        replica.state = "asleep"

    def close(self) -> None:
        """Ends the replicas; idempotent."""
        self.closed = True
        with ThreadPoolExecutor(len(self._replicas)) as pool:  # each may take seconds to end what it started
            list(pool.map(lambda replica: replica.worker.close(), self._replicas))
        for replica in self._replicas:
            replica.in_flight.clear()
        self._finished.clear()
        self._shared.close()

    def _in_flight(self) -> set[str]:
        return {name for replica in self._replicas for name in replica.in_flight}

    def _start(self, index: int) -> Worker:
        options = self._options
        env = replica_environment(index, options.tensor_parallel)
        worker = Worker("pipeline.engines.vllm_replica", f"vLLM replica {index}", env=env)
        worker.send((str(self._folder), self.room, -(-options.max_live // options.replicas), options))
        return worker

    def _make_ready(self) -> None:
        """Wakes, loads and starts what needs it, side by side; returns when all are ready."""
        for replica in self._replicas:
            if replica.state in ("stale", "asleep"):
                self._load(replica)
        for replica in self._replicas:
            self._await_ready(replica)

    def _await_ready(self, replica: _Replica) -> None:
        while replica.state != "ready":
            with self._surviving(replica):
                if replica.state == "starting":
                    replica.worker.receive(limit_of("start"), "start", stop_if_asked)
                    # It starts with the weights of the folder.
                    replica.state = "ready" if self._weights == str(self._folder) else "stale"
                if replica.state in ("stale", "asleep"):
                    self._load(replica)
                if replica.state == "loading":
                    replica.worker.receive(limit_of("load"), "load", stop_if_asked)
                    replica.state = "ready"
                if replica.state == "ready" and replica.in_flight:
                    replica.worker.send(("submit", list(replica.in_flight.values())))

    def _load(self, replica: _Replica) -> None:
        replica.state = "loading"
        with self._surviving(replica):
            replica.worker.send(("load", self._weights))

    def _choose(self, key: str | None) -> _Replica:
        if key is not None and key in self._owner:
            return self._replicas[self._owner[key]]
        replica = min(self._replicas, key=lambda r: (len(r.in_flight), r.index))
        if key is not None:
            self._owner[key] = replica.index
        return replica

    def _take(self, replica: _Replica) -> None:
        generations: list[Generation] = []
        with self._surviving(replica):
            generations = replica.worker.receive()
        replica.silence.begin()
        for generation in generations:
            del replica.in_flight[generation.request_id]
        self._finished.extend(generations)

    @contextmanager
    def _surviving(self, replica: _Replica) -> Iterator[None]:
        """Starts the replica again if it dies in the block."""
        try:
            yield
        except WorkerDiedError as error:
            self._restart(replica, error)

    def _restart(self, replica: _Replica, error: WorkerDiedError) -> None:
        """Starts a dead replica again; what it had in flight is asked again with the same seeds."""
        # One that refused to start would only refuse again, minutes later.
        refused = replica.state == "starting" and isinstance(error, WorkerFailedError)
        if refused or isinstance(error, WorkerHungError) or self._restarts_left == 0:
            raise error
        self._restarts_left -= 1
        replica.worker.close()
        replica.worker = self._start(replica.index)
        replica.silence = Silence([replica.worker.signs])
        replica.state = "starting"


def complete_weights(weights: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Returns the weights with a tied output layer under its own name too; ValueError if of another model.

    vLLM keeps a processed copy of the output layer beside the embedding that it shares weights with. Given
    the embedding alone, a reload leaves that copy stale, without a word.
    """
    names: set[str] = set()
    for file in weight_files(folder):
        with safe_open(file, "pt") as tensors:
            names.update(tensors.keys())
    tied = json.loads((folder / "config.json").read_text("utf-8")).get("tie_word_embeddings", False)
    implied = {OUTPUT} if tied else set()
    given, expected = set(weights) - implied, names - implied
    if given != expected:
        raise ValueError(
            f"not this model's weights: {sorted(expected - given)[:3]} missing, "
            f"{sorted(given - expected)[:3]} unknown"
        )
    return {**weights, **({OUTPUT: weights[EMBEDDING]} if tied else {})}
