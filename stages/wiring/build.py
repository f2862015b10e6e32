"""Engines, trainers and environments made from settings: the one place that imports their backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from env.catalog import ENVIRONMENTS, Environment
from env.play.player import Player
from env.play.requests import PlaySettings
from pipeline.errors import ConfigError
from stages.settings import Config, Hardware, Sampling

if TYPE_CHECKING:
    from critics.frozen.contract import FrozenCritic
    from pipeline.engines import Engine, GenerationRequest
    from pipeline.models.policy import Policy
    from pipeline.training import Trainer


def limit_threads(config: Config) -> None:
    """Makes torch use the configured number of threads."""
    import torch

    if config.training.threads:
        torch.set_num_threads(config.training.threads)


def make_engine(config: Config, policy: Policy) -> Engine:
    """Returns the configured engine: `policy`'s weights, or the scripted agent under its own digest."""
    limit_threads(config)
    if config.engine.kind == "scripted":
        return _scripted_engine(ENVIRONMENTS[config.tasks.environment], config.rollouts.style, policy)
    if config.engine.kind == "vllm":
        return _vllm_engine(config, policy)
    from pipeline.engines.transformers import TransformersEngine

    return TransformersEngine(
        policy.model,
        policy_digest=policy.policy_digest,
        max_live=config.engine.max_live,
        dtype=config.engine.dtype,
    )


def _vllm_engine(config: Config, policy: Policy) -> Engine:
    """Returns vLLM replicas that have loaded the policy's folder."""
    from pipeline.engines.vllm import VllmEngine, VllmOptions

    names = {field.name for field in fields(VllmOptions)}
    settings = {name: value for name, value in config.engine.model_dump().items() if name in names}
    settings["max_length"] = config.row_tokens
    return VllmEngine(
        policy.folder,
        policy.policy_digest,
        policy.config.max_position_embeddings,
        VllmOptions(**settings),
    )


def _scripted_engine(environment: Environment, style_name: str, policy: Policy) -> Engine:
    """Returns an engine that plays the environment's scripted agent, encoded by `policy`'s tokenizer."""
    from pipeline.engines.scripted import ScriptedEngine

    tokenizer, style = policy.tokenizer, environment.style(style_name)

    def reply(request: GenerationRequest) -> list[int]:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        text = environment.scripted_reply(prompt, Random(request.seed), style)
        return list(tokenizer.encode(text + style.stop_token, add_special_tokens=False))

    return ScriptedEngine(
        reply, environment.scripted_digest, max_length=policy.config.max_position_embeddings
    )


def check_installed(config: Config, *, engine: bool = False, training: bool = False) -> None:
    """Raises ConfigError if a stage will miss a package: before the plan fixes its settings."""
    for needed, setting, kind in (
        (engine, "engine.kind", config.engine.kind),
        (training, "training.backend", config.training.backend),
    ):
        if needed and kind in ("vllm", "deepspeed") and find_spec(kind) is None:
            raise ConfigError(
                f"{setting} = {kind}, but the package {kind} is not installed. Next: make setup-engines on "
                f"a CPU, pip install -e '.[{kind}]' on a machine with GPUs, or another {setting}"
            )
    if training and config.training.lora_rank and find_spec("peft") is None:
        raise ConfigError(
            f"training.lora_rank = {config.training.lora_rank}, but the package peft is not installed. Next: "
            "pip install -e '.[lora]', or training.lora_rank = 0"
        )
    if training and config.training.backend == "deepspeed":
        deepspeed_config(config)
    if training or (engine and config.engine.kind == "vllm"):
        check_gpus(config.hardware)
        check_shares_gpus(config, engine=engine, training=training)


def check_gpus(hardware: Hardware) -> None:
    """Raises ConfigError if there are fewer GPUs than configured, or less free memory on one of them."""
    if not hardware.num_gpus:
        return
    free = free_gpu_memory()
    if len(free) < hardware.num_gpus:
        raise ConfigError(
            f"hardware.num_gpus = {hardware.num_gpus}, but {len(free)} are visible here "
            f"(CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Next: run on a "
            "machine that has them, or set hardware.num_gpus, training.num_ranks and engine.replicas to what "
            "is here and ask vdapo plan"
        )
    for index, gib in enumerate(free[: hardware.num_gpus]):
        if gib < hardware.gpu_memory_gib:
            raise ConfigError(
                f"GPU {index} has {gib:.1f} GiB free, hardware.gpu_memory_gib = {hardware.gpu_memory_gib}. "
                "Next: end what else runs on it (nvidia-smi lists it), or set hardware.gpu_memory_gib to "
                "what is free and ask vdapo plan what fits"
            )


def check_shares_gpus(config: Config, *, engine: bool, training: bool) -> None:
    """Raises ConfigError if replicas or ranks outnumber the GPUs of a machine that has some.

    With `hardware.num_gpus` the configuration itself says how many; without it, workers would still use what
    they find, or fail over what is missing. On a machine without GPUs they share the CPU.
    """
    wanted = {}
    if engine and config.engine.kind == "vllm":
        wanted["engine.replicas x engine.tensor_parallel"] = (
            config.engine.replicas * config.engine.tensor_parallel
        )
    if training and config.training.backend == "deepspeed":
        wanted["training.num_ranks"] = config.training.num_ranks
    if config.hardware.num_gpus or max(wanted.values(), default=1) == 1:
        return
    visible = len(free_gpu_memory())
    for name, number in wanted.items():
        if 0 < visible < number:
            raise ConfigError(
                f"{name} = {number}, but {visible} GPUs are visible here (CUDA_VISIBLE_DEVICES is "
                f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Next: at most {visible}, or "
                "CUDA_VISIBLE_DEVICES= (empty) to work on the CPU"
            )


def free_gpu_memory() -> list[float]:
    """Returns the free GiB of each visible GPU.

    Asked in a process of its own: a context on every GPU would stay with this one for good.
    """
    code = "import torch.cuda as c; print(*(c.mem_get_info(i)[0] / 2**30 for i in range(c.device_count())))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def load_critic(config: Config, folder: Path) -> FrozenCritic:
    """Returns a frozen critic that computes on the first GPU, if there are any, beside the engine."""
    import critics

    if not config.hardware.num_gpus:
        return critics.load(folder)
    return critics.load(folder, device="cuda", micro_batch_tokens=config.training.micro_batch_tokens)


def check_plays_weights(config: Config, stage: str) -> None:
    """Raises ConfigError if the engine does not sample the weights it is given, which `stage` is about."""
    if config.engine.kind == "scripted":
        raise ConfigError(
            f"engine.kind = scripted plays a fixed agent whatever the weights, so {stage} would say nothing "
            "of it. Allowed here: transformers, vllm. The scripted engine serves rollouts, labels and "
            "critic_report"
        )


def make_trainer(config: Config, model: Any, **options: Any) -> Trainer:
    """Returns the configured trainer of `model`; options are those of `TorchTrainer`.

    A critic that only scores is about to be calibrated: it computes in fp32 as `FrozenCritic` will.
    """
    limit_threads(config)
    settings = config.training
    frozen_critic = options.get("head") == "critic" and options.get("learning_rate") is None
    options |= {
        "micro_batch_tokens": settings.micro_batch_tokens,
        "piece_tokens": settings.piece_tokens,
        "recompute": settings.recompute,
        "compute_dtype": "float32" if frozen_critic else settings.dtype,
    }
    if settings.backend == "deepspeed":
        from pipeline.training.deepspeed import DeepSpeedOptions, DeepSpeedTrainer

        return DeepSpeedTrainer(
            model,
            options=DeepSpeedOptions(
                num_ranks=settings.num_ranks,
                config=deepspeed_config(config),
                threads=settings.threads,
            ),
            **options,
        )
    from pipeline.training.torch import TorchTrainer

    if config.hardware.num_gpus:
        model = model.to("cuda")
    if options.get("learning_rate") is not None:  # what only scores has nothing to adapt
        options |= {"lora_rank": settings.lora_rank, "lora_alpha": settings.lora_alpha}
    return TorchTrainer(model, **options)


OURS = ("optimizer", "scheduler", "gradient_clipping", "gradient_accumulation_steps", "train_batch_size")


ALLOWED: dict[str, tuple[Any, ...]] = {
    "zero_optimization.stage": (1, 2, 3),
    "zero_optimization.offload_param.device": ("none",),
    "fp16.enabled": (False,),  # bf16 or fp32
}
"""Settings of DeepSpeed that the trainer supports in part."""


def deepspeed_config(config: Config) -> dict[str, Any]:
    """Returns the configured DeepSpeed configuration.

    Raises:
        ConfigError: as `read_deepspeed_config`, or its precision is not `training.dtype`.
    """
    settings = config.training
    content = read_deepspeed_config(Path(settings.deepspeed))
    half = is_half(content)
    if half != (settings.dtype == "bfloat16"):
        other = "bfloat16" if half else "float32"
        raise ConfigError(
            f"training.dtype = {settings.dtype}, but bf16.enabled is {str(half).lower()} in "
            f"training.deepspeed = {settings.deepspeed}. Next: training.dtype={other}, or a file that agrees "
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


def make_player(
    config: Config, policy: Policy, sampling: Sampling, *, engine: Engine | None = None
) -> Player:
    """Returns a player of `policy`, on `engine` if one is given."""
    environment = ENVIRONMENTS[config.tasks.environment]
    style = environment.style(config.rollouts.style, policy.tokenizer)
    engine = engine or make_engine(config, policy)
    return Player(
        engine=engine,
        tokenizer=policy.tokenizer,
        style=style,
        settings=PlaySettings(
            temperature=sampling.temperature,
            max_response_tokens=sampling.max_response_tokens,
            **sampling.model_dump(include={"top_p", "top_k"}),
            max_live=config.engine.max_live,
            policy_digest=engine.policy_digest,
            tokenizer_digest=policy.tokenizer_digest,
            template_digest=style.digest,
        ),
        make_env=lambda task: environment.make_env(config.rollouts.verbosity),
        env_workers=config.engine.env_workers,
    )


def policy_of(start: Any, stage: str = "sft", folder: str = "policy") -> Policy:
    """Returns the policy that an input stage made."""
    from pipeline.models.policy import load_policy

    return load_policy(Path(start.inputs[stage].path(folder)))
