"""Players made from settings, in this process or in processes of their own: the rollouts are the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from env.catalog import offer_of
from env.play.hands import Here, OneQueue, Processes
from env.play.player import Player
from env.play.requests import PlaySettings
from env.play.team import Hands
from pipeline.engines import Engine
from pipeline.hardware import usable_cores
from pipeline.models.policy import Policy, load_policy
from pipeline.processes.pool import Pool
from pipeline.processes.shared_weights import Layout, read_shared
from stages.settings import Config
from stages.settings.engine import overlaps_shards
from stages.wiring.build import make_engine

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that makes a player; it can be pickled.

    Attributes:
        config: the settings.
        folder: the policy, in Hugging Face form.
        temperature: > 0, or 0 for greedy.
        weights: where a process of its own finds newer weights than the folder's.
        policy_digest: their name; None stands for the folder's.
    """

    config: Config
    folder: Path
    temperature: float = 1.0
    weights: Layout | None = None
    policy_digest: str | None = None


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


class Seat:
    """A place in a process where players are made: policy and engine stay as long as recipes name them.

    Args:
        policy: one that is loaded already.
        wrap: makes the engine by calling what it is given, as `Turns.engine` does.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        wrap: Callable[[Callable[[], Engine]], Engine] = lambda make: make(),
    ) -> None:
        self._policy = policy
        self._wrap = wrap
        self._engine: Engine | None = None
        self._made: tuple[Recipe, Player] | None = None

    def player(self, recipe: Recipe) -> Player:
        """Returns the player of a recipe."""
        if self._made is None or self._made[0] != recipe:
            self._made = recipe, self._make(recipe)
        return self._made[1]

    def close(self) -> None:
        """Frees the engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._policy = self._made = None

    def _make(self, recipe: Recipe) -> Player:
        if self._policy is None or self._policy.folder != recipe.folder:
            self.close()
            self._policy = load_policy(recipe.folder)
        policy = self._policy
        engine = self._engine = self._engine or self._wrap(lambda: make_engine(recipe.config, policy))
        if recipe.weights is not None and engine.policy_digest != recipe.policy_digest:
            engine.load_weights(dict(read_shared(recipe.weights)), str(recipe.policy_digest))
        return make_player(recipe.config, policy, temperature=recipe.temperature, engine=engine)


def make_hands(config: Config, log_folder: Path | None = None, seat: Seat | None = None) -> Hands:
    """Returns who plays as configured.

    Args:
        config: the settings.
        log_folder: where processes of their own keep their logs; None keeps none.
        seat: makes the players of this process.
    """
    engine = config.engine
    seat = seat or Seat()
    if overlaps_shards(engine):
        return OneQueue(seat, part_episodes=None, one_thread=False)
    if engine.kind == "vllm":  # whose replicas are processes of their own
        return Here(seat, part_episodes=None, one_thread=False)
    number = engine.replicas or usable_cores()
    if number == 1:
        return Here(seat)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return Processes(
        Pool(
            "stages.wiring.player_process",
            number,
            "player",
            log_folder=log_folder,
            env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    )
