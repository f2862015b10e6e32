"""How text is sampled, in every stage that samples: a section for each kind of engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from pipeline.settings import Section, by_kind, runtime, setting


class _Engine(Section):
    """What every engine has."""

    max_live: int = runtime(256, ge=1, description="rollouts in flight at once")
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", description="of the engine's weights and key-value cache"
    )


class _InOneQueue(_Engine):
    """What engines have whose units may be played as one queue."""

    overlap_shards: bool = runtime(
        False,
        description="start the next shard while the last one ends: keeps GPUs full; without it a resumed run "
        "is the undisturbed one to the bit",
        advanced=True,
    )


class Transformers(_Engine):
    """transformers' models on a CPU, with a cache of shared prefixes."""

    kind: Literal["transformers"] = "transformers"
    replicas: int | None = runtime(
        None,
        ge=1,
        description="processes that play, of one thread each, with all weights; null: one for every usable "
        "core. Rollouts are the same whatever their number",
    )


class Vllm(_InOneQueue):
    """vLLM in processes of its own."""

    kind: Literal["vllm"] = "vllm"
    replicas: int = runtime(1, ge=1, description="engines side by side, each with all weights")
    tensor_parallel: int = runtime(1, ge=1, description="GPUs of one replica")
    memory_share: float = runtime(
        0.9, gt=0, le=1, description="share of a GPU that a replica takes, weights included"
    )
    shared_gpus: bool = runtime(
        False,
        description="actor: engine and trainer take turns on the same GPUs: the engine sleeps while the "
        "trainer works, and the trainer's state waits in host memory while the engine does",
    )
    eager: bool = runtime(True, description="no compilation: starts faster, generates slower")
    kv_cache_gib: float = runtime(
        1.0, gt=0, description="on a CPU: memory of keys and values, a replica", advanced=True
    )


class Scripted(_InOneQueue):
    """The environment's scripted agent: a fixed policy, whatever the weights."""

    kind: Literal["scripted"] = "scripted"
    replicas: int = runtime(1, ge=1, description="processes that play")


Engine = Annotated[
    Annotated[Transformers, Tag("transformers")]
    | Annotated[Vllm, Tag("vllm")]
    | Annotated[Scripted, Tag("scripted")],
    by_kind("kind", "transformers"),
]


def overlaps_shards(engine: Engine) -> bool:
    """Returns whether all shards are played as one queue."""
    return engine.kind != "transformers" and engine.overlap_shards


def shares_gpus(engine: Engine) -> bool:
    """Returns whether engine and trainer take turns on the same GPUs."""
    return engine.kind == "vllm" and engine.shared_gpus
