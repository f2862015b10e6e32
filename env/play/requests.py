"""What the queue is asked to play: one episode's request, and the settings that all episodes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.types import Rollout, RolloutKind, Task


@dataclass(frozen=True)
class EpisodeRequest:
    """One rollout to be played.

    Attributes:
        rollout_id: unique within a `play` and its follow-ups.
        kind: whole, or which kind of continuation of `parent`.
        task: what is to be solved.
        group_id: the rollouts of one task in one iteration.
        iteration: pass of sampling, from 0.
        attempt: 0-based place in the group's feedback chain.
        draw: place among the rollouts of that attempt.
        seed: seeds sampling, and the environment's wording of a new episode.
        previous_attempts: what the prompt says of earlier attempts, oldest first; none is a bare prompt.
        parent_rollout_ids: rollouts whose feedback is in the prompt; for a continuation its parent, which
            is filled in if left empty.
        feedback_in_context: `previous_attempts` as one text, kept in the rollout.
        parent: set for a continuation: its first steps are replayed exactly.
        start_step_index: the step a continuation starts from: the state before it is where it begins.
    """

    rollout_id: str
    task: Task
    group_id: str
    iteration: int
    attempt: int
    draw: int
    seed: int
    kind: RolloutKind = "whole"
    previous_attempts: tuple[str, ...] = ()
    parent_rollout_ids: tuple[str, ...] = ()
    feedback_in_context: str = ""
    parent: Rollout | None = None
    start_step_index: int = 0

    def check(self, tokenizer_digest: str) -> None:
        """Raises ValueError, saying why, if this cannot be played by a policy with that tokenizer."""
        parent = self.parent
        if (self.kind == "whole") != (parent is None):
            raise ValueError(
                f"rollout {self.rollout_id} is to be {self.kind!r}; it is whole without a parent, a kind of "
                "continuation with one"
            )
        if parent is None:
            if self.start_step_index:
                raise ValueError(f"start_step_index = {self.start_step_index} needs a parent to replay")
            return
        if parent.tokenizer_digest != tokenizer_digest:
            raise ValueError(
                f"rollout {parent.rollout_id} is written with tokenizer {parent.tokenizer_digest[:12]}, the "
                f"policy that is to continue it reads {tokenizer_digest[:12]}: its ids would mean something "
                "else"
            )
        if parent.start_step_index != 0:
            raise ValueError(
                f"parent {parent.rollout_id} is itself a continuation; continue its own parent instead"
            )
        if not 0 <= self.start_step_index < len(parent.steps):
            raise ValueError(
                f"start_step_index = {self.start_step_index}; rollout {parent.rollout_id} has steps 0 to "
                f"{len(parent.steps) - 1}"
            )
        if parent.task_id != self.task.task_id:
            raise ValueError(f"task {self.task.task_id} is not task {parent.task_id} of the parent rollout")


@dataclass(frozen=True)
class PlaySettings:
    """How episodes are sampled, and the digests that every rollout carries.

    Attributes:
        temperature: > 0, or 0 for greedy.
        max_response_tokens: budget of an episode's sampled tokens and replies; a continuation's budget
            counts its parent's part too.
        max_live: episodes in flight at once.
        policy_digest: weights that sample.
        tokenizer_digest: tokenizer that encodes.
        template_digest: prompt style that renders.
        splitter: what a step is: a key of `env.splitters.SPLITTERS`.
    """

    temperature: float
    max_response_tokens: int
    max_live: int
    policy_digest: str
    tokenizer_digest: str
    template_digest: str
    splitter: str = "message"


FollowUps = Callable[[Rollout], Sequence[EpisodeRequest]]
"""A finished rollout -> the episodes that it asks for."""
