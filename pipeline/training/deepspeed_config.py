"""DeepSpeed's JSON configuration: what of it the trainer takes, and what it refuses."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

ALLOWED: dict[str, tuple[Any, ...]] = {
    "zero_optimization.stage": (2, 3),
    "zero_optimization.offload_param.device": (None, "none"),
    "fp16.enabled": (None, False),  # bf16 or fp32
    # Master weights, moments and sums over micro-batches are fp32 (gradients cross ranks in bf16 unless
    # communication_data_type says otherwise), and an update that is no number is skipped.
    "bf16.bf16_master_weights_and_grads": (None, False),
    "bf16.bf16_optimizer_states": (None, False),
    "bf16.check_grad_overflow": (None, True),
    **dict.fromkeys(
        # What the stages' own settings decide.
        ("optimizer", "scheduler", "gradient_clipping", "gradient_accumulation_steps", "train_batch_size"),
        (None,),
    ),
}
"""Keys whose other values would fail late, or be ignored -> what is supported; None is no such key."""


SECTIONS = (
    *("aio", "bf16", "comms_logger", "communication_data_type", "data_types", "dump_state", "flops_profiler"),
    *("fp16", "gradient_predivide_factor", "memory_breakdown", "prescale_gradients", "steps_per_print"),
    *(
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    ),
)
"""What a file may have; DeepSpeed ignores a name that it does not know."""


def deepspeed_config(path: Path, dtype: str) -> dict[str, Any]:
    """Returns DeepSpeed's configuration from a JSON file.

    Raises:
        ConfigError: there is none, it asks for what the trainer cannot do, or its precision is not `dtype`.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"training.deepspeed = {path}: not a readable JSON file ({error})") from error
    for name, allowed in ALLOWED.items():
        if (got := _at(content, name)) not in allowed:
            raise ConfigError(
                f"training.deepspeed = {path}: {name} = {json.dumps(got)}; allowed: "
                f"{' or '.join('no such key' if value is None else json.dumps(value) for value in allowed)}. "
                "Next: change it there, or take a file of configs/deepspeed"
            )
    if unknown := sorted(set(content) - set(SECTIONS)):
        raise ConfigError(
            f"training.deepspeed = {path}: {unknown[0]} is not supported; allowed: {', '.join(SECTIONS)}. "
            "Next: take it out"
        )
    half = is_half(content)
    if half != (dtype == "bfloat16"):
        other = "bfloat16" if half else "float32"
        raise ConfigError(
            f"training.dtype = {dtype}, but bf16.enabled is {str(half).lower()} in "
            f"training.deepspeed = {path}. Next: training.dtype={other}, or a file that agrees "
            "(configs/deepspeed has zero2.json and zero3_cpu_adam.json in bf16, zero2_fp32.json in fp32)"
        )
    if half and (got := _at(content, "data_types.grad_accum_dtype")) != "fp32":
        raise ConfigError(
            f'training.deepspeed = {path}: data_types.grad_accum_dtype = {json.dumps(got)}; allowed: "fp32". '
            "Without it DeepSpeed adds up in bf16. Next: set it there, as in configs/deepspeed/zero2.json"
        )
    return dict(content)


def is_half(content: Mapping[str, Any]) -> bool:
    """Returns whether a configuration of DeepSpeed computes in bf16."""
    return bool(_at(content, "bf16.enabled"))


def _at(content: Any, name: str) -> Any:
    for part in name.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content
