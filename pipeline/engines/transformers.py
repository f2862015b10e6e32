"""Generation with a transformers model: a continuous batch, the cache kept across a rollout's turns."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import linear

from pipeline.engines.protocol import Generation, GenerationRequest, check_requests, refuse_in_flight
from pipeline.engines.slots import SlotCache, SlotOwners, make_plan
from pipeline.processes.life import sign_of_life
from pipeline.ragged import ATTENTION_NAME, check_full_attention, run_packed

FINISH_SHARE = 0.1
"""Of the requests that it found, answered when `collect` returns; more would leave more rows idle."""

PASS_TOKENS = 4096
"""Of one pass at most, unless a single prompt is longer."""


class TransformersEngine:
    """A causal language model that is sampled; the engine owns the model from then on.

    Each request lives in a slot. A slot stays bound to its `cache_key` after the request is answered, so
    the rollout's next turn computes only what is new; requests with equal prompts compute them once; idle
    slots are given up least recently used first. One pass takes the next token of every decoding row and
    the new tokens of every fresh one together.

    A result depends on its request alone up to rounding: token i uses the i-th number of Philox(seed).

    Args:
        model: a transformers model, such as Qwen3ForCausalLM; ValueError unless it is on the CPU with full
            attention. That is replaced, so nothing else may run it: give a trainer a model of its own.
        policy_digest: name of the weights.
        max_live: slots, >= 1; more requests wait in the queue.
        dtype: of weights, keys and values: "float32" or "bfloat16"; None keeps the model's.
    """

    def __init__(self, model: Any, policy_digest: str, max_live: int, *, dtype: str | None = None) -> None:
        config = model.config
        check_full_attention(config)
        if dtype is not None:
            for weight in model.parameters():  # not the buffers: bf16 frequencies would blur far positions
                weight.data = weight.data.to(getattr(torch, dtype))
        parameter = next(model.parameters())
        if parameter.device.type != "cpu":
            raise ValueError(f"the model is on {parameter.device}; this engine plans its batches for the CPU")
        self.policy_digest = policy_digest
        self._model = model.eval()
        model.set_attn_implementation(ATTENTION_NAME)
        self.max_length = self.room = config.max_position_embeddings
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = (config.num_hidden_layers, max_live, config.num_key_value_heads, head_dim)
        self._cache = SlotCache(sizes, self.max_length, parameter.dtype)
        self._queue: deque[GenerationRequest] = deque()
        self._in_flight: dict[str, None] = {}  # ids, oldest first
        # What each slot holds. `cached` tokens have keys and values, `known` are there as ids.
        self._tokens = np.zeros((max_live, self.max_length), dtype=np.int64)
        self._logprobs = np.zeros((max_live, self.max_length), dtype=np.float32)
        self._uniforms = np.zeros((max_live, self.max_length), dtype=np.float64)
        self._cached = np.zeros(max_live, dtype=np.int64)
        self._known = np.zeros(max_live, dtype=np.int64)
        # The request that each slot serves, and how many tokens its prompt has and has reused.
        self._request: dict[int, GenerationRequest] = {}
        self._active = np.zeros(max_live, dtype=bool)
        self._source = np.full(max_live, -1, dtype=np.int64)  # slot that still computes the same prompt
        self._prompt = np.zeros(max_live, dtype=np.int64)
        self._reused = np.zeros(max_live, dtype=np.int64)
        self._owners = SlotOwners(self._cached)
        self._slot_of_prompt: dict[bytes, int] = {}  # a hint; checked before use

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue."""
        check_requests(requests, self._in_flight, self.max_length)
        self._in_flight.update(dict.fromkeys(request.request_id for request in requests))
        self._queue.extend(requests)

    @torch.inference_mode()
    def collect(self) -> list[Generation]:
        """Returns finished requests, oldest first."""
        self._admit()
        wanted = math.ceil(FINISH_SHARE * int(self._active.sum()))
        finished: dict[str, Generation] = {}
        while len(finished) < wanted:
            sign_of_life("a pass of the model")
            for slot in self._pass():
                generation = self._finish(slot)
                finished[generation.request_id] = generation
        oldest_first = [name for name in self._in_flight if name in finished]
        for name in oldest_first:
            del self._in_flight[name]
        return [finished[name] for name in oldest_first]

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets the caches kept under these keys; a request in flight keeps its own until answered."""
        for key in cache_keys:
            self._owners.release(key)

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Copies the weights in and drops every cache; tied weights may be given once.

        Raises ValueError if names are missing or unknown; the model is then unusable until the next load.
        """
        refuse_in_flight(self._in_flight, "loading weights")
        missing, unexpected = self._model.load_state_dict(weights, strict=False)
        # Of this model, not of its class: an untied one has an output layer of its own.
        missing = set(missing) - set(self._model.all_tied_weights_keys)
        if missing or unexpected:
            raise ValueError(
                f"not this model's weights: {sorted(missing)[:3]} missing, {sorted(unexpected)[:3]} unknown"
            )
        self._drop_caches()
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Drops every cache; the model stays, it is the caller's."""
        refuse_in_flight(self._in_flight, "sleeping")
        self._drop_caches()

    def close(self) -> None:
        """Drops the queue and every cache; idempotent."""
        self._queue.clear()
        self._in_flight.clear()
        self._active[:] = False
        self._drop_caches()

    def _drop_caches(self) -> None:
        self._cache.clear()
        self._cached[:] = 0
        self._slot_of_prompt.clear()
        self._owners = SlotOwners(self._cached)

    def _admit(self) -> None:
        """Gives queued requests a slot each, as long as there are any."""
        number = min(len(self._queue), self._owners.available)
        batch = [self._queue.popleft() for _ in range(number)]
        slots = self._owners.take([request.cache_key for request in batch])
        for request, slot in zip(batch, slots, strict=True):
            self._place(request, slot)

    def _place(self, request: GenerationRequest, slot: int) -> None:
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
        self._known[slot] = self._prompt[slot] = size
        if request.temperature > 0:
            generator = np.random.Generator(np.random.Philox(request.seed))
            self._uniforms[slot, : request.max_new_tokens] = generator.random(request.max_new_tokens)
        self._active[slot] = True
        self._request[slot] = request

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
        others = {held: at for held, at in self._slot_of_prompt.items() if at != slot}
        self._slot_of_prompt = others | {name: slot}
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
        within = np.cumsum(new[cheap_first]) <= PASS_TOKENS
        within[0] = True
        rows = np.sort(rows[cheap_first[within]])
        plan = make_plan(rows, self._cached[rows], self._known[rows], self._cache)
        ids = torch.from_numpy(self._tokens[plan.slots.numpy(), plan.positions.numpy()])
        hidden = run_packed(self._model.base_model, ids, plan)
        rows = plan.rows
        self._cached[rows] = self._known[rows]
        self._copy_sources()
        head = self._model.get_output_embeddings().weight
        logits = linear(hidden[plan.last].float(), head.float())  # bf16 logits would be off by up to 0.06
        requests = [self._request[row] for row in rows]
        known, sampled = self._known[rows], self._known[rows] - self._prompt[rows]
        uniforms = torch.from_numpy(self._uniforms[rows, sampled])
        temperatures = torch.tensor([request.temperature for request in requests], dtype=torch.float32)
        tokens, logprobs = (part.numpy() for part in choose_tokens(logits, uniforms, temperatures))
        self._tokens[rows, known] = tokens
        self._logprobs[rows, known] = logprobs
        self._known[rows] = known + 1
        ended = [
            token in request.stop_token_ids or number + 1 >= request.max_new_tokens
            for request, token, number in zip(requests, tokens, sampled, strict=True)
        ]
        return rows[ended]

    def _finish(self, slot: int) -> Generation:
        request = self._request.pop(slot)
        start, stop = self._prompt[slot], self._known[slot]
        token_ids = self._tokens[slot, start:stop].tolist()
        reason: Literal["stop", "length"] = "stop" if token_ids[-1] in request.stop_token_ids else "length"
        logprobs = self._logprobs[slot, start:stop].tolist()
        self._active[slot] = False
        self._owners.leave(slot)
        return Generation(request.request_id, token_ids, logprobs, reason, int(self._reused[slot]))


def choose_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the chosen tokens [N] and their log-probabilities [N], float32, for logits [N, V].

    A sampled token is the inverse of the cumulative distribution of softmax(logits / temperature) at its
    uniform number, float64 in [0, 1). A greedy token (temperature 0) is the argmax; its log-probability is
    the one under temperature 1.
    """
    greedy = temperatures == 0
    logits = logits.float()
    best = logits.argmax(-1) if bool(greedy.any()) else None
    if bool((temperatures != 1).any()):
        logits = logits / torch.where(greedy, 1.0, temperatures)[:, None]
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    # Below the total by more than rounding, so that no token of probability 0 can be the last choice.
    threshold = uniforms.clamp(max=1 - 1e-12)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    if best is not None:
        tokens = torch.where(greedy, best, tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
