"""The starting policy, from demonstrations."""

from typing import Any

from pydantic import model_validator

from env.sessions import GOOD
from env.solutions import Solutions
from pipeline.settings import Section, runtime, setting

HEAD_DIM = 32
"""Width of a head: the least that vLLM's attention on CPUs knows."""
BASE_RATE = 1e-5
"""Learning rate of a model that is trained already (start value)."""
VOCAB_SIZE = 768
"""Byte-level BPE tokens of a tokenizer made from scratch, special ones included: as every run in docs has."""


class TinyModel(Section):
    """A Qwen3 made from scratch, for a machine without a GPU."""

    hidden_size: int = setting(128, "width", ge=32)
    num_layers: int = setting(6, "depth", ge=1)
    num_kv_heads: int = setting(2, "key and value heads", ge=1, advanced=True)
    intermediate_size: int = setting(384, "width of the MLP", ge=8)

    @property
    def num_heads(self) -> int:
        """Query heads: as many of `HEAD_DIM` as the width holds, a multiple of the key and value heads."""
        return max(1, self.hidden_size // HEAD_DIM // self.num_kv_heads) * self.num_kv_heads


class RecordedData(Solutions):
    """Solutions or whole sessions of somebody's, and which of them are good enough."""

    above: float | None = setting(
        GOOD,
        "reward from which on, this one excluded, a row is imitated; null: whatever it earned, which clones "
        "the behaviour of whoever was recorded",
    )


class Sft(Section):
    """The starting policy, from demonstrations."""

    base: str | None = setting(
        None, "model folder to start from, in Hugging Face format; null makes a tiny one"
    )
    model: TinyModel = TinyModel()
    shares: dict[str, float] | None = setting(
        None, "which scripted policies demonstrate, and how often; null: as the environment says"
    )
    data: RecordedData | None = setting(
        None,
        "recorded solutions or sessions, a file or data set: the good ones are imitated, not scripted "
        "policies (docs/own-tasks.md, docs/recorded.md)",
    )
    num_demonstrations: int = setting(6000, "demonstrated episodes of scripted policies", ge=1)
    practice_tasks: int = setting(
        0,
        "throwaway tasks to demonstrate on, of clusters that are not held out; 0: the training tasks",
        ge=0,
    )
    guided_share: float = setting(0.3, "demonstrations with feedback in the prompt", ge=0, le=1)
    follows_feedback: float = setting(
        0.5, "of these, by whoever knows what the feedback says; the others do not care", ge=0, le=1
    )
    thoughts: bool = setting(False, "demonstrators write before each act what they are about to do")
    num_updates: int = setting(600, "optimizer steps; 0 takes the base as it is", ge=0)
    batch_rows: int = setting(64, "demonstrations per update", ge=1)
    learning_rate: float = setting(
        2e-3, f"peak, cosine to a tenth after warm-up; {BASE_RATE:g} where not set and there is a base", gt=0
    )
    checkpoint_every: int = runtime(200, "updates between checkpoints", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _spares_what_a_base_knows(cls, data: Any) -> Any:
        """Returns the data with a base's own rate: at a model from scratch's, 60 updates ruin one of 8B."""
        if isinstance(data, dict) and data.get("base") is not None:
            return {"learning_rate": BASE_RATE} | data
        return data

    @property
    def context_weight(self) -> float:
        """Loss weight of prompts and replies: a model from scratch must learn to read them."""
        return 0.3 if self.base is None else 0.0

    @property
    def warmup_updates(self) -> int:
        """Updates of linear warm-up: a tenth of all, at most 30."""
        return min(30, self.num_updates // 10)
