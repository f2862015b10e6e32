"""How text is sampled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import Section, runtime


class Engine(Section):
    """How text is sampled, in every stage that samples."""

    kind: Literal["transformers", "vllm", "scripted"] = Field(
        "transformers", description="generation backend"
    )
    max_live: int = runtime(256, ge=1, description="rollouts in flight at once")
    overlap_shards: bool = runtime(
        False,
        description="in rollouts and labels, start the next shard while the last one ends: keeps GPUs "
        "full; without it a resumed run is the undisturbed one to the bit",
    )
    env_workers: int = runtime(
        0, ge=0, description="threads in which environments work beside generation; 0 is in line"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the engine's weights and key-value cache"
    )
    replicas: int = runtime(1, ge=1, description="vllm: engines side by side, each with all weights")
    tensor_parallel: int = runtime(1, ge=1, description="vllm: GPUs of one replica")
    block_size: int = runtime(32, ge=1, description="vllm: tokens per block of the prefix cache")
    max_length: int | None = runtime(
        None,
        ge=1,
        description="vllm: longest row in tokens that its cache must hold; null: the largest budgets of "
        "response and feedback, and 1,024 for a task's own prompt. The model's limit where that is less",
    )
    kv_cache_gib: float = runtime(
        1.0, gt=0, description="vllm on a CPU: memory of keys and values, a replica"
    )
    shared_gpus: bool = runtime(
        False,
        description="actor: engine and trainer take turns on the same GPUs: the engine sleeps while the "
        "trainer works, whose state waits in host memory while the engine does",
    )
    memory_share: float = runtime(0.9, gt=0, le=1, description="vllm on a GPU: share of it, weights included")
    eager: bool = runtime(True, description="vllm: no compilation: starts faster, generates slower")
    handoff: Literal["memory", "disk"] = runtime("memory", description="vllm: how new weights reach it")
    handoff_folder: str | None = runtime(None, description="vllm: for disk; null is the temporary folder")
    threads: int = runtime(0, ge=0, description="vllm: CPU threads of a replica; 0 is all")
    start_timeout: float = runtime(1800.0, gt=0, description="vllm: seconds until a replica must be ready")
    answer_timeout: float = runtime(
        1800.0, gt=0, description="vllm: seconds without a finished request until a replica counts as hung"
    )
