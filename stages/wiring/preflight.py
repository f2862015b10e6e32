"""What a stage refuses before its plan fixes its settings: a missing package, GPUs that are not there."""

from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.hardware import check_gpus
from pipeline.training.deepspeed_config import deepspeed_config
from stages.settings import Config
from stages.settings.stored import OfCritic

MIN_ADAPTER_RATE = 1e-5
"""Learning rate from which on adapters move weights in bf16 (docs/launch.md, "Adapters")."""


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


def check_trunk(config: Config) -> None:
    """Raises ConfigError if the critic that the run goes on to has no trunk, which later stages alone read.

    Whether it fits the policy is the critic stage's to say; a folder that is missing can be said at once.
    """
    trunk, reads = config.critic.trunk, isinstance(config.stored.objective, OfCritic)
    needed = (reads or config.actor.needs_critic) and trunk != "policy"
    if needed and not (Path(trunk) / "config.json").is_file():
        raise ConfigError(
            f"critic.trunk = {trunk}, but there is no {trunk}/config.json, and the critic will start from "
            "it. Allowed: 'policy', or a model folder in Hugging Face format. Next: hf download <model> "
            f"--local-dir {trunk}, or critic.trunk=policy"
        )


def slow_adapters(config: Config) -> str:
    """Returns what to say of adapters at a rate for whole weights; nothing of others.

    No refusal: runs without an actor have one in their settings too.
    """
    rank, rate = config.training.lora_rank, config.actor.learning_rate
    if not rank or rate >= MIN_ADAPTER_RATE:
        return ""
    return (
        f"training.lora_rank = {rank} with actor.learning_rate = {rate:g}: adapters hardly move a weight at "
        "this rate, and an engine in bf16 rounds most of it away. Next: actor.learning_rate="
        f"{MIN_ADAPTER_RATE:g} or more"
    )


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
