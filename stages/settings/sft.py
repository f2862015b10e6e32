"""The starting policy, from demonstrations."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.settings import Section, runtime


class TinyModel(Section):
    """A Qwen3 made from scratch, for a machine without a GPU."""

    hidden_size: int = Field(128, ge=8, description="width")
    num_layers: int = Field(6, ge=1, description="depth")
    num_heads: int = Field(4, ge=1, description="query heads")
    num_kv_heads: int = Field(2, ge=1, description="key and value heads")
    head_dim: int = Field(32, ge=2, multiple_of=2, description="width of a head, even for rotary positions")
    intermediate_size: int = Field(384, ge=8, description="width of the MLP")
    vocab_size: int = Field(1024, ge=300, description="byte-level BPE tokens, special ones included")
    max_position: int = Field(1024, ge=64, description="longest sequence in tokens")
    initializer_range: float = Field(
        0.08, gt=0, description="about 1/sqrt(width): 0.02 does not learn at this size"
    )

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> TinyModel:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads = {self.num_heads}; must be a multiple of num_kv_heads = {self.num_kv_heads}"
            )
        return self


class Sft(Section):
    """The starting policy, from demonstrations."""

    base: str | None = Field(
        None, description="model folder to start from, in Hugging Face format; null makes a tiny one"
    )
    model: TinyModel = TinyModel()
    shares: dict[str, float] = Field(
        {
            "adaptive": 0.30,
            "oracle": 0.10,
            "prober": 0.15,
            "prior_only": 0.20,
            "over_collector": 0.10,
            "noisy_adaptive": 0.15,
        },
        description="which scripted policies demonstrate, and how often",
    )
    num_demonstrations: int = Field(6000, ge=1, description="demonstrated episodes")
    practice_tasks: int = Field(
        0,
        ge=0,
        description="throwaway tasks to demonstrate on, of companies with no held-out name; "
        "0: the training tasks",
    )
    context_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="loss weight of prompts and replies: a model from scratch must learn to read",
    )
    guided_share: float = Field(0.3, ge=0, le=1, description="demonstrations whose prompt carries feedback")
    noise: float = Field(0.2, ge=0, le=1, description="share of random acts of the noisy policies")
    thoughts: bool = Field(
        False, description="demonstrators write before each call whom they call and what for"
    )
    num_updates: int = Field(600, ge=0, description="optimizer steps; 0 takes the base as it is")
    batch_rows: int = Field(64, ge=1, description="demonstrations per update")
    learning_rate: float = Field(2e-3, gt=0, description="peak, cosine to a tenth after warm-up")
    warmup_updates: int = Field(30, ge=0, description="linear warm-up")
    weight_decay: float = Field(0.01, ge=0, description="AdamW")
    checkpoint_every: int = runtime(200, ge=1, description="updates between checkpoints")
