"""Settings of earlier versions, and what to write instead: old configurations are what people bring."""

from __future__ import annotations

_GONE = "gone, with its code: no measurement spoke for it"
_FIXED = "a constant in the code now"
_DERIVED = "derived from the other settings now"
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
    "actor.alpha": "actor.credit.alpha",
    "actor.lam": "actor.credit.lam",
    "actor.alpha_after_clean": _GONE,
    "actor.weight_decay": f"{_FIXED}: 0",
    "actor.on_weak_critic": "actor.credit.on_weak_critic",
    "actor.kl_coefficient": "actor.credit.kl",
    **{
        f"actor.drift.{key}": f"actor.credit.drift.{key}"
        for key in ("paid_every", "states", "num_continuations", "refresh")
    },
    "actor.drift.recalibrate": "actor.credit.drift.react",
    "actor.drift.step_weight_to_zero": "actor.credit.drift.react",
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
            *("actor.drift.max_bias", "actor.drift.min_slope", "actor.drift.max_slope"),
            *("critic_report.min_advantage_correlation", "critic_report.max_calibration_excess"),
            "evaluation.num_attempts",
            *("critic_report.max_probe_rise", "critic_report.num_sample_rollouts"),
            *("critic_report.bootstrap", "evaluation.bootstrap"),
            *("actor.drift.min_sign_agreement", "actor.stops.falling_evaluations"),
            *("engine.block_size", "engine.start_timeout", "engine.answer_timeout", "training.piece_tokens"),
            *("training.lora_alpha", "sft.noise", "sft.weight_decay"),
            *("sft.model.head_dim", "sft.model.initializer_range"),
            *("critic_report.bootstrap", "critic_report.num_sample_rollouts", "evaluation.bootstrap"),
            *("critic_report.min_advantage_correlation", "critic_report.max_calibration_excess"),
            "evaluation.num_attempts",
            *("critic_report.max_probe_rise", "critic_report.judge_probes"),
        ),
        _FIXED,
    ),
    **dict.fromkeys(
        ("engine.max_length", "engine.threads", "sft.model.num_heads", "sft.model.max_position"), _DERIVED
    ),
    **dict.fromkeys(
        (
            *("rollouts.groups_per_shard", "labels.states_per_shard"),
            *("critic_report.tasks_per_shard", "evaluation.groups_per_shard"),
        ),
        "run.rollouts_per_shard, for all stages",
    ),
    "tasks.companies_file": "tasks.files, the folder of both files",
    "tasks.tasks_file": "tasks.files, the folder of both files",
    "critic_report.splits": "run.held_out",
    "evaluation.splits": "run.held_out",
    "engine.env_workers": "the environment's own business now",
    "engine.handoff": f"{_GONE}; weights reach vLLM through memory",
    "engine.handoff_folder": _GONE,
    "hardware.gpu_tflops": "in pipeline/planner/gpus.py: name hardware.gpu",
    "hardware.gpu_bandwidth_gbs": "in pipeline/planner/gpus.py: name hardware.gpu",
    "hardware.model": "found by the name of sft.base in configs/models",
    "hardware.critic_model": "found by the name of critic.trunk in configs/models",
    "critic_report.judge_probes": "no setting: probes that were made are judged; probe_rollouts=0 makes none",
    "rollouts.style": "prompt.style",
    "rollouts.verbosity": "prompt.verbosity",
    "rollouts.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
    "actor.chain.max_feedback_tokens": "prompt.max_feedback_tokens",
}
