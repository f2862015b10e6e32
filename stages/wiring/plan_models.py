"""Models as shapes, and how they are trained, as the planner sees them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from pipeline.errors import ConfigError
from pipeline.planner.activations import Forward
from pipeline.planner.memory import Shape, Training, shape_of
from pipeline.training.deepspeed_config import deepspeed_config, is_half
from pipeline.training.side_by_side import PASSES
from stages.settings import Config
from stages.settings.sft import VOCAB_SIZE
from stages.wiring.build import tiny_shape

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
"""config.json of models to plan with while their weights are not on this machine, by name in lower case."""


def model_config(config: Config) -> Any:
    """Returns the transformers configuration of the policy, without weights.

    Raises ConfigError if `sft.base` is not here and `configs/models` does not describe it.
    """
    if config.sft.base is not None:
        return _described(config.sft.base, "sft.base")
    return tiny_shape(config).config(VOCAB_SIZE)


def critic_config(config: Config, policy: Any) -> Any:
    """Returns the transformers configuration of the critic's trunk."""
    return policy if config.critic.trunk == "policy" else _described(config.critic.trunk, "critic.trunk")


def _described(folder: str, setting: str) -> Any:
    for path in (Path(folder) / "config.json", MODELS / f"{Path(folder).name.lower()}.json"):
        if path.is_file():
            content = json.loads(path.read_text("utf-8"))
            return AutoConfig.for_model(content.pop("model_type"), **content)
    known = ", ".join(sorted(path.stem for path in MODELS.glob("*.json")))
    raise ConfigError(
        f"{setting} = {folder} has no config.json here, and configs/models describes no model of its name "
        f"(there are: {known}). Next: put its config.json there as {Path(folder).name.lower()}.json"
    )


def training_of(config: Config, model: Any, row_tokens: int) -> Training:
    """Returns how the configuration trains a model, in rows of at most so many tokens.

    A row that is longer than a micro-batch is one of its own.
    """
    settings = config.training
    forward = Forward(
        max(settings.micro_batch_tokens, row_tokens),
        row_tokens,
        half_products=settings.dtype == "bfloat16",
        on_gpu=config.hardware.num_gpus > 0,
        lora_rank=settings.lora_rank,
    )
    if settings.backend == "torch":
        alone = config.hardware.num_gpus > 0 or settings.threads == 1
        return Training(forward, recompute=settings.recompute, passes=1 if alone else PASSES)
    file = deepspeed_config(Path(settings.deepspeed), settings.dtype)
    zero, half = file["zero_optimization"], is_half(file)
    return Training(
        replace(forward, half_weights=half, half_products=False),  # of half weights they are so anyway
        "deepspeed",
        zero_stage=int(zero.get("stage", 0)),
        num_ranks=settings.num_ranks,
        offload=zero.get("offload_optimizer", {}).get("device", "none") != "none",
        recompute=settings.recompute,
        buffer_bytes=_buffered(zero, shape_of(model)) * (2 if half else 4),
    )


def _buffered(zero: Mapping[str, Any], shape: Shape) -> int:
    """Returns the numbers in DeepSpeed's buffers: buckets of gradients, under ZeRO 3 gathered weights."""
    bucket = int(zero.get("reduce_bucket_size", 500_000_000))
    if zero.get("stage") != 3:
        return bucket * (2 if zero.get("overlap_comm") else 1)
    # The largest gathered weight may come on top of those that it holds.
    live = int(zero.get("stage3_max_live_parameters", 1_000_000_000))
    return bucket + min(live + shape.vocabulary * shape.width, shape.parameters)
