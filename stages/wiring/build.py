"""Engines, trainers and environments made from settings: the one place that imports their backends."""

from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

import critics
from critics.frozen.critic import FrozenCritic
from env.catalog import offer_of
from pipeline.engines import Engine, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine, VllmOptions
from pipeline.errors import ConfigError
from pipeline.models.policy import Policy
from pipeline.models.tiny import TinyShape
from pipeline.pace import Pace
from pipeline.training import Trainer
from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.deepspeed_config import deepspeed_config
from pipeline.training.rank_group import DeepSpeedOptions
from pipeline.training.torch import TorchTrainer
from stages.settings import Config
from stages.settings.sft import HEAD_DIM


def limit_threads(config: Config) -> None:
    """Makes torch use the configured number of threads."""
    if config.training.threads:
        torch.set_num_threads(config.training.threads)


def make_engine(config: Config, policy: Policy) -> Engine:
    """Returns the configured engine: `policy`'s weights, or the scripted agent under its own digest."""
    settings = config.engine
    if settings.kind == "scripted":
        return _scripted_engine(config, policy)
    if settings.kind == "vllm":
        names = {field.name for field in fields(VllmOptions)}
        options = {name: value for name, value in settings.model_dump().items() if name in names}
        return VllmEngine(
            policy.folder,
            policy.policy_digest,
            policy.config.max_position_embeddings,
            VllmOptions(**options, max_length=config.row_tokens),
        )
    return TransformersEngine(
        policy.model, policy_digest=policy.policy_digest, max_live=settings.max_live, dtype=settings.dtype
    )


def silent_engine(config: Config, policy: Policy, policy_digest: str) -> Engine:
    """Returns an engine that never says anything, for texts that are there already; rows fit the policy."""
    longest = min(config.row_tokens, policy.config.max_position_embeddings)
    return ScriptedEngine(lambda request: (), policy_digest, max_length=longest)


def _scripted_engine(config: Config, policy: Policy) -> Engine:
    """Returns an engine that plays the environment's scripted agent, encoded by `policy`'s tokenizer."""
    environment, style = offer_of(config.tasks.environment), config.style()
    if environment.scripted is None:
        raise ConfigError(
            f"engine.kind = scripted, but the environment {environment.name} has no scripted agent; choose "
            "transformers or vllm"
        )
    tokenizer, agent = policy.tokenizer, environment.scripted

    def reply(request: GenerationRequest) -> list[int]:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        text = agent.reply(prompt, Random(request.seed), style)
        return list(tokenizer.encode(text + style.stop_token, add_special_tokens=False))

    return ScriptedEngine(reply, agent.digest, max_length=policy.config.max_position_embeddings)


def tiny_shape(config: Config) -> TinyShape:
    """Returns the shape of the model that is made from scratch, with positions for the longest row."""
    model = config.sft.model
    return TinyShape(
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=HEAD_DIM,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=config.row_tokens,
    )


def load_critic(config: Config, folder: Path) -> FrozenCritic:
    """Returns a frozen critic that computes on the first GPU, if there are any, beside the engine."""
    limit_threads(config)
    device = "cuda" if config.hardware.num_gpus else "cpu"
    return critics.load(folder, device=device, micro_batch_tokens=config.training.micro_batch_tokens)


def make_policy_trainer(config: Config, policy: Policy, **options: Any) -> Trainer:
    """Returns the configured trainer of a policy, with weights of its own; see `make_trainer`.

    DeepSpeed's ranks map the policy's files: no process reads what it does not keep.
    """
    if config.training.backend == "deepspeed" and (files := policy.files) is not None:
        return make_trainer(config, policy.unread(), head="policy", files=files, **options)
    return make_trainer(config, replace(policy).model, head="policy", **options)  # not read yet


def pace_of(config: Config) -> Pace:
    """Returns what times the work of a stage, and counts it against the peak of its GPUs."""
    return Pace(
        config.hardware.num_gpus,
        half_precision=config.training.dtype == "bfloat16",
        adapters=config.training.lora_rank > 0,
    )


def make_trainer(config: Config, model: Any, **options: Any) -> Trainer:
    """Returns the configured trainer of `model`; options are those of `TorchTrainer`.

    A critic that only scores is about to be calibrated: it computes in fp32 as `FrozenCritic` will.
    """
    limit_threads(config)
    settings, learns = config.training, options.get("learning_rate") is not None
    frozen_critic = options.get("head") == "critic" and not learns
    options |= {
        "micro_batch_tokens": settings.micro_batch_tokens,
        "recompute": settings.recompute,
        "compute_dtype": "float32" if frozen_critic else settings.dtype,
    }
    if frozen_critic:
        options["compiles"] = False  # nobody trains it, so a pass need not be as if to train
    if learns and settings.lora_rank:  # what only scores has nothing to adapt
        options |= {"lora_rank": settings.lora_rank, "lora_alpha": 2 * settings.lora_rank}
    if settings.backend == "deepspeed":
        file = deepspeed_config(Path(settings.deepspeed), settings.dtype)
        ranks = DeepSpeedOptions(num_ranks=settings.num_ranks, config=file, threads=settings.threads)
        return DeepSpeedTrainer(model, options=ranks, **options)
    if config.hardware.num_gpus:
        model = model.to("cuda")
    return TorchTrainer(model, **options)
