"""A decoder and its head as every trainer runs them: packed rows in, numbers per token out."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import product
from typing import Any, Literal

import torch

from pipeline.ragged import ATTENTION_NAME, check_full_attention, run_packed
from pipeline.training.attention import Packing
from pipeline.training.fusing import fuse_layers, pays, recompute_layers
from pipeline.training.logprobs import chosen_logprobs
from pipeline.training.packing import Batch

Head = Literal["policy", "critic"]
HEAD = "score."
"""First letters of the names of a critic's head, which may be trained alone."""


class Network(torch.nn.Module):
    """Wraps a Hugging Face decoder and replaces its attention; parameters are the model's own.

    Dropout is never applied, so nothing here is random. With `head_only` set, the body is left out of the
    backward pass.

    Args:
        model: a causal language model, or one with a `score` layer that yields two numbers per token.
        head: "policy" yields `logprobs` [N] at temperature 1, "critic" `scores` [N, 2], always fp32.
        piece_tokens: tokens with logits in memory at once.
        recompute: keep only each layer's input and compute its inside again in the backward pass.
        compute_dtype: "bfloat16" computes products in it under autocast; "float32" in the weights' own.
        compiles: let torch compile the layers, where that pays. DeepSpeed's ZeRO 3 gathers weights by hooks
            inside layers, which compiled ones need not call.
    """

    def __init__(
        self,
        model: Any,
        *,
        head: Head,
        piece_tokens: int = 1024,
        recompute: bool = False,
        compute_dtype: str = "float32",
        compiles: bool = True,
    ) -> None:
        super().__init__()
        check_full_attention(model.config)
        self.model = model.eval()
        self.head_only = False
        self._head = head
        self._piece_tokens = piece_tokens
        self._autocast = None if compute_dtype == "float32" else getattr(torch, compute_dtype)
        model.set_attn_implementation(ATTENTION_NAME)
        if recompute:
            recompute_layers(model)
        self._fused = compiles and pays(model)
        if self._fused:
            fuse_layers(model)

    def scoring(self) -> AbstractContextManager[None]:
        """Returns the mode in which passes without a backward pass are made.

        Layers compiled for scoring alone would round otherwise than those that train (a hundredth of a nat in
        bf16), and the ratio of an update's first step would not be 1. So the same ones score, as if to train.
        Without its adapters a model trains nothing, so as a reference it has others.
        """
        return torch.enable_grad() if self._fused else torch.no_grad()

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Returns the outputs of one packed batch, which lies on the model's device."""
        device = batch.token_ids.device
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.head_only):
                hidden = run_packed(self.model.base_model, batch.token_ids, Packing(batch.lengths, device))
            if self._head == "policy":
                return {"logprobs": self._logprobs(hidden, batch)}
        score = self.model.score  # by its own precision: in bf16 a score of 3 has steps of .016
        return {"scores": score(hidden.to(score.weight.dtype)).float()}

    def _logprobs(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns [N] as `Trainer.forward` says: the output layer is a large share of the work."""
        number = len(batch.token_ids)
        weight = batch.columns.get("weight")
        flags = torch.ones(number, dtype=torch.bool, device=hidden.device) if weight is None else weight != 0
        flags[batch.starts] = False
        at = flags.nonzero()[:, 0]
        logprobs = chosen_logprobs(
            hidden.index_select(0, at - 1),
            self.model.get_output_embeddings().weight,
            batch.token_ids[at],
            piece_tokens=self._piece_tokens,
        )
        return logprobs.new_zeros(number).index_copy(0, at, logprobs)


def adamw_groups(named: Mapping[str, torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Returns AdamW's groups: a critic's head (`head`) apart from its body, and no decay for vectors."""
    groups = []
    for head, vectors in product((False, True), repeat=2):
        members = [p for n, p in named.items() if n.startswith(HEAD) == head and (p.ndim < 2) == vectors]
        if members:
            decay = 0.0 if vectors else weight_decay
            groups.append({"params": members, "weight_decay": decay, "head": head})
    return groups
