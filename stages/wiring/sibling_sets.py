"""Plays sibling sets: several next steps from one state, then fresh continuations after each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from critics.audit.siblings import Siblings, distinct_steps, joined
from pipeline.artifacts.runner import Start
from pipeline.ids import seed_of
from pipeline.types import Rollout, Task
from stages.wiring.continuations import continuations

if TYPE_CHECKING:
    from env.play.player import Player
    from env.play.requests import EpisodeRequest


SIBLING_SIZE = 5
"""Next steps drawn from a state; equal ones are one sibling (start value)."""


def sibling_state(start: Start, rollout: Rollout) -> int:
    """Returns the step before whose state a rollout's sibling set is played."""
    return rollout.steps[seed_of(start.seed, "sibling state", rollout.seed) % len(rollout.steps)].step_index


def sibling_requests(
    start: Start,
    rollouts: Sequence[Rollout],
    tasks: Mapping[str, Task],
    *,
    first_draw: int,
    purpose: str,
) -> list[EpisodeRequest]:
    """Returns fresh continuations from one state of each rollout; which state follows from its seed.

    Args:
        start: the stage's.
        rollouts: one set each.
        tasks: by id.
        first_draw: number of the first of them, past those that audit the state itself.
        purpose: of their seeds.
    """
    return [
        request
        for rollout in rollouts
        for request in continuations(
            start,
            rollout,
            sibling_state(start, rollout),
            tasks[rollout.task_id],
            SIBLING_SIZE,
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
    num_continuations: int,
    first_draw: int,
    purpose: str,
) -> list[Rollout]:
    """Returns the siblings as continuations of their rollouts, then the continuations after each of them."""
    requests = sibling_requests(start, rollouts, tasks, first_draw=first_draw, purpose=purpose)
    played = player.play(requests, on_finish=lambda _: start.stop_if_asked())
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    after = requests_after(start, by_id, played, tasks, num_continuations=num_continuations, purpose=purpose)
    return played + player.play(after, on_finish=lambda _: start.stop_if_asked())


def requests_after(
    start: Start,
    parents: Mapping[str, Rollout],
    siblings: Sequence[Rollout],
    tasks: Mapping[str, Task],
    *,
    num_continuations: int,
    purpose: str,
) -> list[EpisodeRequest]:
    """Returns the continuations after each distinct sibling of whole sets."""
    return [
        request
        for sibling in distinct_in_sets(siblings)
        for request in continuations(
            start,
            joined(parents[sibling.parent_rollout_ids[0]], sibling),
            sibling.start_step_index + 1,
            tasks[sibling.task_id],
            num_continuations,
            # The whole episode has its parent's seed, so the draw tells siblings apart.
            purpose=f"{purpose} sibling {sibling.draw}",
        )
    ]


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
    counted = counted_siblings(rollouts, parents, first_draw=first_draw)
    return Siblings.of(
        [
            (s.parent_rollout_ids[0], clusters[s.task_id], float(values[s.start_step_index + 1]), k, n)
            for (s, _, k, n), values in zip(counted, values_of([w for _, w, _, _ in counted]), strict=True)
        ]
    )


def counted_siblings(
    rollouts: Sequence[Rollout], parents: Mapping[str, Rollout], *, first_draw: int
) -> list[tuple[Rollout, Rollout, int, int]]:
    """Returns each sibling with at least two graded continuations, its whole episode, successes and number.

    Args:
        rollouts: everything that was sampled.
        parents: see `measured_siblings`.
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
    return [
        (
            s,
            joined(parents[s.parent_rollout_ids[0]], s),
            round(sum(rewards[s.rollout_id])),
            len(rewards[s.rollout_id]),
        )
        for s in siblings
        if len(rewards[s.rollout_id]) >= 2
    ]
