"""Settings of earlier versions, and what to write instead: old configurations are what people bring."""

from __future__ import annotations

_WHOLE = "no setting: the policy is sampled from its whole distribution at temperature 1"

MOVED = {
    **{
        f"{stage}.sampling.{key}": new
        for stage in ("rollouts", "actor", "evaluation")
        for key, new in (
            ("max_response_tokens", "sampling.max_response_tokens, for all stages"),
            ("temperature", _WHOLE),
            ("top_p", _WHOLE),
            ("top_k", _WHOLE),
        )
    },
    "rollouts.style": "prompt.style",
    "rollouts.verbosity": "prompt.verbosity",
    "rollouts.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
    "actor.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
}
