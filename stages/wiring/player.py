"""Players made from settings: in the stage's process, or in a process of their own that runs this file."""

from collections.abc import Callable
from typing import Any

import torch

from env.catalog import offer_of
from env.play.player import Player
from env.play.requests import PlaySettings
from pipeline.engines import Engine
from pipeline.hardware import usable_cores
from pipeline.models.policy import Policy, load_policy
from pipeline.processes.pool import serve
from pipeline.processes.shared_weights import read_shared
from pipeline.processes.worker import connect_to_parent
from stages.settings import Config
from stages.wiring.build import make_engine, silent_engine
from stages.wiring.feedback import reviewer_of
from stages.wiring.hands import Recipe, unasked

MAX_THREADS = 16
"""In which vLLM's one player judges (start value): each may start a process that runs a program. Engines of a
process of their own each have a player there, and one core.
"""


def make_player(
    config: Config, policy: Policy, *, temperature: float = 1.0, engine: Engine | None = None
) -> Player:
    """Returns a player of `policy`, on `engine` if one is given."""
    environment, prompt = offer_of(config.tasks.environment), config.prompt
    style = config.style(policy.tokenizer)
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
        make_env=lambda task: environment.make_env(config.tasks, prompt.verbosity),
        reviewer=reviewer_of(config, policy, style, engine),
        threads=min(MAX_THREADS, usable_cores()) if config.engine.kind == "vllm" else 1,
    )


def silent_player(config: Config, policy: Policy, policy_digest: str) -> Player:
    """Returns a player of texts that are there already: it samples nothing and asks nobody for feedback."""
    return make_player(unasked(config), policy, engine=silent_engine(config, policy, policy_digest))


class Seat:
    """A place in a process where players are made: policy and engine stay as long as recipes name them.

    `policy` is loaded already; `wrap` makes the engine by calling what it is given, as `Turns.engine` does.
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
        if self._made is not None and self._made[0] == recipe:
            return self._made[1]
        if self._policy is None or self._policy.folder != recipe.folder:
            self.close()
            self._policy = load_policy(recipe.folder)
        policy = self._policy
        engine = self._engine = self._engine or self._wrap(lambda: make_engine(recipe.config, policy))
        if recipe.weights is not None and engine.policy_digest != recipe.policy_digest:
            engine.load_weights(dict(read_shared(recipe.weights)), str(recipe.policy_digest))
        player = make_player(recipe.config, policy, temperature=recipe.temperature, engine=engine)
        self._made = recipe, player
        return player

    def close(self) -> None:
        """Frees the engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._policy = self._made = None


def main() -> None:
    """Serves players of one thread each, one job after the other; all is loaded while the parent plans."""
    connection = connect_to_parent()
    torch.set_num_threads(1)
    seat = Seat()

    def do(job: Any, one_more: Callable[[], None]) -> Any:
        recipe, act = job
        return act(seat.player(recipe), lambda _: one_more())

    serve(connection, do)


if __name__ == "__main__":
    main()
