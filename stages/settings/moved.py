"""Settings of earlier versions, and what to write instead: old configurations are what people bring."""

from __future__ import annotations

_GONE = "gone, with its code: no measurement spoke for it"
_FIXED = "a constant in the code now"
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
    **dict.fromkeys(
        (
            *("labels.sibling_sets", "labels.sibling_size", "labels.sibling_continuations"),
            *("critic.rank_weight", "critic.value_loss", "critic.class_balance"),
            *("actor.drift.sibling_sets", "actor.drift.sibling_size"),
        ),
        _GONE,
    ),
    **dict.fromkeys(
        (
            *("labels.anchors", "labels.around_errors", "labels.td_lam", "critic_report.sibling_size"),
            *("critic.patience", "critic.error_weight", "critic.weight_decay"),
        ),
        _FIXED,
    ),
    "rollouts.style": "prompt.style",
    "rollouts.verbosity": "prompt.verbosity",
    "rollouts.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
    "actor.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
}
