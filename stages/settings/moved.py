"""Settings of earlier versions, and what to write instead: old configurations are what people bring."""

_GONE = "gone, with its code: no measurement spoke for it"
_FIXED = "a constant in the code now"
_DERIVED = "derived from the other settings now"
_WHOLE = "no setting: the policy is sampled from its whole distribution at temperature 1"

_WORDS = {
    _GONE: (
        *("actor.alpha_after_clean", "engine.handoff_folder"),
        *("labels.sibling_sets", "labels.sibling_size", "labels.sibling_continuations"),
        *("critic.rank_weight", "critic.value_loss", "critic.class_balance"),
        *("actor.drift.sibling_sets", "actor.drift.sibling_size"),
    ),
    _FIXED: (
        *("labels.anchors", "labels.around_errors", "labels.td_lam", "critic_report.sibling_size"),
        *("critic.patience", "critic.error_weight", "critic.weight_decay"),
        *("actor.drift.max_bias", "actor.drift.min_slope", "actor.drift.max_slope"),
        *("actor.drift.min_sign_agreement", "actor.stops.falling_evaluations"),
        *("engine.block_size", "engine.start_timeout", "engine.answer_timeout", "training.piece_tokens"),
        *("training.lora_alpha", "sft.noise", "sft.weight_decay"),
        *("sft.model.head_dim", "sft.model.initializer_range"),
        *("critic_report.bootstrap", "critic_report.num_sample_rollouts", "evaluation.bootstrap"),
        *("critic_report.min_advantage_correlation", "critic_report.max_calibration_excess"),
        *("critic_report.max_probe_rise", "evaluation.num_attempts"),
    ),
    _DERIVED: ("engine.max_length", "engine.threads", "sft.model.num_heads", "sft.model.max_position"),
    _WHOLE: (
        *("rollouts.sampling.temperature", "rollouts.sampling.top_p", "rollouts.sampling.top_k"),
        *("actor.sampling.temperature", "actor.sampling.top_p", "actor.sampling.top_k"),
        *("evaluation.sampling.temperature", "evaluation.sampling.top_p", "evaluation.sampling.top_k"),
    ),
    "run.rollouts_per_shard, for all stages": (
        *("rollouts.groups_per_shard", "labels.states_per_shard"),
        *("critic_report.tasks_per_shard", "evaluation.groups_per_shard"),
    ),
    "sampling.max_response_tokens, for all stages": (
        *("rollouts.sampling.max_response_tokens", "actor.sampling.max_response_tokens"),
        "evaluation.sampling.max_response_tokens",
    ),
    "tasks.files, the folder of both files": ("tasks.companies_file", "tasks.tasks_file"),
    "run.held_out": ("critic_report.splits", "evaluation.splits"),
    "prompt.max_feedback_tokens": ("rollouts.chain.max_feedback_tokens", "actor.chain.max_feedback_tokens"),
    "actor.credit.drift.react": ("actor.drift.recalibrate", "actor.drift.step_weight_to_zero"),
    "in stages/wiring/plan_work.py: name hardware.gpu": ("hardware.gpu_tflops", "hardware.gpu_bandwidth_gbs"),
}

MOVED = {
    **{old: new for new, keys in _WORDS.items() for old in keys},
    "actor.alpha": "actor.credit.alpha",
    "actor.lam": "actor.credit.lam",
    "actor.weight_decay": f"{_FIXED}: 0",
    "actor.on_weak_critic": "actor.credit.on_weak_critic",
    "actor.kl_coefficient": "actor.credit.kl",
    "actor.drift.paid_every": "actor.credit.drift.paid_every",
    "actor.drift.states": "actor.credit.drift.states",
    "actor.drift.num_continuations": "actor.credit.drift.num_continuations",
    "actor.drift.refresh": "actor.credit.drift.refresh",
    "actor.credit.max_uniform_share": f"{_FIXED}: half of an update's sets, in pipeline/credit",
    "actor.warmup_updates": f"{_DERIVED}: a fifteenth of the updates, at most 10",
    "actor.evaluate_every": f"{_FIXED}: a look at val every 4 iterations; evaluate_tasks sets its size",
    "sft.warmup_updates": f"{_DERIVED}: a tenth of sft.num_updates, at most 30",
    "sft.context_weight": f"{_DERIVED}: 0.3 for a model from scratch, 0 with sft.base",
    "sft.model.vocab_size": f"{_FIXED}: 768, of tokenizers made from scratch; sft.base brings its own",
    "engine.kv_cache_gib": f"{_FIXED}: 1 GiB a replica on a CPU; on GPUs engine.memory_share says it",
    "engine.env_workers": "the environment's own business now",
    "engine.handoff": f"{_GONE}; weights reach vLLM through memory",
    "hardware.model": "found by the name of sft.base in configs/models",
    "hardware.critic_model": "found by the name of critic.trunk in configs/models",
    "critic_report.judge_probes": "no setting: probes that were made are judged; probe_rollouts=0 makes none",
    "rollouts.style": "prompt.style",
    "rollouts.verbosity": "prompt.verbosity",
}
