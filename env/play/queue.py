"""Plays episodes: many environments and one engine, as one continuous queue without rounds or barriers.

A rollout's next turn starts as soon as its last one is answered, and a finished rollout may add others
(`then`), such as the next attempt of its chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any

from env.play.coder import Coder
from env.play.episode import Episode, Outcome
from env.play.requests import EpisodeRequest, FollowUps, PlaySettings
from env.protocol import ChatStyle, Env
from pipeline.engines import Engine, GenerationRequest
from pipeline.types import Rollout, Task

A_MOMENT = 0.001
"""Seconds that a queue with work elsewhere waits for an environment before it looks at the engine again."""


def nothing(rollout: Rollout) -> tuple[EpisodeRequest, ...]:
    """Returns no follow-ups: the default of `play`."""
    return ()


def play(
    requests: Sequence[EpisodeRequest],
    *,
    then: FollowUps = nothing,
    on_finish: Callable[[Rollout], None] | None = None,
    **options: Any,
) -> list[Rollout]:
    """Returns the finished rollouts of `requests` in their order, then those of `then`, parents first.

    Args:
        requests: episodes to play.
        then: more episodes that a finished rollout asks for, at once.
        on_finish: called with each finished rollout, in order of completion.
        options: the further arguments of `stream`.
    """
    finished: dict[str, Rollout] = {}
    followers: dict[str, list[str]] = {}

    def noted(rollout: Rollout) -> Sequence[EpisodeRequest]:
        more = then(rollout)
        followers[rollout.rollout_id] = [request.rollout_id for request in more]
        return more

    with closing(stream(requests, then=noted, **options)) as rollouts:
        for rollout in rollouts:
            finished[rollout.rollout_id] = rollout
            if on_finish is not None:
                on_finish(rollout)
    order = [request.rollout_id for request in requests]
    for rollout_id in order:  # grows while it is read: children are listed after every earlier rollout's
        order.extend(followers[rollout_id])
    return [finished[rollout_id] for rollout_id in order]


def stream(
    requests: Iterable[EpisodeRequest],
    *,
    make_env: Callable[[Task], Env],
    style: ChatStyle,
    tokenizer: Any,
    engine: Engine,
    settings: PlaySettings,
    then: FollowUps = nothing,
    env_workers: int = 0,
) -> Generator[Rollout, None, None]:
    """Yields each rollout when it is finished and graded.

    Requests are drawn as places fall free, so they may come from a generator without end. Follow-ups go
    before requests that have not started, so that chains end early and the queue stays wide.

    Args:
        requests: episodes to play.
        make_env: a fresh environment for a task; closed when its episode ends.
        style: renders prompts and replies, parses messages.
        tokenizer: a transformers tokenizer; encodes prompts and replies, decodes messages.
        engine: samples; nothing else may be in flight in it.
        settings: temperature, budget, digests.
        then: more episodes that a finished rollout asks for, at once; called before it is yielded.
        env_workers: threads in which environments start, step and grade beside generation, for environments
            that wait for something; 0 runs them in line, in a fixed order.

    Raises:
        ValueError: a continuation without the steps to replay, a repeated rollout id, max_live < 1, or an
            engine that holds other weights than `settings.policy_digest`.
    """
    if settings.max_live < 1:
        raise ValueError(f"max_live = {settings.max_live}; at least one episode must be in flight")
    if engine.policy_digest != settings.policy_digest:
        raise ValueError(
            f"the engine holds policy {engine.policy_digest}, the settings say {settings.policy_digest}; "
            "load the weights first"
        )
    coder = Coder(tokenizer, style.stop_token)
    waiting = iter(requests)
    ahead: deque[EpisodeRequest] = deque()
    live: dict[str, Episode] = {}
    started: set[str] = set()
    desk = _Desk(env_workers)
    exhausted = False
    try:
        while True:
            while len(live) < settings.max_live and not (exhausted and not ahead):
                request = ahead.popleft() if ahead else next(waiting, None)
                if request is None:
                    exhausted = True
                    break
                if request.rollout_id in started:
                    raise ValueError(f"rollout {request.rollout_id} is asked for twice; ids are unique")
                started.add(request.rollout_id)
                episode = Episode(request, make_env, style, coder, settings, engine.max_length)
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
                if exhausted and not ahead:
                    return
                continue
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


class _Desk:
    """Where environments work: in line, or in threads."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, "environment") if workers else None
        self._done: list[tuple[str, Outcome]] = []
        self._pending: dict[Future[Outcome], str] = {}

    def __len__(self) -> int:
        """Returns how much work is given that has not been taken."""
        return len(self._pending) + len(self._done)

    def give(self, key: str, work: Callable[[], Outcome]) -> None:
        """Does the work, now or in a thread."""
        if self._pool is None:
            self._done.append((key, work()))
        else:
            self._pending[self._pool.submit(work)] = key

    def take(self) -> list[tuple[str, Outcome]]:
        """Returns what is done since, in the order it was given."""
        done, self._done = self._done, []
        for future in [future for future in self._pending if future.done()]:
            done.append((self._pending.pop(future), future.result()))
        return done

    def wait(self, seconds: float | None = None) -> None:
        """Waits for work to be done, `seconds` at most."""
        if self._pending:
            wait(self._pending, timeout=seconds, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Lets running work end and drops the rest."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
