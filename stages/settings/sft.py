"""The starting policy, from demonstrations."""

from __future__ import annotations

from pipeline.settings import Section, runtime, setting

HEAD_DIM = 32
"""Width of a head: the least that vLLM's attention on CPUs knows."""


class TinyModel(Section):
    """A Qwen3 made from scratch, for a machine without a GPU."""

    hidden_size: int = setting(128, ge=32, description="width")
    num_layers: int = setting(6, ge=1, description="depth")
    num_kv_heads: int = setting(2, ge=1, description="key and value heads", advanced=True)
    intermediate_size: int = setting(384, ge=8, description="width of the MLP")
    vocab_size: int = setting(1024, ge=300, description="byte-level BPE tokens, special ones included")

    @property
    def num_heads(self) -> int:
        """Query heads: as many of `HEAD_DIM` as the width holds, a multiple of the key and value heads."""
        return max(1, self.hidden_size // HEAD_DIM // self.num_kv_heads) * self.num_kv_heads


class Sft(Section):
    """The starting policy, from demonstrations."""

    base: str | None = setting(
        None, description="model folder to start from, in Hugging Face format; null makes a tiny one"
    )
    model: TinyModel = TinyModel()
    shares: dict[str, float] | None = setting(
        None,
        description="which scripted policies demonstrate, and how often; null: as the environment says",
    )
    num_demonstrations: int = setting(6000, ge=1, description="demonstrated episodes")
    practice_tasks: int = setting(
        0,
        ge=0,
        description="throwaway tasks to demonstrate on, of companies with no held-out name; "
        "0: the training tasks",
    )
    context_weight: float = setting(
        0.0,
        ge=0,
        le=1,
        description="loss weight of prompts and replies: a model from scratch must learn to read",
    )
    guided_share: float = setting(0.3, ge=0, le=1, description="demonstrations with feedback in the prompt")
    thoughts: bool = setting(
        False, description="demonstrators write before each call whom they call and what for"
    )
    num_updates: int = setting(600, ge=0, description="optimizer steps; 0 takes the base as it is")
    batch_rows: int = setting(64, ge=1, description="demonstrations per update")
    learning_rate: float = setting(2e-3, gt=0, description="peak, cosine to a tenth after warm-up")
    warmup_updates: int = setting(30, ge=0, description="linear warm-up")
    checkpoint_every: int = runtime(200, ge=1, description="updates between checkpoints")
