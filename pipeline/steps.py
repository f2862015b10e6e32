"""Steps as spans of a rollout's tokens: whether they tile it, the states before them, whole episodes."""

from dataclasses import replace

import numpy as np

from pipeline.types import Rollout


def check_tiling(rollout: Rollout) -> None:
    """Raises ValueError unless steps count up from the first and tile exactly the tokens with loss_mask 1."""
    times_covered = np.zeros(len(rollout.response_token_ids), np.int64)
    for expected, step in enumerate(rollout.steps, rollout.start_step_index):
        if step.step_index != expected or not 0 <= step.token_start <= step.token_end <= len(times_covered):
            raise ValueError(
                f"rollout {rollout.rollout_id}: step {step.step_index} has tokens [{step.token_start}, "
                f"{step.token_end}) of {len(times_covered)}; expected step {expected} inside the response"
            )
        times_covered[step.token_start : step.token_end] += 1
    wrong = np.flatnonzero(times_covered != np.asarray(rollout.loss_mask, np.int64))
    if len(wrong):
        token = wrong[0]
        raise ValueError(
            f"rollout {rollout.rollout_id}: steps must tile the tokens with loss_mask 1; response token "
            f"{token} has loss_mask {rollout.loss_mask[token]} and lies in {times_covered[token]} steps"
        )


def state_tokens(rollout: Rollout, step_index: int) -> tuple[int, ...]:
    """Returns the tokens of state s_i: prompt, and response up to the first token of step i."""
    start = rollout.steps[step_index - rollout.start_step_index].token_start
    return rollout.prompt_token_ids + rollout.response_token_ids[:start]


def joined(parent: Rollout, continuation: Rollout) -> Rollout:
    """Returns the whole episode that a continuation ends, as if it had been played from the prompt.

    It keeps the continuation's id, and the parent's seed, which decided the wording of its first replies.
    """
    start = continuation.start_step_index
    if continuation.prompt_token_ids != state_tokens(parent, start):
        raise ValueError(f"rollout {continuation.rollout_id} does not continue {parent.rollout_id}")
    used = parent.steps[start].token_start
    later = tuple(
        replace(step, token_start=step.token_start + used, token_end=step.token_end + used)
        for step in continuation.steps
    )
    return replace(
        continuation,
        kind="whole",
        parent_rollout_ids=parent.parent_rollout_ids,
        start_step_index=0,
        prompt_token_ids=parent.prompt_token_ids,
        response_token_ids=(*parent.response_token_ids[:used], *continuation.response_token_ids),
        loss_mask=(*parent.loss_mask[:used], *continuation.loss_mask),
        logprobs=(*parent.logprobs[:used], *continuation.logprobs),
        seed=parent.seed,
        steps=(*parent.steps[:start], *later),
    )
