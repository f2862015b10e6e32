"""A policy in its environment: it plays many episodes at once, as one queue without rounds or barriers.

A rollout's next turn starts as soon as its last one is answered, and a finished rollout may add others
(`then`), such as the next attempt of its chain.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from env.chat.style import ChatStyle
from env.play.coder import Coder
from env.play.episode import Episode, Outcome
from env.play.requests import EpisodeRequest, FollowUps, PlaySettings, nothing
from env.protocol import Env
from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.types import Rollout, Task

A_MOMENT = 0.001
"""Seconds that a queue with work elsewhere waits for an environment before it looks at the engine again."""


@dataclass(frozen=True, slots=True)
class Player:
    """A policy in its environment, ready to play episodes.

    Attributes:
        engine: samples; nothing else may be in flight in it.
        tokenizer: a transformers tokenizer.
        settings: what every rollout of this player records of its sampling.
        make_env: a fresh environment for a task; closed when its episode ends.
        env_workers: threads in which environments start, step and grade beside generation, for environments
            that wait for something; 0 runs them in line, in a fixed order.
    """

    engine: Engine
    tokenizer: Any
    style: ChatStyle
    settings: PlaySettings
    make_env: Callable[[Task], Env]
    env_workers: int = 0

    def stream(
        self, requests: Iterable[EpisodeRequest], *, then: FollowUps = nothing
    ) -> Generator[Rollout, None, None]:
        """Yields each rollout when it is finished and graded, after `then` was asked for more.

        Requests are drawn as places fall free, so they may come from a generator without end. Follow-ups go
        before requests that have not started, so that chains end early and the queue stays wide. Raises
        ValueError for what cannot be played.
        """
        engine, settings = self.engine, self.settings
        if settings.max_live < 1:
            raise ValueError(f"max_live = {settings.max_live}; at least one episode must be in flight")
        if engine.policy_digest != settings.policy_digest:
            raise ValueError(
                f"the engine holds policy {engine.policy_digest}, the settings say {settings.policy_digest}; "
                "load the weights first"
            )
        coder = Coder(self.tokenizer, self.style.stop_token)
        waiting = iter(requests)
        ahead: deque[EpisodeRequest] = deque()
        live: dict[str, Episode] = {}
        started: set[str] = set()
        desk = _Desk(self.env_workers)
        try:
            while True:
                while len(live) < settings.max_live:
                    request = ahead.popleft() if ahead else next(waiting, None)
                    if request is None:
                        break
                    if request.rollout_id in started:
                        raise ValueError(f"rollout {request.rollout_id} is asked for twice; ids are unique")
                    started.add(request.rollout_id)
                    episode = Episode(request, self.make_env, self.style, coder, settings, engine.max_length)
                    live[request.rollout_id] = episode
                    desk.give(request.rollout_id, episode.start)
                to_submit, finished = [], []
                for key, outcome in desk.take():
                    if isinstance(outcome, GenerationRequest):
                        to_submit.append(outcome)
                    else:
                        live.pop(key).close()
                        engine.release([key])
                        ahead.extend(then(outcome))
                        finished.append(outcome)
                if to_submit:
                    engine.submit(to_submit)
                yield from finished
                if finished:
                    continue  # places have fallen free
                if not live:
                    return
                if len(desk) == len(live):
                    desk.wait()
                    continue
                generations = engine.collect(wait=not len(desk))
                if not generations and not len(desk):
                    raise RuntimeError(f"the engine returned nothing while {len(live)} episodes wait for it")
                for generation in generations:
                    key = generation.request_id.rpartition(":")[0]
                    desk.give(key, partial(live[key].advance, generation))
                if not generations:
                    desk.wait(A_MOMENT)
        finally:
            desk.close()
            for episode in live.values():
                episode.close()


def settings_of(player: Player) -> PlaySettings:
    """Returns how a player samples, and what."""
    return player.settings


def sampled_after_prompts(
    tasks: Sequence[Task], num_tokens: int, player: Player
) -> list[tuple[tuple[int, ...], Generation]]:
    """Returns each task's bare prompt in tokens, and `num_tokens` at most that a player samples after it."""
    coder = Coder(player.tokenizer, player.style.stop_token)
    prompts = []
    for task in tasks:
        with closing(player.make_env(task)) as env:
            messages = env.reset(task, 0).messages
            prompts.append(coder.encode(player.style.render_prompt(messages, (), env.spec.tools)))
    stops = (coder.stop_id,)
    player.engine.submit(
        [GenerationRequest(str(i), prompt, i, num_tokens, stops) for i, prompt in enumerate(prompts)]
    )
    sampled: list[Generation] = []
    while generations := player.engine.collect():
        sampled += generations
    return [(prompts[int(generation.request_id)], generation) for generation in sampled]


class _Desk:
    """Where environments work, in line or in threads."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, "environment") if workers else None
        self._pending: dict[Future[Outcome], str] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def give(self, key: str, work: Callable[[], Outcome]) -> None:
        if self._pool is None:
            future: Future[Outcome] = Future()
            future.set_result(work())
        else:
            future = self._pool.submit(work)
        self._pending[future] = key

    def take(self) -> list[tuple[str, Outcome]]:
        """Returns what is done since, in the order it was given."""
        done = [future for future in self._pending if future.done()]
        return [(self._pending.pop(future), future.result()) for future in done]

    def wait(self, seconds: float | None = None) -> None:
        wait(self._pending, timeout=seconds, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Lets running work end and drops the rest."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
