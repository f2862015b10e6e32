"""A policy in its environment."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from env.chat.coder import Coder
from env.chat.style import ChatStyle
from env.feedback.reviewer import Reviewer
from env.play.requests import PlaySettings
from env.protocol import Env
from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.types import Task


@dataclass(frozen=True, slots=True)
class Player:
    """A policy in its environment, ready to play episodes."""

    engine: Engine  # samples; nothing else may be in flight in it
    tokenizer: Any  # of transformers
    style: ChatStyle
    settings: PlaySettings  # what every rollout of this player records of its sampling
    make_env: Callable[[Task], Env]  # a fresh environment for a task; closed when its episode ends
    reviewer: Reviewer | None = None  # who has feedback written; None: environments' rules alone
    threads: int = 1  # that play episodes whose environments let them; rollouts are the same


def bare_prompts(tasks: Sequence[Task], player: Player) -> list[tuple[int, ...]]:
    """Returns each task's bare prompt in tokens, as its episodes begin."""
    coder = Coder(player.tokenizer, player.style.stop_token)
    prompts = []
    for task in tasks:
        with closing(player.make_env(task)) as env:
            messages = env.reset(task, 0).messages
            prompts.append(coder.prompt(player.style, messages, env.spec.tools))
    return prompts


def sampled_after_prompts(
    tasks: Sequence[Task], num_tokens: int, player: Player
) -> list[tuple[tuple[int, ...], Generation]]:
    """Returns each task's bare prompt in tokens, and `num_tokens` at most that a player samples after it."""
    prompts = bare_prompts(tasks, player)
    stops = (Coder(player.tokenizer, player.style.stop_token).stop_id,)
    player.engine.submit(
        [GenerationRequest(str(i), prompt, i, num_tokens, stops) for i, prompt in enumerate(prompts)]
    )
    sampled: list[Generation] = []
    while generations := player.engine.collect():
        sampled += generations
    return [(prompts[int(generation.request_id)], generation) for generation in sampled]
