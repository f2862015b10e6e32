"""A decoder and its head as every trainer runs them: packed rows in, numbers per token out."""

from __future__ import annotations

from typing import Any, Literal

import torch

from pipeline.training.attention import ATTENTION_NAME, Packing, check_packable, run_packed, take_rows
from pipeline.training.logprobs import chosen_logprobs
from pipeline.training.rows import Batch

Head = Literal["policy", "critic"]


class Network(torch.nn.Module):
    """Wraps a Hugging Face decoder, whose attention it replaces; parameters are the model's own.

    Dropout is never applied, so nothing here is random.

    Attributes:
        head_only: whether the body is left out of the backward pass.

    Args:
        model: a causal language model, or one with a `score` layer that yields two numbers per token.
        head: "policy" yields `logprobs` [N] (and `entropy`), "critic" `scores` [N, 2], always fp32.
        temperature: logits are divided by it: the sampling temperature, so that ratios are true.
        entropy: whether a policy also yields `entropy`, without gradient.
        piece_tokens: tokens whose logits exist at once.
        recompute: keep only each layer's input and compute its inside again in the backward pass.
        compute_dtype: "bfloat16" computes products in it under autocast; "float32" in the weights' own.

    Raises:
        ValueError: a setting out of range, or a model that cannot be packed.
    """

    def __init__(
        self,
        model: Any,
        *,
        head: Head,
        temperature: float = 1.0,
        entropy: bool = False,
        piece_tokens: int = 1024,
        recompute: bool = False,
        compute_dtype: str = "float32",
    ) -> None:
        super().__init__()
        if head == "critic" and not hasattr(model, "score"):
            raise ValueError(f"head critic needs a model with a `score` layer, got {type(model).__name__}")
        if temperature <= 0:
            raise ValueError(f"temperature = {temperature}; must be > 0")
        check_packable(model.config)
        self.model = model.eval()
        self.head_only = False
        self._head = head
        self._temperature = temperature
        self._entropy = entropy
        self._piece_tokens = piece_tokens
        self._autocast = None if compute_dtype == "float32" else getattr(torch, compute_dtype)
        model.set_attn_implementation(ATTENTION_NAME)
        if recompute:
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            # transformers 5.20 renamed it, and warns of the old name.
            enable = (
                getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            )
            enable({"use_reentrant": False})
            model.train()  # transformers recomputes in training mode only

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Returns the outputs of one packed batch, which lies on the model's device."""
        device = batch.token_ids.device
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.head_only):
                hidden = run_packed(self.model.base_model, batch.token_ids, Packing(batch.lengths, device))
            if self._head == "critic":
                return {"scores": self.model.score(hidden).float()}
            return self._token_outputs(hidden, batch)

    def _token_outputs(self, hidden: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Returns log-probabilities (and entropy) of the wanted tokens from the states before them, else 0.

        Wanted are tokens where the `want` column is not 0, without it where `weight` is not 0, without either
        all; never a row's first token, which nothing predicts. The output layer is a large share of the work.
        """
        number = len(batch.token_ids)
        wanted = batch.columns.get("want", batch.columns.get("weight"))
        flags = torch.ones(number, dtype=torch.bool, device=hidden.device) if wanted is None else wanted != 0
        flags[batch.starts] = False
        at = flags.nonzero()[:, 0]
        logprobs, entropies = chosen_logprobs(
            take_rows(hidden, at - 1),
            self.model.get_output_embeddings().weight,
            batch.token_ids[at],
            temperature=self._temperature,
            piece_tokens=self._piece_tokens,
            entropy=self._entropy,
        )
        outputs = {"logprobs": logprobs.new_zeros(number).index_copy(0, at, logprobs)}
        if entropies is not None:
            outputs["entropy"] = entropies.new_zeros(number).index_copy(0, at, entropies)
        return outputs
