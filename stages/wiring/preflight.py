"""What a stage refuses before its plan fixes its settings: a missing package, GPUs that are not there."""

from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.hardware import check_gpus
from pipeline.training.deepspeed_config import deepspeed_config
from stages.settings import Config


def trains_in_ranks(config: Config) -> bool:
    """Returns whether a stage that trains does so in ranks, which further nodes may lend."""
    return config.training.backend == "deepspeed"


def check_installed(
    config: Config, *, engine: bool = False, training: bool = False, feedback: bool = False
) -> None:
    """Raises ConfigError if a stage with an engine, with training, will miss a package, a file or GPUs.

    One that has `feedback` written will miss the client of a server.
    """
    trainer = config.training
    if feedback and config.feedback.kind == "server":
        check_client()
    for needed, setting, kind in (
        (engine, "engine.kind", config.engine.kind),
        (training, "training.backend", trainer.backend),
    ):
        if needed and kind in ("vllm", "deepspeed") and find_spec(kind) is None:
            raise ConfigError(
                f"{setting} = {kind}, but the package {kind} is not installed. Next: make setup-engines on "
                f"a CPU, pip install -c constraints.txt -e '.[{kind}]' on a machine with GPUs, or another "
                f"{setting}"
            )
    if training and trainer.backend == "deepspeed":
        deepspeed_config(Path(trainer.deepspeed), trainer.dtype)
    if training and trainer.lora_rank and find_spec("peft") is None:
        raise ConfigError(
            f"training.lora_rank = {trainer.lora_rank}, but the package peft is not installed. Next: "
            "pip install -c constraints.txt -e '.[lora]', or training.lora_rank = 0"
        )
    if training or (engine and config.engine.kind == "vllm"):
        wanted = config.gpus_wanted(engine=engine, training=training)
        check_gpus(config.hardware.num_gpus, config.hardware.gpu_memory_gib, wanted)


def check_client() -> None:
    """Raises ConfigError if what asks a feedback server is not installed."""
    if missing := [name for name in ("openai", "tenacity") if find_spec(name) is None]:
        raise ConfigError(
            f"feedback.kind = server, but {' and '.join(missing)} is not installed. Next: "
            "pip install -c constraints.txt -e '.[feedback]', or another feedback.kind: rules, self"
        )


def check_plays_weights(config: Config, stage: str) -> None:
    """Raises ConfigError if the engine does not sample the weights it is given, which `stage` is about."""
    if config.engine.kind == "scripted":
        raise ConfigError(
            f"engine.kind = scripted plays a fixed agent whatever the weights, so {stage} would say nothing "
            "of it. Allowed here: transformers, vllm. The scripted engine serves rollouts, labels and "
            "critic_report"
        )
