"""Generation with vLLM: replicas in processes of their own, one queue before them.

This side knows no vLLM: it hands requests to the replicas (`vllm_replica.py`), gathers what they finish,
and starts a replica that died again with the weights it had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait as ready_of
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open

from pipeline.engines.protocol import EngineCounters, Generation, GenerationRequest
from pipeline.engines.requests import check_requests
from pipeline.engines.vllm_options import VllmOptions, replica_environment
from pipeline.errors import ConfigError
from pipeline.processes.shared_weights import Layout, SharedWeights
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError

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


class VllmEngine:
    """An `Engine` over vLLM replicas.

    The prefix cache is vLLM's own: by content, in whole blocks, so `cache_key` only keeps the requests of
    a rollout on one replica and `release` has nothing to do.

    Args:
        folder: policy in Hugging Face form; the weights until the first `load_weights`.
        policy_digest: name of those weights.
        max_length: longest prompt and `max_new_tokens` together that the model takes.
        options: how vLLM runs.
    """

    def __init__(
        self, folder: Path, policy_digest: str, max_length: int, options: VllmOptions | None = None
    ) -> None:
        self.policy_digest = policy_digest
        self.max_length = max_length
        self.counters = EngineCounters()
        self.options = options or VllmOptions()
        self._room = min(max_length, self.options.max_length or max_length)
        self.closed = False
        self._folder = folder
        self._shared = SharedWeights()
        self._weights: Layout | str = str(folder)  # where the weights are that every replica should have
        self._restarts_left = MAX_RESTARTS
        self._owner: dict[str, int] = {}  # cache key -> replica
        self._finished: list[Generation] = []
        self._replicas = [_Replica(i, self._start(i)) for i in range(self.options.replicas)]

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue; one that is refused adds none.

        Raises:
            ValueError: one is empty or exceeds the model's limit.
            ConfigError: one exceeds what the replicas have room for. Cut short it would be another sample.
        """
        in_flight = {name for replica in self._replicas for name in replica.in_flight}
        check_requests(requests, in_flight, self.max_length)
        for request in requests:
            size = len(request.prompt_token_ids)
            if size + request.max_new_tokens > self._room:
                raise ConfigError(
                    f"request {request.request_id!r} needs {size + request.max_new_tokens} positions ({size} "
                    f"of prompt and {request.max_new_tokens} new), vLLM was started for {self._room}, the "
                    f"model has {self.max_length}. Next: raise prompt.max_feedback_tokens, which makes room "
                    "for longer prompts"
                )
        batches: dict[int, list[GenerationRequest]] = {}
        for request in requests:
            replica = self._choose(request)
            replica.in_flight[request.request_id] = request
            batches.setdefault(replica.index, []).append(request)
        for index, batch in batches.items():
            replica = self._replicas[index]
            if replica.state == "ready":
                self._send(replica, ("submit", batch))

    def collect(self, *, wait: bool = True) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight.

        Without `wait`, what the replicas have finished since.

        Raises:
            WorkerDiedError: replicas died more often than may be chance.
            WorkerFailedError: the last of these deaths was an error, or a replica refused to start.
        """
        while not self._finished and any(replica.in_flight for replica in self._replicas):
            self._make_ready()
            busy = [replica for replica in self._replicas if replica.in_flight]
            timeout = self.options.answer_timeout if wait else 0.0
            ready = ready_of([replica.worker.connection for replica in busy], timeout)
            if not ready and not wait:
                break
            if not ready:
                self._restart(busy[0], busy[0].worker.death("finished nothing for too long"))
            for replica in busy:
                if replica.worker.connection in ready:
                    self._take(replica)
        finished, self._finished = self._finished, []
        return finished

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets which replica served these keys; vLLM's cache drops what is least recently used."""
        for key in cache_keys:
            self._owner.pop(key, None)

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Hands the weights to every replica and drops every cache; only while nothing is in flight.

        Raises:
            RuntimeError: requests are in flight.
            ValueError: a name is missing or unknown.
        """
        self._refuse_in_flight("loading weights")
        complete = complete_weights(weights, self._folder)
        self._weights = self._shared.write(complete, getattr(torch, self.options.dtype))
        self._owner.clear()
        for replica in self._replicas:
            if replica.state != "starting":
                replica.state = "stale"
        self._make_ready()
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Frees weights and cache of every replica; the weights come again when it wakes.

        vLLM can do so on GPUs only. On a CPU it drops the prefix cache and pauses, which is all that is left
        of it there.

        Raises:
            RuntimeError: requests are in flight.
        """
        if self.closed:
            return
        self._refuse_in_flight("sleeping")
        self._owner.clear()
        while awake := [replica for replica in self._replicas if replica.state != "asleep"]:
            for replica in awake:
                self._await_ready(replica)  # one that is starting would take its memory later
                self._send(replica, ("sleep", None))
            for replica in awake:
                if replica.state == "ready":  # else it died, is starting again, and has another turn
                    try:
                        self._expect(replica, "asleep")
                        replica.state = "asleep"
                    except WorkerDiedError as error:
                        self._restart(replica, error)

    def close(self) -> None:
        """Ends the replicas; idempotent."""
        self.closed = True
        for replica in self._replicas:
            replica.worker.close()
            replica.in_flight.clear()
        self._finished.clear()
        self._shared.close()

    def _start(self, index: int) -> Worker:
        options = self.options
        env = replica_environment(index, options)
        worker = Worker("pipeline.engines.vllm_replica", f"vLLM replica {index}", env=env)
        worker.send((str(self._folder), self._room, -(-options.max_live // options.replicas), options))
        return worker

    def _make_ready(self) -> None:
        """Wakes, loads and starts what needs it, side by side; returns when all are ready."""
        for replica in self._replicas:
            if replica.state in ("stale", "asleep"):
                self._tell_to_load(replica)
        for replica in self._replicas:
            self._await_ready(replica)

    def _await_ready(self, replica: _Replica) -> None:
        while replica.state != "ready":
            try:
                if replica.state == "starting":
                    self._expect(replica, "ready", self.options.start_timeout)
                    # It starts with the weights of the folder.
                    replica.state = "ready" if self._weights == str(self._folder) else "stale"
                if replica.state in ("stale", "asleep"):
                    self._tell_to_load(replica)
                if replica.state == "loading":
                    self._expect(replica, "loaded")
                    replica.state = "ready"
                if replica.state == "ready" and replica.in_flight:
                    replica.worker.send(("submit", list(replica.in_flight.values())))
            except WorkerDiedError as error:
                self._restart(replica, error)

    def _tell_to_load(self, replica: _Replica) -> None:
        replica.state = "loading"
        self._send(replica, ("load", self._weights))

    def _refuse_in_flight(self, what: str) -> None:
        if number := sum(len(replica.in_flight) for replica in self._replicas):
            raise RuntimeError(f"{number} requests are in flight; collect them before {what}")

    def _choose(self, request: GenerationRequest) -> _Replica:
        key = request.cache_key
        if key is not None and key in self._owner:
            return self._replicas[self._owner[key]]
        replica = min(self._replicas, key=lambda r: (len(r.in_flight), r.index))
        if key is not None:
            self._owner[key] = replica.index
        return replica

    def _send(self, replica: _Replica, message: tuple[Any, ...]) -> None:
        try:
            replica.worker.send(message)
        except WorkerDiedError as error:
            self._restart(replica, error)

    def _expect(self, replica: _Replica, kind: str, timeout: float | None = None) -> None:
        answer = replica.worker.receive(timeout or self.options.answer_timeout)
        if answer[0] != kind:
            raise RuntimeError(f"{replica.worker.name} said {answer[0]!r} where {kind!r} was due")

    def _take(self, replica: _Replica) -> None:
        try:
            generations = replica.worker.receive()
        except WorkerDiedError as error:
            self._restart(replica, error)
            return
        for generation in generations:
            request = replica.in_flight.pop(generation.request_id)
            self.counters.requests += 1
            self.counters.prompt_tokens += len(request.prompt_token_ids)
            self.counters.cached_tokens += generation.cached_tokens
            self.counters.generated_tokens += len(generation.token_ids)
        self._finished.extend(generations)

    def _restart(self, replica: _Replica, error: WorkerDiedError) -> None:
        """Starts a dead replica again; what it had in flight is asked again with the same seeds.

        One that refused to start would only refuse again, minutes later.
        """
        refused = replica.state == "starting" and isinstance(error, WorkerFailedError)
        if refused or self._restarts_left == 0:
            raise error
        self._restarts_left -= 1
        replica.worker.close()
        replica.worker = self._start(replica.index)
        replica.state = "starting"


def complete_weights(weights: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Returns the weights with a tied output layer under its own name too.

    vLLM keeps a processed copy of the output layer beside the embedding that it shares weights with. Given
    the embedding alone, a reload leaves that copy stale, without a word.

    Raises:
        ValueError: they are not the weights of the model in the folder.
    """
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
    tied = json.loads((folder / "config.json").read_text("utf-8")).get("tie_word_embeddings", False)
    given = set(weights) - ({OUTPUT} if tied else set())
    expected = names - ({OUTPUT} if tied else set())
    if given != expected:
        raise ValueError(
            f"not this model's weights: {sorted(expected - given)[:3]} missing, "
            f"{sorted(given - expected)[:3]} unknown"
        )
    return {**weights, **({OUTPUT: weights[EMBEDDING]} if tied else {})}
