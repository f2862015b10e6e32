"""Generation with a transformers model: a continuous batch, the cache kept across a rollout's turns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import linear
from transformers import AttentionInterface

from pipeline.engines.protocol import EngineCounters, Generation, GenerationRequest
from pipeline.engines.requests import check_requests
from pipeline.engines.sampling import choose_tokens
from pipeline.engines.slot_owners import SlotOwners
from pipeline.engines.slots import ATTENTION_NAME, SlotCache, make_plan, slot_attention
from pipeline.ragged import check_full_attention

AttentionInterface.register(ATTENTION_NAME, slot_attention)

FINISH_SHARE = 0.1
"""Of the requests that it found, answered when `collect` returns; more would leave more rows idle."""


class TransformersEngine:
    """A causal language model that is sampled; the engine owns the model from then on.

    Each request lives in a slot. A slot stays bound to its `cache_key` after the request is answered, so
    the rollout's next turn computes only what is new; requests with equal prompts compute them once; idle
    slots are given up least recently used first. One pass takes the next token of every decoding row and
    the new tokens of every fresh one together.

    A result depends on its request alone up to rounding: token i uses the i-th number of Philox(seed).

    Args:
        model: a transformers model on the CPU with full attention in every layer, such as Qwen3ForCausalLM.
            Its attention is replaced, so nothing else may run it: give a trainer a model of its own.
        policy_digest: name of the weights.
        max_live: slots, >= 1; more requests wait in the queue.
        dtype: of weights, keys and values: "float32" or "bfloat16"; None keeps the model's.
        max_length: longest row, prompt and sampled tokens; None is the model's limit.
        max_pass_tokens: tokens of one pass, unless a single prompt is longer.

    Raises:
        ValueError: a setting out of range, or a model elsewhere or with another kind of attention.
    """

    def __init__(
        self,
        model: Any,
        policy_digest: str,
        max_live: int,
        *,
        dtype: str | None = None,
        max_length: int | None = None,
        max_pass_tokens: int = 4096,
    ) -> None:
        if max_live < 1:
            raise ValueError(f"max_live = {max_live}; at least one request must be in flight")
        config = model.config
        check_full_attention(config)
        if dtype is not None:
            for weight in model.parameters():  # not the buffers: bf16 frequencies would blur far positions
                weight.data = weight.data.to(getattr(torch, dtype))
        parameter = next(model.parameters())
        if parameter.device.type != "cpu":
            raise ValueError(f"the model is on {parameter.device}; this engine plans its batches for the CPU")
        self.policy_digest = policy_digest
        self.counters = EngineCounters()
        self._model = model.eval()
        model.set_attn_implementation(ATTENTION_NAME)
        self._max_pass_tokens = max_pass_tokens
        self.max_length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = (config.num_hidden_layers, max_live, config.num_key_value_heads, head_dim)
        self._cache = SlotCache(*sizes, self.max_length, parameter.dtype)
        self._queue: deque[tuple[int, GenerationRequest]] = deque()
        self._in_flight: set[str] = set()
        self._order = 0
        # What each slot holds. `cached` tokens have keys and values, `known` are there as ids.
        self._tokens = np.zeros((max_live, self.max_length), dtype=np.int64)
        self._logprobs = np.zeros((max_live, self.max_length), dtype=np.float32)
        self._uniforms = np.zeros((max_live, self.max_length), dtype=np.float64)
        self._cached = np.zeros(max_live, dtype=np.int64)
        self._known = np.zeros(max_live, dtype=np.int64)
        # The request each slot serves.
        self._active = np.zeros(max_live, dtype=bool)
        self._source = np.full(max_live, -1, dtype=np.int64)  # slot that still computes the same prompt
        self._prompt = np.zeros(max_live, dtype=np.int64)
        self._reused = np.zeros(max_live, dtype=np.int64)  # tokens of the prompt
        self._limit = np.zeros(max_live, dtype=np.int64)
        self._stops = np.full((max_live, 1), -1, dtype=np.int64)
        self._temperature = np.ones(max_live, dtype=np.float32)
        self._top_p = np.ones(max_live, dtype=np.float32)
        self._top_k = np.full(max_live, -1, dtype=np.int64)
        self._request: list[tuple[int, GenerationRequest] | None] = [None] * max_live
        self._owners = SlotOwners(max_live)
        self._slot_of_prompt: dict[bytes, int] = {}  # a hint; checked before use
        self._name_of_slot: list[bytes | None] = [None] * max_live

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue. Raises ValueError, adding none, if one is empty or cannot fit."""
        check_requests(requests, self._in_flight, self.max_length)
        for request in requests:
            self._in_flight.add(request.request_id)
            self._queue.append((self._order, request))
            self._order += 1

    @torch.inference_mode()
    def collect(self, *, wait: bool = True) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight; oldest first.

        Without `wait`, what one pass has finished.
        """
        self._admit()
        wanted = math.ceil(FINISH_SHARE * int(self._active.sum()))
        finished: list[tuple[int, Generation]] = []
        while len(finished) < wanted:
            finished.extend(self._finish(slot) for slot in self._pass())
            if not wait:
                break
        return [generation for _, generation in sorted(finished, key=lambda pair: pair[0])]

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets the caches kept under these keys; a request in flight keeps its own until answered."""
        for key in cache_keys:
            if (slot := self._owners.release(key)) is not None:
                self._cached[slot] = 0

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Copies the weights in and drops every cache; tied weights may be given once.

        Raises:
            RuntimeError: requests are in flight.
            ValueError: names are missing or unknown; the model is then unusable until the next load.
        """
        if self._in_flight:
            raise RuntimeError(
                f"{len(self._in_flight)} requests are in flight; collect them before loading weights"
            )
        missing, unexpected = self._model.load_state_dict(weights, strict=False)
        missing = set(missing) - set(getattr(self._model, "_tied_weights_keys", None) or {})
        if missing or unexpected:
            raise ValueError(
                f"not this model's weights: {sorted(missing)[:3]} missing, {sorted(unexpected)[:3]} unknown"
            )
        self._drop_caches()
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Drops every cache; the model stays, it is the caller's. Raises RuntimeError in flight."""
        if self._in_flight:
            raise RuntimeError(f"{len(self._in_flight)} requests are in flight; collect them before sleeping")
        self._drop_caches()

    def close(self) -> None:
        """Drops the queue and every cache; idempotent."""
        self._queue.clear()
        self._in_flight.clear()
        self._active[:] = False
        self._drop_caches()

    def _drop_caches(self) -> None:
        slots = len(self._request)
        self._cache.clear()
        self._cached[:] = 0
        self._known[:] = 0
        self._request = [None] * slots
        self._name_of_slot = [None] * slots
        self._slot_of_prompt.clear()
        self._owners = SlotOwners(slots)

    def _admit(self) -> None:
        """Gives queued requests a slot each, as long as there are any."""
        number = min(len(self._queue), self._owners.available)
        batch = [self._queue.popleft() for _ in range(number)]
        slots = self._owners.take([request.cache_key for _, request in batch])
        for (order, request), (slot, is_own) in zip(batch, slots, strict=True):
            if not is_own:
                self._cached[slot] = 0
            self._place(order, request, slot)

    def _place(self, order: int, request: GenerationRequest, slot: int) -> None:
        """Writes a request into its slot, keeping what its slot or an equal prompt has computed."""
        prompt = np.asarray(request.prompt_token_ids, dtype=np.int64)
        size = len(prompt)
        kept = min(int(self._cached[slot]), size - 1)  # the last token is computed: it gives the logits
        differs = np.flatnonzero(self._tokens[slot, :kept] != prompt[:kept])
        kept = int(differs[0]) if len(differs) else kept
        self._source[slot] = -1
        if kept < size - 1:
            kept = self._borrow(slot, prompt, kept)
        self._tokens[slot, :size] = prompt
        self._cached[slot] = self._reused[slot] = kept
        self._known[slot] = size
        self._prompt[slot] = size
        self._limit[slot] = size + request.max_new_tokens
        if len(request.stop_token_ids) > self._stops.shape[1]:
            extra = len(request.stop_token_ids) - self._stops.shape[1]
            self._stops = np.pad(self._stops, ((0, 0), (0, extra)), constant_values=-1)
        self._stops[slot] = -1
        self._stops[slot, : len(request.stop_token_ids)] = request.stop_token_ids
        self._temperature[slot] = request.temperature
        self._top_p[slot] = request.top_p
        self._top_k[slot] = request.top_k
        if request.temperature > 0:
            generator = np.random.Generator(np.random.Philox(request.seed))
            self._uniforms[slot, : request.max_new_tokens] = generator.random(request.max_new_tokens)
        self._active[slot] = True
        self._request[slot] = (order, request)
        self.counters.prompt_tokens += size
        self.counters.cached_tokens += kept

    def _borrow(self, slot: int, prompt: np.ndarray, kept: int) -> int:
        """Returns the tokens a slot need not compute: all but one if another slot has the same prompt."""
        name, needed = prompt.tobytes(), len(prompt) - 1
        other = self._slot_of_prompt.get(name, slot)
        if other != slot and np.array_equal(self._tokens[other, :needed], prompt[:-1]):
            if self._source[other] < 0 and self._cached[other] >= needed:
                self._cache.copy_rows(np.array([other]), np.array([slot]), needed)
                return needed
            if self._source[other] < 0 and self._active[other] and self._prompt[other] >= needed:
                self._source[slot] = other  # it is in the queue for the next passes: copied right after
                return needed
        former = self._name_of_slot[slot]
        if former is not None and self._slot_of_prompt.get(former) == slot:
            del self._slot_of_prompt[former]
        self._name_of_slot[slot] = name
        self._slot_of_prompt[name] = slot
        return kept

    def _copy_sources(self) -> None:
        """Copies the prompts that the last pass computed to the slots that wait for them."""
        waiting = np.flatnonzero(self._active & (self._source >= 0))
        ready = waiting[self._cached[self._source[waiting]] >= self._cached[waiting]]
        if len(ready):
            self._cache.copy_rows(self._source[ready], ready, int(self._cached[ready].max()))
            self._source[ready] = -1

    def _pass(self) -> np.ndarray:
        """Runs the model once over the rows' new tokens, samples a token for each; returns finished slots."""
        rows = np.flatnonzero(self._active & (self._source < 0))
        new = self._known[rows] - self._cached[rows]
        cheap_first = np.argsort(new, kind="stable")
        within = np.cumsum(new[cheap_first]) <= self._max_pass_tokens
        within[0] = True
        rows = np.sort(rows[cheap_first[within]])
        plan = make_plan(rows, self._cached[rows], self._known[rows], self._cache)
        ids = torch.from_numpy(self._tokens[plan.slots.numpy(), plan.positions.numpy()])
        hidden = self._model.base_model(
            input_ids=ids[None],
            position_ids=plan.positions[None],
            use_cache=False,
            slot_plan=plan,
        ).last_hidden_state[0]
        rows = plan.rows
        self._cached[rows] = self._known[rows]
        self._copy_sources()
        head = self._model.get_output_embeddings().weight
        logits = linear(hidden[plan.last].float(), head.float())  # bf16 logits would be off by up to 0.06
        known, top_p, top_k = self._known[rows], self._top_p[rows], self._top_k[rows]
        chosen = choose_tokens(
            logits,
            torch.from_numpy(self._uniforms[rows, known - self._prompt[rows]]),
            torch.from_numpy(self._temperature[rows]),
            torch.from_numpy(top_p) if (top_p < 1).any() else None,
            torch.from_numpy(top_k) if (top_k >= 0).any() else None,
        )
        tokens, logprobs = (tensor.numpy() for tensor in chosen)
        self._tokens[rows, known] = tokens
        self._logprobs[rows, known] = logprobs
        self._known[rows] = known + 1
        stopped = (self._stops[rows] == tokens[:, None]).any(1)
        return rows[stopped | (known + 1 >= self._limit[rows])]

    def _finish(self, slot: int) -> tuple[int, Generation]:
        held = self._request[slot]
        assert held is not None
        order, request = held
        start, stop = self._prompt[slot], self._known[slot]
        token_ids = self._tokens[slot, start:stop].tolist()
        reason: Literal["stop", "length"] = "stop" if token_ids[-1] in request.stop_token_ids else "length"
        generation = Generation(
            request.request_id,
            token_ids,
            self._logprobs[slot, start:stop].tolist(),
            reason,
            int(self._reused[slot]),
        )
        self.counters.requests += 1
        self.counters.generated_tokens += len(token_ids)
        self._active[slot] = False
        self._request[slot] = None
        self._in_flight.remove(request.request_id)
        if self._owners.leave(slot):
            self._cached[slot] = 0
        return order, generation
