"""Attempt chains: attempt k of a group is prompted with the feedback on its failed attempts 0..k-1.

A round is the rollouts of one attempt; they share one context. The next round of a group starts when its
last rollout is graded, whatever other groups do. Successes and environment failures add no feedback. Where a
model writes feedback, it does so only when a next round asks for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.stripping import is_success
from env.play.units import Course, cut
from pipeline.ids import group_id, rollout_id, seed_of
from pipeline.types import FEEDBACK_FAILURES, Rollout, Task


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task in one pass of sampling, as planned."""

    group_id: str
    task: Task
    iteration: int
    num_attempts: int  # rounds at most; 1 for a feedback-free group
    draws: int  # rollouts of each round

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


@dataclass(frozen=True, slots=True)
class Chained:
    """Attempt chains of some groups, as a `Unit`.

    The oldest lines above `max_feedback_tokens` of a prompt are dropped; if none is left, the group ends
    (skipped as `feedback_too_long`).
    """

    groups: Sequence[Group]
    seed: int  # of the run
    purpose: str  # the stage's name, part of every rollout's seed
    max_feedback_tokens: int
    stop_at_success: bool  # whether a round that succeeded ends its chain

    @property
    def rollout_ids(self) -> list[str]:
        """Ids of all that may be made, in the order of groups, attempts and draws."""
        return [rollout_id for group in self.groups for rollout_id in group.rollout_ids]

    def parts(self, size: int) -> list[Chained]:
        """Returns whole groups in parts."""
        return [replace(self, groups=part) for part in cut(self.groups, size, lambda group: group.draws)]

    def course(self, player: Player) -> Course:
        """Returns round 0 of every group, and what follows it."""
        groups = {group.group_id: group for group in self.groups}
        finished: dict[str, dict[str, Rollout]] = defaultdict(dict)
        skipped, failed = Counter[str](), Counter[str]()

        def learn(rollout: Rollout) -> None:
            finished[rollout.group_id][rollout.rollout_id] = rollout

        def ends_round(rollout: Rollout) -> bool:
            """Returns whether `rollout` is the last of its round, and another one may follow."""
            group, attempt = groups[rollout.group_id], rollout.attempt + 1
            learn(rollout)
            return len(finished[group.group_id]) == attempt * group.draws and attempt < group.num_attempts

        def lessons(rollout: Rollout) -> list[tuple[Task, Rollout]]:
            if player.reviewer is None or not ends_round(rollout):
                return []
            group, of_group = groups[rollout.group_id], list(finished[rollout.group_id].values())
            if self._is_over(of_group):
                return []
            return [(group.task, r) for r in of_group if r.attempt == rollout.attempt and _is_failure(r)]

        def after(rollout: Rollout) -> list[EpisodeRequest]:
            """Returns the next round of a group once `rollout` was the last of its round, else []."""
            if not ends_round(rollout):
                return []
            group, attempt = groups[rollout.group_id], rollout.attempt + 1
            lines = self._lines(list(finished[rollout.group_id].values()), player)
            if isinstance(lines, str):
                kinds = failed if lines.removeprefix("feedback_") in FEEDBACK_FAILURES else skipped
                kinds[lines] += (group.num_attempts - attempt) * group.draws
                return []
            return self._round(group, attempt, lines)

        first = [request for group in self.groups for request in self._round(group, 0, {})]
        return Course(first, after, skipped, failed, lessons, learn)

    def _is_over(self, finished: Sequence[Rollout]) -> bool:
        return self.stop_at_success and any(map(is_success, finished))

    def _lines(self, finished: Sequence[Rollout], player: Player) -> dict[str, str] | str:
        """Returns line -> rollout that taught it first, of the next prompt; or why there is none."""
        if self._is_over(finished):
            return "solved_earlier"
        lessons = [r for r in finished if _is_failure(r) and r.feedback_text]
        if not lessons or any(r.feedback_failed for r in finished):
            return _why_none(finished)
        lines: dict[str, str] = {}
        for lesson in sorted(lessons, key=lambda r: (r.attempt, r.draw)):
            actions = [player.style.parse(text) for text in lesson.message_texts]
            line = player.style.attempt_line(actions, lesson.feedback_text)
            lines.setdefault(line, lesson.rollout_id)
        sizes = [len(player.tokenizer.encode(line, add_special_tokens=False)) for line in lines]
        while lines and sum(sizes[-len(lines) :]) > self.max_feedback_tokens:
            del lines[next(iter(lines))]
        # Without a line it would be a bare rollout, there because another one failed.
        return lines or "feedback_too_long"

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


def _is_failure(rollout: Rollout) -> bool:
    return rollout.reward is not None and not is_success(rollout)


def _why_none(finished: Sequence[Rollout]) -> str:
    """Returns why no round follows: the first failure of a service, else what was against a text."""
    asked = sorted((r for r in finished if r.feedback_status), key=lambda r: (r.attempt, r.draw))
    first = next((r for r in asked if r.feedback_failed), asked[0] if asked else None)
    return f"feedback_{first.feedback_status}" if first else "no_feedback"
