"""What is asked of a player: one episode, and the settings that all its episodes share."""

from dataclasses import dataclass

from pipeline.types import Rollout, RolloutKind, Task


@dataclass(frozen=True)
class EpisodeRequest:
    """One rollout to be played; fields that a `Rollout` has too mean the same there."""

    rollout_id: str  # unique within a `play` and its follow-ups
    task: Task
    group_id: str
    iteration: int
    attempt: int
    draw: int
    seed: int  # of sampling, and of the environment's wording of a new episode
    kind: RolloutKind = "whole"
    previous_attempts: tuple[str, ...] = ()  # what the prompt says of them, oldest first
    parent_rollout_ids: tuple[str, ...] = ()  # rollouts with feedback in the prompt
    feedback_in_context: str = ""  # `previous_attempts` as one text
    parent: Rollout | None = None  # of a continuation, which replays its first steps and has its prompt
    start_step_index: int = 0  # the step before which a continuation begins

    def check(self, tokenizer_digest: str) -> None:
        """Raises ValueError, saying why, if this cannot be played by a policy with that tokenizer."""
        parent, start = self.parent, self.start_step_index
        if parent is None:
            return
        if parent.tokenizer_digest != tokenizer_digest:
            raise ValueError(
                f"rollout {parent.rollout_id} is written with tokenizer {parent.tokenizer_digest[:12]}, the "
                f"policy that is to continue it reads {tokenizer_digest[:12]}: its ids mean something else"
            )
        if parent.start_step_index != 0:
            raise ValueError(
                f"parent {parent.rollout_id} is itself a continuation; continue its own parent instead"
            )
        if not 0 <= start < len(parent.steps):
            raise ValueError(
                f"start_step_index = {start}; rollout {parent.rollout_id} has steps 0 to "
                f"{len(parent.steps) - 1}"
            )


@dataclass(frozen=True)
class PlaySettings:
    """How episodes are sampled, and the digests that every rollout carries."""

    temperature: float  # > 0, or 0 for greedy
    max_response_tokens: int  # sampled tokens and replies; a continuation's parent's part counts too
    max_live: int  # episodes in flight at once
    policy_digest: str
    tokenizer_digest: str
    template_digest: str
    splitter: str = "message"  # what a step is: a key of `env.splitters.SPLITTERS`
