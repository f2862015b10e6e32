"""How vLLM runs, and what its replicas find in their environment."""

import os
from dataclasses import dataclass

BLOCK_SIZE = 32
"""Tokens per block of the prefix cache."""
STEP = "a step of the engine"
"""After which a replica gives a sign of life."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM runs; nothing here changes what is sampled but for rounding.

    vLLM does not start unless its cache holds one row of `max_length`, the longest prompt and
    `max_new_tokens` together that a replica has room for; None, or more, is the model's limit.
    """

    dtype: str = "bfloat16"  # of weights and key-value cache
    replicas: int = 1  # side by side, each with a copy of the weights
    tensor_parallel: int = 1  # GPUs of one replica
    max_live: int = 256  # sequences in flight over all replicas
    max_length: int | None = None
    kv_cache_gib: float = 1.0  # of each replica on a CPU
    memory_share: float = 0.9  # of each GPU, weights included
    eager: bool = True  # no compilation and no graphs: a faster start, slower tokens


def replica_environment(index: int, tensor_parallel: int) -> dict[str, str]:
    """Returns what a replica's environment has over this process's.

    Torch's allocator stays as it is: vLLM reserves its memory once, and with expandable segments its
    all-reduce over several GPUs fails when it shares buffers (vllm-project/vllm issue 42609).

    Raises:
        ValueError: there are GPUs, but too few for this replica.
    """
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core lives, and dies, in the replica itself
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        import torch

        visible = ",".join(str(i) for i in range(torch.cuda.device_count()))
    if devices := [name for name in visible.split(",") if name]:
        mine = devices[index * tensor_parallel : (index + 1) * tensor_parallel]
        if len(mine) < tensor_parallel:
            raise ValueError(
                f"replica {index} of {tensor_parallel} GPUs does not fit on the {len(devices)} visible ones; "
                "lower engine.replicas or engine.tensor_parallel"
            )
        env["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return env
