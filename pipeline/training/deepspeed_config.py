"""DeepSpeed's JSON configuration: what of it the trainer takes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

OURS = ("optimizer", "scheduler", "gradient_clipping", "gradient_accumulation_steps", "train_batch_size")
"""What the stages' own settings decide."""

ALLOWED: dict[str, tuple[Any, ...]] = {
    "zero_optimization.stage": (1, 2, 3),
    "zero_optimization.offload_param.device": ("none",),
    "fp16.enabled": (False,),  # bf16 or fp32
}
"""Settings of DeepSpeed that the trainer supports in part."""


def deepspeed_config(path: Path, dtype: str) -> dict[str, Any]:
    """Returns the configuration in a file, of which `dtype` is the precision.

    Raises:
        ConfigError: as `read_deepspeed_config`, or its precision is not `training.dtype`.
    """
    content = read_deepspeed_config(path)
    half = is_half(content)
    if half != (dtype == "bfloat16"):
        other = "bfloat16" if half else "float32"
        raise ConfigError(
            f"training.dtype = {dtype}, but bf16.enabled is {str(half).lower()} in "
            f"training.deepspeed = {path}. Next: training.dtype={other}, or a file that agrees "
            "(configs/deepspeed has zero2.json and zero3_cpu_adam.json in bf16, zero2_fp32.json in fp32)"
        )
    return content


def is_half(content: Mapping[str, Any]) -> bool:
    """Returns whether a configuration of DeepSpeed computes in bf16."""
    return bool(_object(content, "bf16").get("enabled"))


def _object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


def read_deepspeed_config(path: Path) -> dict[str, Any]:
    """Returns DeepSpeed's configuration from a JSON file.

    Raises:
        ConfigError: there is none, it is no JSON object, it sets what the trainer decides, or it asks for
            what the trainer cannot do: another ZeRO stage, fp16, weights on the host.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"training.deepspeed = {path}: not a readable JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"training.deepspeed = {path}: a JSON object is needed, got {type(content).__name__}"
        )
    if taken := sorted(set(content) & set(OURS)):
        raise ConfigError(
            f"training.deepspeed = {path} sets {', '.join(taken)}, which the stage's own settings decide; "
            "remove them there"
        )
    zero = _object(content, "zero_optimization")
    stage = zero.get("stage", 0)
    if stage == 1 and is_half(content):
        raise ConfigError(
            f"training.deepspeed = {path}: zero_optimization.stage = 1 with bf16, for which DeepSpeed takes "
            "another optimizer than the trainer knows. Next: stage 2, which needs less memory"
        )
    found = {
        "zero_optimization.stage": stage,
        "zero_optimization.offload_param.device": _object(zero, "offload_param").get("device", "none"),
        "fp16.enabled": _object(content, "fp16").get("enabled", False),
    }
    for name, got in found.items():
        if got not in ALLOWED[name]:
            raise ConfigError(
                f"training.deepspeed = {path}: {name} = {json.dumps(got)}; allowed: "
                f"{', '.join(map(json.dumps, ALLOWED[name]))}. Next: change it there, or take a file of "
                "configs/deepspeed"
            )
    return content
