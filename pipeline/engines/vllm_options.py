"""How vLLM runs, and what its replicas find in their environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

BLOCK_SIZE = 32
"""Tokens per block of the prefix cache."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM runs; nothing here changes what is sampled but for rounding.

    Attributes:
        dtype: of weights and key-value cache, "float32" or "bfloat16".
        replicas: engines side by side, each with a copy of the weights.
        tensor_parallel: GPUs of one replica.
        max_live: sequences in flight over all replicas.
        max_length: longest prompt and `max_new_tokens` together that a replica has room for, since vLLM does
            not start unless its cache holds one such row; None, or more, is the model's limit.
        kv_cache_gib: memory for keys and values of each replica on a CPU.
        memory_share: share of each GPU that a replica takes, weights included.
        threads: CPU threads of each replica; 0 is all.
        eager: no compilation and no graphs: a faster start, slower tokens.
        start_timeout: seconds a replica may take until it is ready.
        answer_timeout: seconds without any finished request until a replica counts as hung.
    """

    dtype: str = "bfloat16"
    replicas: int = 1
    tensor_parallel: int = 1
    max_live: int = 256
    max_length: int | None = None
    kv_cache_gib: float = 1.0
    memory_share: float = 0.9
    threads: int = 0
    eager: bool = True
    start_timeout: float = 1800.0
    answer_timeout: float = 1800.0


def replica_environment(index: int, options: VllmOptions) -> dict[str, str]:
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
    if options.threads:
        env["OMP_NUM_THREADS"] = str(options.threads)
    if visible := gpus_of_replica(index, options.tensor_parallel):
        env["CUDA_VISIBLE_DEVICES"] = visible
    return env


def gpus_of_replica(index: int, tensor_parallel: int) -> str | None:
    """Returns the devices of one replica, cut from those this process may use; None without any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = ",".join(str(i) for i in range(torch.cuda.device_count()))
    devices = [name for name in visible.split(",") if name]
    if not devices:
        return None
    mine = devices[index * tensor_parallel : (index + 1) * tensor_parallel]
    if len(mine) < tensor_parallel:
        raise ValueError(
            f"replica {index} of {tensor_parallel} GPUs does not fit on the {len(devices)} visible ones; "
            "lower engine.replicas or engine.tensor_parallel"
        )
    return ",".join(mine)
