"""The order in which an iteration visits tasks, when the critic has a say in it."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from env.play.player import bare_prompts
from env.play.team import Team
from pipeline.types import Task

StartValues = Callable[[Sequence[Sequence[int]]], np.ndarray]
"""Bare prompts as token ids -> [N] V(s_0) of each."""
CANDIDATES = 3
"""Tasks that the critic looks at for each one wanted. Of values that are spread evenly over [0, 1], the third
nearest to 1/2 lies in [1/3, 2/3], where at least 96 of 100 sets of 8 are mixed: more candidates would gain
next to nothing, and visit fewer of the tasks."""


def near_half_first(tasks: Sequence[Task], wanted: int, team: Team, start_values: StartValues) -> list[Task]:
    """Returns the tasks with the first `CANDIDATES` x `wanted` by |V(s_0) - 1/2|; the others follow as given.

    Equally near ones stay as given too. No rollout is needed: a bare prompt is all of s_0. The mixture of
    tasks that is trained on moves to those that the critic thinks uncertain, a bias by choice; the gradient
    of a task that is visited stays unbiased, as its rollouts have no part in the choice.

    Source: variance of success as what can be learned from a task, arXiv:2502.12272; by a critic: ours.
    """
    candidates = tasks[: CANDIDATES * wanted]
    distance = np.abs(start_values(team.ask(partial(bare_prompts, candidates))) - 0.5)
    order = np.argsort(distance, kind="stable")
    return [*(candidates[i] for i in order), *tasks[len(candidates) :]]
