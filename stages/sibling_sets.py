"""Plays sibling sets: several next steps from one state, then fresh continuations after each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from critics.siblings import Siblings, distinct_steps, joined
from pipeline.ids import seed_of
from pipeline.runner import Start
from pipeline.types import Rollout, Task
from stages.continuing import continuations

if TYPE_CHECKING:
    from env.episodes import EpisodeRequest
    from stages.backends import Player


def sibling_requests(
    start: Start,
    rollouts: Sequence[Rollout],
    tasks: dict[str, Task],
    *,
    size: int,
    first_draw: int,
    purpose: str,
) -> list[EpisodeRequest]:
    """Returns `size` fresh continuations from one state of each rollout; which one follows from its seed.

    Args:
        start: the stage's.
        rollouts: one set each.
        tasks: by id.
        size: next steps to draw; equal ones are one sibling.
        first_draw: number of the first of them, past those that audit the state itself.
        purpose: of their seeds.
    """
    return [
        request
        for rollout in rollouts
        for request in continuations(
            start,
            rollout,
            rollout.steps[seed_of(start.seed, "sibling state", rollout.seed) % len(rollout.steps)].step_index,
            tasks[rollout.task_id],
            size,
            first_draw=first_draw,
            purpose=f"{purpose} siblings",
        )
    ]


def play_siblings(
    start: Start,
    player: Player,
    rollouts: Sequence[Rollout],
    tasks: dict[str, Task],
    *,
    size: int,
    num_continuations: int,
    first_draw: int,
    purpose: str,
) -> list[Rollout]:
    """Returns the siblings as continuations of their rollouts, then the continuations after each of them."""
    requests = sibling_requests(start, rollouts, tasks, size=size, first_draw=first_draw, purpose=purpose)
    played = player.play(requests, on_finish=lambda _: start.stop_if_asked())
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    after = [
        request
        for sibling in distinct_in_sets(played)
        for request in continuations(
            start,
            joined(by_id[sibling.parent_rollout_ids[0]], sibling),
            sibling.start_step_index + 1,
            tasks[sibling.task_id],
            num_continuations,
            # The whole episode has its parent's seed, so the draw tells siblings apart.
            purpose=f"{purpose} sibling {sibling.draw}",
        )
    ]
    return played + player.play(after, on_finish=lambda _: start.stop_if_asked())


def distinct_in_sets(siblings: Sequence[Rollout]) -> list[Rollout]:
    """Returns the siblings with a next step of their own, of sets that keep at least two."""
    sets: dict[str, list[Rollout]] = defaultdict(list)
    for sibling in siblings:
        sets[sibling.parent_rollout_ids[0]].append(sibling)
    kept = [distinct_steps(sorted(members, key=lambda r: r.draw)) for members in sets.values()]
    return [sibling for members in kept if len(members) > 1 for sibling in members]


def measured_siblings(
    rollouts: Sequence[Rollout],
    parents: dict[str, Rollout],
    values_of: Callable[[Sequence[Rollout]], list[np.ndarray]],
    clusters: dict[str, str],
    *,
    first_draw: int,
) -> Siblings:
    """Returns the states after the siblings: the critic's value, and counts of their continuations.

    Args:
        rollouts: everything that was sampled.
        parents: whole rollouts by id; a sibling continues one of them with a draw from `first_draw` on.
        values_of: rollouts -> [T] calibrated values of each.
        clusters: task_id -> cluster.
        first_draw: see `play_siblings`.
    """
    siblings = distinct_in_sets(
        [
            r
            for r in rollouts
            if r.rollout_id not in parents
            and r.draw >= first_draw
            and r.parent_rollout_ids
            and r.parent_rollout_ids[0] in parents
        ]
    )
    rewards: dict[str, list[float]] = {sibling.rollout_id: [] for sibling in siblings}
    for r in rollouts:
        if r.parent_rollout_ids and r.parent_rollout_ids[0] in rewards and r.reward is not None:
            rewards[r.parent_rollout_ids[0]].append(r.reward)
    whole = [joined(parents[s.parent_rollout_ids[0]], s) for s in siblings]
    return Siblings.of(
        [
            (
                s.parent_rollout_ids[0],
                clusters[s.task_id],
                float(values[s.start_step_index + 1]),
                round(sum(rewards[s.rollout_id])),
                len(rewards[s.rollout_id]),
            )
            for s, values in zip(siblings, values_of(whole), strict=True)
            if len(rewards[s.rollout_id]) >= 2
        ]
    )
