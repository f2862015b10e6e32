"""Attempt chains: attempt k of a group is prompted with the feedback on its failed attempts 0..k-1.

A round is the rollouts of one attempt; they share one context. The next round of a group starts when its
last rollout is graded, whatever other groups do. Successes and environment failures add no feedback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from env.play.requests import EpisodeRequest
from pipeline.ids import group_id, rollout_id, seed_of
from pipeline.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task in one iteration, as planned.

    Attributes:
        group_id: H(stage key, task, iteration).
        task: the task.
        iteration: pass of sampling.
        num_attempts: rounds at most; 1 for a feedback-free group.
        draws: rollouts of each round.
    """

    group_id: str
    task: Task
    iteration: int
    num_attempts: int
    draws: int

    @property
    def rollout_ids(self) -> list[str]:
        """Ids of every rollout that may be made, in order of attempt and draw."""
        return [rollout_id(self.group_id, a, d) for a in range(self.num_attempts) for d in range(self.draws)]


def plan_groups(
    tasks: Sequence[Task],
    *,
    stage_key: str,
    seed: int,
    iteration: int,
    num_attempts: int,
    draws: int,
    feedback_free_share: float = 0.0,
    feedback_free_draws: int = 0,
) -> list[Group]:
    """Returns one group per task, in the order given; which are feedback-free follows from the seed.

    Groups are ranked by a hash of (seed, task, iteration), so the share is exact for every list of tasks.
    """
    ranked = sorted(tasks, key=lambda task: seed_of(seed, "feedback_free", task.task_id, iteration))
    free = {task.task_id for task in ranked[: round(feedback_free_share * len(tasks))]}
    return [
        Group(
            group_id=group_id(stage_key, task.task_id, iteration),
            task=task,
            iteration=iteration,
            num_attempts=1 if task.task_id in free else num_attempts,
            draws=feedback_free_draws if task.task_id in free else draws,
        )
        for task in tasks
    ]


@dataclass(slots=True)
class Chains:
    """Which episodes to play next, for a set of groups.

    Attributes:
        groups: what is planned.
        seed: run seed; rollouts of different stages differ by `purpose`.
        purpose: the stage's name, part of every rollout's seed.
        attempt_line: (actions as sampled, feedback) -> how the next prompt reports a failed attempt.
        num_tokens: length of such a line in tokens.
        max_feedback_tokens: cap on all lines of a prompt; the oldest are dropped. If none is left, the group
            ends (skipped as `feedback_too_long`).
        stop_at_success: whether a round that succeeded ends its chain.
    """

    groups: Sequence[Group]
    seed: int
    purpose: str
    attempt_line: Callable[[Sequence[str], str], str]
    num_tokens: Callable[[str], int]
    max_feedback_tokens: int
    stop_at_success: bool
    skipped: dict[str, int] = field(default_factory=dict)
    _by_id: dict[str, Group] = field(default_factory=dict)
    _finished: dict[str, list[Rollout]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_id = {group.group_id: group for group in self.groups}
        self._finished = {group.group_id: [] for group in self.groups}

    def first(self) -> list[EpisodeRequest]:
        """Returns round 0 of every group."""
        return [request for group in self.groups for request in self._round(group, 0, {})]

    def after(self, rollout: Rollout) -> list[EpisodeRequest]:
        """Returns the next round of a group once `rollout` was the last of its round, else []."""
        group = self._by_id[rollout.group_id]
        finished = self._finished[group.group_id]
        finished.append(rollout)
        next_attempt = rollout.attempt + 1
        if len(finished) < next_attempt * group.draws or next_attempt >= group.num_attempts:
            return []
        this_round = [r for r in finished if r.attempt == rollout.attempt]
        if self.stop_at_success and any(r.reward == 1.0 for r in this_round):
            return self._skip("solved_earlier", group, next_attempt)
        lessons = [r for r in finished if r.reward is not None and r.reward < 1.0 and r.feedback_text]
        if not lessons:
            return self._skip("no_feedback", group, next_attempt)
        lines = self._lines(sorted(lessons, key=lambda r: (r.attempt, r.draw)))
        if not lines:  # played all the same it would be a bare rollout, there because another one failed
            return self._skip("feedback_too_long", group, next_attempt)
        return self._round(group, next_attempt, lines)

    def _skip(self, kind: str, group: Group, attempt: int) -> list[EpisodeRequest]:
        self.skipped[kind] = self.skipped.get(kind, 0) + (group.num_attempts - attempt) * group.draws
        return []

    def _lines(self, lessons: Sequence[Rollout]) -> dict[str, str]:
        """Returns the lines that a prompt has room for, the latest: line -> rollout that taught it first."""
        lines: dict[str, str] = {}
        for lesson in lessons:
            line = self.attempt_line(lesson.message_texts, lesson.feedback_text)
            lines.setdefault(line, lesson.rollout_id)
        while lines and sum(map(self.num_tokens, lines)) > self.max_feedback_tokens:
            del lines[next(iter(lines))]
        return lines

    def _round(self, group: Group, attempt: int, lines: Mapping[str, str]) -> list[EpisodeRequest]:
        return [
            EpisodeRequest(
                rollout_id=rollout_id(group.group_id, attempt, draw),
                task=group.task,
                group_id=group.group_id,
                iteration=group.iteration,
                attempt=attempt,
                draw=draw,
                seed=seed_of(self.seed, self.purpose, group.task.task_id, group.iteration, attempt, draw),
                previous_attempts=tuple(lines),
                parent_rollout_ids=tuple(lines.values()),
                feedback_in_context="\n".join(lines),
            )
            for draw in range(group.draws)
        ]
