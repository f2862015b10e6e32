"""A rollout of two steps, to be changed by whoever needs another."""

from collections.abc import Sequence
from typing import Any

from pipeline.types import Rollout, Step


def rollout(
    mask: Sequence[int] = (1, 1, 0, 1), steps: Sequence[tuple[int, int]] = ((0, 2), (3, 4)), **changes: Any
) -> Rollout:
    """Returns a rollout with this loss mask over its response, cut into steps at these tokens."""
    fields: dict[str, Any] = {
        "rollout_id": "r", "kind": "whole", "task_id": "t", "group_id": "g", "iteration": 0,
        "attempt": 0, "draw": 0, "parent_rollout_ids": (), "start_step_index": 0, "guided": False,
        "feedback_in_context": "", "messages": (), "prompt_token_ids": (0, 1),
        "response_token_ids": tuple(range(10, 10 + len(mask))), "loss_mask": tuple(mask),
        "logprobs": tuple(-0.25 * m for m in mask), "temperature": 1.0, "top_p": 1.0, "top_k": -1,
        "max_response_tokens": 64, "seed": 0, "policy_digest": "", "tokenizer_digest": "",
        "template_digest": "", "finish_reason": "ended", "reward": 1.0, "cost": 0.0, "env_status": "ok",
        "events": (), "feedback_text": "", "feedback_source": "",
        "steps": tuple(Step(i, i, a, b, "") for i, (a, b) in enumerate(steps)),
    }  # fmt: skip
    return Rollout(**(fields | changes))
