"""A policy in its environment: an engine, a tokenizer and a prompt style that play episodes together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from env.play.queue import nothing, play, stream
from env.play.requests import EpisodeRequest, FollowUps, PlaySettings
from env.protocol import ChatStyle, Env
from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class Player:
    """A policy in its environment, ready to play episodes.

    Attributes:
        engine: samples the policy.
        tokenizer: encodes its text.
        style: prompt style.
        settings: what every rollout of this player records of its sampling.
        make_env: a fresh environment for a task.
        env_workers: threads in which environments work; 0 is in line.
    """

    engine: Engine
    tokenizer: Any
    style: ChatStyle
    settings: PlaySettings
    make_env: Callable[[Task], Env]
    env_workers: int = 0

    def play(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        then: FollowUps = nothing,
        on_finish: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Returns every rollout, those that `then` asked for included."""
        return play(requests, then=then, on_finish=on_finish, **self._how())

    def stream(
        self, requests: Iterable[EpisodeRequest], *, then: FollowUps
    ) -> Generator[Rollout, None, None]:
        """Yields every rollout as it is finished; draws requests as places fall free."""
        return stream(requests, then=then, **self._how())

    def _how(self) -> dict[str, Any]:
        return {
            "make_env": self.make_env,
            "style": self.style,
            "tokenizer": self.tokenizer,
            "engine": self.engine,
            "settings": self.settings,
            "env_workers": self.env_workers,
        }

    def prompt_of(self, task: Task) -> tuple[int, ...]:
        """Returns a task's bare prompt in tokens."""
        env = self.make_env(task)
        try:
            messages = env.reset(task, 0).messages
            text = self.style.render_prompt(messages, (), env.spec.tools)
        finally:
            env.close()
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    @property
    def stop_token_id(self) -> int:
        """The token that ends a message of the style."""
        return int(self.tokenizer.convert_tokens_to_ids(self.style.stop_token))

    def attempt_line(self, texts: Sequence[str], feedback: str) -> str:
        """Returns a failed attempt as the next prompt tells it."""
        return self.style.attempt_line([self.style.parse(text) for text in texts], feedback)

    def num_tokens(self, text: str) -> int:
        """Returns the length of a text in tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def settings_of(player: Player) -> PlaySettings:
    """Returns how a player samples, and what."""
    return player.settings


def sampled_after_prompts(
    tasks: Sequence[Task], num_tokens: int, player: Player
) -> list[tuple[tuple[int, ...], Generation]]:
    """Returns each task's bare prompt in tokens, and what a player samples after it.

    Args:
        tasks: of the prompts.
        num_tokens: sampled tokens at most.
        player: with nothing in flight.
    """
    prompts = [player.prompt_of(task) for task in tasks]
    stops = (player.stop_token_id,)
    player.engine.submit(
        [GenerationRequest(str(i), prompt, i, num_tokens, stops) for i, prompt in enumerate(prompts)]
    )
    sampled: list[Generation] = []
    while generations := player.engine.collect():
        sampled += generations
    return [(prompts[int(generation.request_id)], generation) for generation in sampled]
