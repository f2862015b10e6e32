"""Engines, trainers and environments made from settings: the one place that imports their backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from env.catalog import ENVIRONMENTS, Environment
from pipeline.errors import ConfigError
from stages.settings import Config, Sampling

if TYPE_CHECKING:
    from env.episodes import EpisodeRequest, PlaySettings
    from env.protocol import ChatStyle, Env
    from pipeline.engines import Engine, GenerationRequest
    from pipeline.models import Policy
    from pipeline.training import Trainer
    from pipeline.types import Rollout, Task


def limit_threads(config: Config) -> None:
    """Makes torch use the configured number of threads."""
    import torch

    if config.training.threads:
        torch.set_num_threads(config.training.threads)


def make_engine(config: Config, policy: Policy) -> Engine:
    """Returns the configured engine: `policy`'s weights, or the scripted agent under its own digest."""
    limit_threads(config)
    if config.engine.kind == "scripted":
        return _scripted_engine(ENVIRONMENTS[config.tasks.environment], policy)
    from pipeline.engines.transformers import TransformersEngine

    return TransformersEngine(
        policy.model,
        policy_digest=policy.policy_digest,
        max_live=config.engine.max_live,
        pad_token_id=policy.tokenizer.pad_token_id,
    )


def _scripted_engine(environment: Environment, policy: Policy) -> Engine:
    """Returns an engine that plays the environment's scripted agent, encoded by `policy`'s tokenizer."""
    from pipeline.engines.scripted import ScriptedEngine

    tokenizer, style = policy.tokenizer, environment.style()

    def reply(request: GenerationRequest) -> list[int]:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        text = environment.scripted_reply(prompt, Random(request.seed))
        return list(tokenizer.encode(text + style.stop_token, add_special_tokens=False))

    return ScriptedEngine(
        reply, environment.scripted_digest, max_length=policy.model.config.max_position_embeddings
    )


def check_plays_weights(config: Config, stage: str) -> None:
    """Raises ConfigError if the engine does not sample the weights it is given, which `stage` is about."""
    if config.engine.kind == "scripted":
        raise ConfigError(
            f"engine.kind = scripted plays a fixed agent whatever the weights, so {stage} would say nothing "
            "of the policy. Allowed here: transformers. The scripted engine serves rollouts, labels and "
            "critic_report"
        )


def make_trainer(config: Config, model: Any, **options: Any) -> Trainer:
    """Returns the configured trainer of `model`; options are those of `TorchTrainer`."""
    limit_threads(config)
    from pipeline.training.torch import TorchTrainer

    return TorchTrainer(model, micro_batch_tokens=config.training.micro_batch_tokens, **options)


@dataclass(frozen=True, slots=True)
class Player:
    """A policy in its environment, ready to play episodes.

    Attributes:
        engine: samples the policy.
        tokenizer: encodes its text.
        style: prompt style.
        settings: what every rollout of this player records of its sampling.
        make_env: a fresh environment for a task.
    """

    engine: Engine
    tokenizer: Any
    style: ChatStyle
    settings: PlaySettings
    make_env: Callable[[Task], Env]

    def play(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        then: Callable[[Rollout], Sequence[EpisodeRequest]] | None = None,
        on_finish: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Returns every rollout, those that `then` asked for included."""
        from env.episodes import play

        return play(
            requests,
            make_env=self.make_env,
            style=self.style,
            tokenizer=self.tokenizer,
            engine=self.engine,
            settings=self.settings,
            then=then or (lambda _: ()),
            on_finish=on_finish or (lambda _: None),
        )

    def attempt_line(self, texts: Sequence[str], feedback: str) -> str:
        """Returns a failed attempt as the next prompt tells it."""
        return self.style.attempt_line([self.style.parse(text) for text in texts], feedback)

    def num_tokens(self, text: str) -> int:
        """Returns the length of a text in tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def make_player(
    config: Config, policy: Policy, sampling: Sampling, *, engine: Engine | None = None
) -> Player:
    """Returns a player of `policy`, on `engine` if one is given."""
    from env.episodes import PlaySettings

    environment = ENVIRONMENTS[config.tasks.environment]
    style = environment.style(config.rollouts.style)
    engine = engine or make_engine(config, policy)
    return Player(
        engine=engine,
        tokenizer=policy.tokenizer,
        style=style,
        settings=PlaySettings(
            temperature=sampling.temperature,
            max_response_tokens=sampling.max_response_tokens,
            max_live=config.engine.max_live,
            policy_digest=engine.policy_digest,
            tokenizer_digest=policy.tokenizer_digest,
            template_digest=style.digest,
        ),
        make_env=lambda task: environment.make_env(config.rollouts.verbosity),
    )


def policy_of(start: Any, stage: str = "sft", folder: str = "policy") -> Policy:
    """Returns the policy that an input stage made."""
    from pipeline.models import load_policy

    return load_policy(Path(start.inputs[stage].path(folder)))
