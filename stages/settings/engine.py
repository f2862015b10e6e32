"""How text is sampled, in every stage that samples: a section for each kind of engine."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.settings import Section, runtime, setting


class _Engine(Section):
    """What every engine has."""

    max_live: int = runtime(256, "rollouts in flight at once", ge=1)
    dtype: Literal["float32", "bfloat16"] = setting("float32", "of the engine's weights and key-value cache")


class _InOneQueue(_Engine):
    """What engines have whose units may be played as one queue."""

    overlap_shards: bool = runtime(
        False,
        "start the next shard while the last one ends: keeps GPUs full; without it a resumed run is the "
        "undisturbed one to the bit",
        advanced=True,
    )


class Transformers(_Engine):
    """transformers' models on a CPU, with a cache of shared prefixes."""

    overlap_shards: ClassVar[bool] = False
    shared_gpus: ClassVar[bool] = False
    kind: Literal["transformers"] = "transformers"
    replicas: int | None = runtime(
        None,
        "processes that play, of one thread each, with all weights; null: one for every usable core, 8 "
        "at most. Rollouts are the same whatever their number",
        ge=1,
    )


class Vllm(_InOneQueue):
    """vLLM in processes of its own."""

    kind: Literal["vllm"] = "vllm"
    replicas: int = runtime(1, "engines side by side, each with all weights", ge=1)
    tensor_parallel: int = runtime(1, "GPUs of one replica", ge=1)
    memory_share: float = runtime(0.9, "share of a GPU that a replica takes, weights included", gt=0, le=1)
    shared_gpus: bool = runtime(
        False,
        "actor: engine and trainer take turns on the same GPUs: the engine sleeps while the trainer works, "
        "and the trainer's state waits in host memory while the engine does",
    )
    eager: bool = runtime(True, "no compilation: starts faster, generates slower")


class Scripted(_InOneQueue):
    """The environment's scripted agent: a fixed policy, whatever the weights."""

    shared_gpus: ClassVar[bool] = False
    kind: Literal["scripted"] = "scripted"
    replicas: int = runtime(1, "processes that play", ge=1)


Engine = Annotated[Transformers | Vllm | Scripted, Field(discriminator="kind")]
