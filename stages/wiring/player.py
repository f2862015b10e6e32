"""A player made from settings: a policy, its engine and its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env.catalog import offer_of
from env.play.player import Player
from env.play.requests import PlaySettings
from stages.wiring.build import make_engine

if TYPE_CHECKING:
    from pipeline.engines import Engine
    from pipeline.models.policy import Policy
    from stages.settings import Config


def make_player(
    config: Config, policy: Policy, *, temperature: float = 1.0, engine: Engine | None = None
) -> Player:
    """Returns a player of `policy`, on `engine` if one is given."""
    environment = offer_of(config.tasks.environment)
    prompt = config.prompt
    style = environment.style(prompt.style, policy.tokenizer, thinking=prompt.thinking)
    engine = engine or make_engine(config, policy)
    return Player(
        engine=engine,
        tokenizer=policy.tokenizer,
        style=style,
        settings=PlaySettings(
            temperature=temperature,
            max_response_tokens=config.sampling.max_response_tokens,
            max_live=config.engine.max_live,
            policy_digest=engine.policy_digest,
            tokenizer_digest=policy.tokenizer_digest,
            template_digest=style.digest,
            splitter=environment.splitter,
        ),
        make_env=lambda task: environment.make_env(config.tasks, config.prompt.verbosity),
        env_workers=environment.workers,
    )
