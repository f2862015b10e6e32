"""DeepSpeed's JSON configuration: what of it the trainer takes, and what it refuses."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

OURS = {"optimizer", "scheduler", "gradient_clipping", "gradient_accumulation_steps", "train_batch_size"}
"""What the stages' own settings decide."""

ALLOWED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "zero_optimization.stage": (0, (1, 2, 3)),
    "zero_optimization.offload_param.device": ("none", ("none",)),
    "fp16.enabled": (False, (False,)),  # bf16 or fp32
}
"""Settings of DeepSpeed that the trainer supports in part -> DeepSpeed's default, what is supported."""


def deepspeed_config(path: Path, dtype: str) -> dict[str, Any]:
    """Returns `read_deepspeed_config` of a file; ConfigError if its precision is not `dtype`."""
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
    return bool(_at(content, "bf16.enabled"))


def _at(content: Any, name: str, default: Any = None) -> Any:
    for part in name.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return default if content is None else content


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
    if taken := sorted(content.keys() & OURS):
        raise ConfigError(
            f"training.deepspeed = {path} sets {', '.join(taken)}, which the stage's own settings decide; "
            "remove them there"
        )
    if _at(content, "zero_optimization.stage") == 1 and is_half(content):
        raise ConfigError(
            f"training.deepspeed = {path}: zero_optimization.stage = 1 with bf16, for which DeepSpeed takes "
            "another optimizer than the trainer knows. Next: stage 2, which needs less memory"
        )
    for name, (default, allowed) in ALLOWED.items():
        if (got := _at(content, name, default)) not in allowed:
            raise ConfigError(
                f"training.deepspeed = {path}: {name} = {json.dumps(got)}; allowed: "
                f"{', '.join(map(json.dumps, allowed))}. Next: change it there, or take a file of "
                "configs/deepspeed"
            )
    return content
