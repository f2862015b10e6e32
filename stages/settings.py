"""The configuration: one strict section per stage. Class defaults are the method; a YAML says what differs.

Semantic settings decide what is made: changing one on a half-done stage is refused. Runtime settings
(marked with `runtime`) only decide how: they are recorded and may change between starts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from env.phone.world.levels import LEVEL_SHARES
from env.phone.world.tasks import SPLITS
from pipeline.config import Section, runtime

PROMPT_TOKENS = 1024
"""Room for a task's own prompt where `engine.max_length` is not set; those of phone take a few hundred."""


def _each_held_out_and_once(splits: tuple[str, ...]) -> tuple[str, ...]:
    if not set(splits) <= set(SPLITS[1:]) or len(set(splits)) < len(splits):
        raise ValueError(
            f"should name held-out splits, each once; allowed: {', '.join(SPLITS[1:])}. Tasks of train say "
            "nothing of unseen ones"
        )
    return splits


HeldOutSplits = Annotated[tuple[str, ...], AfterValidator(_each_held_out_and_once)]


class Run(Section):
    """Which run this is."""

    name: str = Field("demo", description="folder under data_dir", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(0, ge=0, description="every random number of the run follows from it")
    data_dir: str = runtime("data", description="where runs are kept")


class Engine(Section):
    """How text is sampled, in every stage that samples."""

    kind: Literal["transformers", "vllm", "scripted"] = Field(
        "transformers", description="generation backend"
    )
    max_live: int = runtime(256, ge=1, description="rollouts in flight at once")
    overlap_shards: bool = runtime(
        False,
        description="in rollouts and labels, start the next shard while the last one ends: keeps GPUs "
        "full; without it a resumed run is the undisturbed one to the bit",
    )
    env_workers: int = runtime(
        0, ge=0, description="threads in which environments work beside generation; 0 is in line"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the engine's weights and key-value cache"
    )
    replicas: int = runtime(1, ge=1, description="vllm: engines side by side, each with all weights")
    tensor_parallel: int = runtime(1, ge=1, description="vllm: GPUs of one replica")
    block_size: int = runtime(32, ge=1, description="vllm: tokens per block of the prefix cache")
    max_length: int | None = runtime(
        None,
        ge=1,
        description="vllm: longest row in tokens that its cache must hold; null: the largest budgets of "
        "response and feedback, and 1,024 for a task's own prompt. The model's limit where that is less",
    )
    kv_cache_gib: float = runtime(
        1.0, gt=0, description="vllm on a CPU: memory of keys and values, a replica"
    )
    shared_gpus: bool = runtime(
        False,
        description="actor: engine and trainer take turns on the same GPUs: the engine sleeps while the "
        "trainer works, whose state waits in host memory while the engine does",
    )
    memory_share: float = runtime(0.9, gt=0, le=1, description="vllm on a GPU: share of it, weights included")
    eager: bool = runtime(True, description="vllm: no compilation: starts faster, generates slower")
    handoff: Literal["memory", "disk"] = runtime("memory", description="vllm: how new weights reach it")
    handoff_folder: str | None = runtime(None, description="vllm: for disk; null is the temporary folder")
    threads: int = runtime(0, ge=0, description="vllm: CPU threads of a replica; 0 is all")
    start_timeout: float = runtime(1800.0, gt=0, description="vllm: seconds until a replica must be ready")
    answer_timeout: float = runtime(
        1800.0, gt=0, description="vllm: seconds without a finished request until a replica counts as hung"
    )


class Training(Section):
    """How models are trained, in every stage that trains."""

    backend: Literal["torch", "deepspeed"] = Field("torch", description="training backend")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the products; master weights, moments and gradients are always fp32"
    )
    lora_rank: int = Field(
        0, ge=0, description="torch: width of LoRA adapters trained in place of the weights; 0 is none"
    )
    lora_alpha: int = Field(32, gt=0, description="LoRA: an adapter's product is scaled by alpha / rank")
    micro_batch_tokens: int = runtime(16384, ge=1, description="tokens per forward pass, packed")
    piece_tokens: int = runtime(1024, ge=1, description="tokens whose logits exist at once")
    recompute: bool = runtime(False, description="compute a layer's inside again in the backward pass")
    threads: int = runtime(
        0, ge=0, description="CPU threads; 0 is torch's choice, with deepspeed each rank's share of the cores"
    )
    num_ranks: int = runtime(1, ge=1, description="deepspeed: processes, one GPU each")
    deepspeed: str = runtime(
        "configs/deepspeed/zero2_fp32.json", description="deepspeed: its configuration, of the same dtype"
    )


class Hardware(Section):
    """What `vdapo plan` holds the run against; with GPUs, what a stage must find before it starts."""

    num_gpus: int = runtime(0, ge=0, description="of one node; 0 plans for a CPU")
    gpu_memory_gib: float = runtime(0.0, ge=0, description="usable memory of each")
    gpu_tflops: float = runtime(0.0, ge=0, description="dense bf16 TFLOP/s of each, from its data sheet")
    gpu_bandwidth_gbs: float = runtime(0.0, ge=0, description="GB/s of each GPU's memory")
    host_memory_gib: float = runtime(4.0, gt=0, description="memory of the node")
    model: str | None = runtime(
        None, description="config.json to plan with while sft.base is not on this machine"
    )
    critic_model: str | None = runtime(None, description="the same for critic.trunk")


class Tasks(Section):
    """Tasks: worlds, companies, splits."""

    environment: Literal["phone"] = Field("phone", description="which environment makes and grades tasks")
    num_companies: int = Field(100, ge=4, description="companies over all splits")
    num_train: int = Field(500, ge=1, description="tasks to train on")
    num_val: int = Field(100, ge=1, description="new tasks of the training companies")
    num_test: int = Field(100, ge=1, description="tasks of each unseen split")
    level_shares: dict[int, float] = Field(
        dict(LEVEL_SHARES), description="share of companies, and so of tasks, per level, 1 to 5"
    )
    companies_file: str | None = Field(
        None, description="companies.jsonl of the companies of tasks_file (env/phone/world/files.py)"
    )
    tasks_file: str | None = Field(
        None, description="tasks.jsonl: makes exactly these tasks; sizes and shares then say nothing of them"
    )

    @model_validator(mode="after")
    def _files_come_together(self) -> Tasks:
        if (self.companies_file is None) != (self.tasks_file is None):
            raise ValueError("tasks.companies_file and tasks.tasks_file come together; give both or neither")
        return self


class TinyModel(Section):
    """A Qwen3 made from scratch, for a machine without a GPU."""

    hidden_size: int = Field(128, ge=8, description="width")
    num_layers: int = Field(6, ge=1, description="depth")
    num_heads: int = Field(4, ge=1, description="query heads")
    num_kv_heads: int = Field(2, ge=1, description="key and value heads")
    head_dim: int = Field(32, ge=2, multiple_of=2, description="width of a head, even for rotary positions")
    intermediate_size: int = Field(384, ge=8, description="width of the MLP")
    vocab_size: int = Field(1024, ge=300, description="byte-level BPE tokens, special ones included")
    max_position: int = Field(1024, ge=64, description="longest sequence in tokens")
    initializer_range: float = Field(
        0.08, gt=0, description="about 1/sqrt(width): 0.02 does not learn at this size"
    )

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> TinyModel:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads = {self.num_heads}; must be a multiple of num_kv_heads = {self.num_kv_heads}"
            )
        return self


class Sft(Section):
    """The starting policy, from demonstrations."""

    base: str | None = Field(
        None, description="model folder to start from, in Hugging Face format; null makes a tiny one"
    )
    model: TinyModel = TinyModel()
    shares: dict[str, float] = Field(
        {
            "adaptive": 0.30,
            "oracle": 0.10,
            "prober": 0.15,
            "prior_only": 0.20,
            "over_collector": 0.10,
            "noisy_adaptive": 0.15,
        },
        description="which scripted policies demonstrate, and how often",
    )
    num_demonstrations: int = Field(6000, ge=1, description="demonstrated episodes")
    practice_tasks: int = Field(
        0,
        ge=0,
        description="throwaway tasks to demonstrate on, of companies with no held-out name; "
        "0: the training tasks",
    )
    context_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="loss weight of prompts and replies: a model from scratch must learn to read",
    )
    guided_share: float = Field(0.3, ge=0, le=1, description="demonstrations whose prompt carries feedback")
    noise: float = Field(0.2, ge=0, le=1, description="share of random acts of the noisy policies")
    thoughts: bool = Field(
        False, description="demonstrators write before each call whom they call and what for"
    )
    num_updates: int = Field(600, ge=0, description="optimizer steps; 0 takes the base as it is")
    batch_rows: int = Field(64, ge=1, description="demonstrations per update")
    learning_rate: float = Field(2e-3, gt=0, description="peak, cosine to a tenth after warm-up")
    warmup_updates: int = Field(30, ge=0, description="linear warm-up")
    weight_decay: float = Field(0.01, ge=0, description="AdamW")
    checkpoint_every: int = runtime(200, ge=1, description="updates between checkpoints")


class Sampling(Section):
    """How a policy is sampled where something is trained on it: from the whole distribution."""

    temperature: float = Field(1.0, ge=0, description="0 is greedy, in evaluation only")
    max_response_tokens: int = Field(512, ge=1, description="budget of an episode, replies included")

    @model_validator(mode="before")
    @classmethod
    def _is_not_truncated(cls, given: Any) -> Any:
        truncated = sorted({"top_p", "top_k"}.difference(cls.model_fields).intersection(given))
        if truncated:
            raise ValueError(
                f"{', '.join(truncated)}: what is trained on is sampled from the whole distribution, since "
                "its log-probabilities enter importance ratios. Remove it here; evaluation.sampling knows it"
            )
        return given


class EvaluationSampling(Sampling):
    """How a policy is sampled where it is only measured."""

    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; 1 keeps every token")
    top_k: int = Field(-1, ge=-1, description="likeliest tokens kept; -1 keeps all")


class Chain(Section):
    """How the attempts of a group follow each other."""

    num_attempts: int = Field(
        4, ge=1, description="rounds: attempt k sees feedback on failed attempts 0..k-1"
    )
    draws: int = Field(2, ge=1, description="rollouts of each attempt")
    feedback_free_share: float = Field(0.3, ge=0, le=1, description="share of groups that are one bare set")
    feedback_free_draws: int = Field(8, ge=1, description="rollouts of a bare set")
    max_feedback_tokens: int = Field(
        1024, ge=1, description="cap on feedback in a prompt; the oldest goes first"
    )


class Rollouts(Section):
    """Feedback-guided rollouts of the starting policy."""

    chain: Chain = Chain()
    sampling: Sampling = Sampling()
    verbosity: Literal["binary", "observed", "corrective"] = Field("observed", description="of rule feedback")
    style: Literal["compact", "full"] = Field(
        "compact",
        description="prompt style: compact lines for tiny models, full for chat models (Qwen3's tool calls)",
    )
    num_tasks: int | None = Field(None, ge=1, description="training tasks to use; null is all")
    groups_per_shard: int = Field(64, ge=1, description="groups that are committed together")


class Labels(Section):
    """What is known of step values."""

    num_continuations: int = Field(8, ge=0, description="n fresh continuations of a chosen state")
    anchors: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        (0.3, 0.6, 0.9), description="chosen states, as shares of the response"
    )
    around_errors: bool = Field(True, description="also just before and just after each located error")
    max_states: int | None = Field(
        None, ge=1, description="cap on states that get continuations; null is none"
    )
    guided_share: float = Field(
        0.3, ge=0, le=1, description="share of those states that lie in a guided context"
    )
    kappa: float = Field(2.0, ge=0, description="pseudo-counts given to the recovery model")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens that continuations may take: fewer states are chosen, by what they are expected "
        "to take, and no shard is begun once they are spent; with engine.overlap_shards the choice alone "
        "bounds them. null is no bound",
    )
    target: Literal["soft", "monte_carlo", "td", "td_lambda", "outcome_dense", "rule_decay"] = Field(
        "soft",
        description="what the critic is fitted to: counts with pseudo-counts, or a rule without counts: of "
        "R, with the critic's own values (td, td_lambda) or located errors (rule_decay)",
    )
    td_lam: float = Field(0.95, ge=0, le=1, description="trace decay of td_lambda, per step")
    granularity: Literal["binary", "step", "detailed"] = Field(
        "detailed", description="what pseudo-counts know of located errors: nothing, that one was, which"
    )
    states_per_shard: int = Field(128, ge=1, description="states that are committed together")
    sibling_sets: int = Field(
        0,
        ge=0,
        description="tasks, of companies that fit the critic, on which several next steps of one state are "
        "continued, for critic.rank_weight",
    )
    sibling_size: int = Field(5, ge=2, description="next steps drawn from such a state; equal ones are one")
    sibling_continuations: int = Field(8, ge=2, description="fresh continuations after each of them")


class Critic(Section):
    """The frozen step-level critic."""

    trunk: str = Field(
        "policy",
        description="'policy' starts from the sft policy; else a model folder, told apart by its path: after "
        "a change of what is in it, make critic SET=--fresh",
    )
    fit_share: float = Field(0.72, gt=0, lt=1, description="clusters to fit on; labels are made for them")
    validate_share: float = Field(
        0.08, gt=0, lt=1, description="clusters that decide convergence; they and the rest calibrate"
    )
    fit_continuations: bool = Field(
        False,
        description="fit on the states and steps that the continuations of labels came to as well, by how "
        "they ended: several times the states, nothing more to sample; needs labels.target soft",
    )
    head_updates: int = Field(50, ge=0, description="phase 1: head only")
    head_learning_rate: float = Field(1e-4, gt=0, description="phase 1")
    learning_rate: float = Field(1e-5, gt=0, description="phase 2: all weights, cosine")
    max_epochs: float = Field(3, gt=0, description="phase 2 at most")
    batch_states: int = Field(512, ge=1, description="states per update")
    evaluations_per_epoch: int = Field(4, ge=1, description="looks at the validation clusters")
    patience: int = Field(3, ge=1, description="evaluations running without a gain of one standard error")
    error_weight: float = Field(0.5, ge=0, description="of the error head's loss")
    value_loss: Literal["bce", "mse"] = Field(
        "bce", description="cross-entropy of the targets, or squared error as an ablation"
    )
    rank_weight: float = Field(
        0.0,
        ge=0,
        description="of the loss that ranks sibling steps of the fitting companies (.2 is a start value); "
        "0 is off, else labels.sibling_sets must be above 0",
    )
    class_balance: Literal["task", "label"] = Field(
        "task",
        description="task: every task weighs the same; label: and states of y >= .5 as much as the others, "
        "at most 4:1",
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW")


class CriticReport(Section):
    """The audit on held-out tasks, and the gate."""

    splits: HeldOutSplits = Field(
        ("val", "test_unseen_company"), min_length=1, description="held-out splits to audit on, each once"
    )
    tasks_per_split: int = Field(100, ge=1, description="audited tasks of each split")
    draws: int = Field(4, ge=2, description="bare rollouts of each task: the per-task rate needs others")
    num_continuations: int = Field(32, ge=2, description="K fresh continuations of each")
    tasks_per_shard: int = Field(32, ge=1, description="tasks that are committed together")
    fit_tasks: int = Field(
        50,
        ge=0,
        description="tasks that the critic was fitted on, continued afresh as well: what it knows by heart; "
        "0 measures none",
    )
    bootstrap: int = Field(
        1000,
        ge=100,
        description="resamples of clusters behind each interval; 500 at most for parts of the audit and "
        "first errors, 200 for the line through log-odds",
    )
    num_sample_rollouts: int = Field(6, ge=0, description="rollouts drawn with their values")
    guided: bool = Field(
        True, description="audit and judge states after feedback too; an actor trained on them needs it"
    )
    min_advantage_correlation: float = Field(0.2, description="gate: lower bound of rho_A above this")
    max_calibration_excess: float = Field(0.03, gt=0, description="gate: ECE below its floor plus this")
    sibling_sets: int = Field(
        100, ge=0, description="tasks on which several next steps of one state are compared; 0 measures none"
    )
    sibling_size: int = Field(5, ge=2, description="next steps drawn from such a state; equal ones are one")
    probe_rollouts: int = Field(400, ge=0, description="audited rollouts that are probed; 0 measures none")
    max_probe_rise: float = Field(
        0.02, ge=0, description="gate: a cosmetic change may raise the value by this on average"
    )
    judge_probes: bool = Field(True, description="gate: whether a probe that does not hold fails the critic")


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    recalibrate: bool = Field(
        True, description="refit level and slope on fresh outcomes when one is off, for later iterations"
    )
    max_bias: float = Field(0.1, gt=0, description="mean V - R beyond which the level is off, but for chance")
    min_slope: float = Field(0.7, gt=0, description="of log-odds of R on those of V")
    max_slope: float = Field(1.4, gt=0, description="of log-odds of R on those of V")
    paid_every: int = Field(20, ge=0, description="updates between checks by fresh continuations; 0 is never")
    states: int = Field(256, ge=2, description="states of a paid check, at least; whole rollouts")
    num_continuations: int = Field(16, ge=2, description="of each of them, by the present actor")
    sibling_sets: int = Field(32, ge=0, description="sets of next steps of a paid check")
    sibling_size: int = Field(5, ge=2, description="next steps drawn for a set")
    min_sign_agreement: float = Field(
        0.6, ge=0, le=1, description="of clear steps; with an upper bound below it steps are off"
    )
    step_weight_to_zero: bool = Field(
        True,
        description="alpha is 0 once Cov(A, Ahat) touches 0 or signs disagree, until a new critic passes",
    )
    refresh: Literal["never", "once", "on_drift"] = Field(
        "once", description="then make rollouts, labels, critic and critic_report anew for the present actor"
    )

    @model_validator(mode="after")
    def _limits_hold_a_right_slope(self) -> Drift:
        if not self.min_slope < 1 < self.max_slope:
            raise ValueError(
                f"min_slope {self.min_slope:g} and max_slope {self.max_slope:g}: a right critic's slope is 1 "
                "and must lie between them, or it is recalibrated in every iteration"
            )
        return self


class Stops(Section):
    """What ends the actor's training with exit code 4, after a checkpoint."""

    max_kl: float | None = runtime(
        0.1,
        gt=0,
        description="nats a token from the starting policy, median of three updates, where it is "
        "measured; null: no limit",
    )
    max_length_change: float | None = runtime(
        0.5, gt=0, description="of mean response length or steps since the first iteration; null: no limit"
    )
    falling_evaluations: int = runtime(
        3,
        ge=0,
        description="looks at val running with less success and a critic ever more pleased; 0 never stops",
    )


class Actor(Section):
    """The actor's training."""

    credit: Literal["v_dapo", "decoupled_clip", "grpo"] = Field(
        "v_dapo", description="who gets how much advantage"
    )
    alpha: float = Field(0.5, ge=0, description="v_dapo: weight of the critic's step advantages")
    alpha_after_clean: float = Field(
        1.0,
        ge=0,
        description="v_dapo: that weight after two paid drift checks running that the gate would pass",
    )
    lam: float = Field(0.95, ge=0, le=1, description="v_dapo: trace decay per step")
    on_weak_critic: Literal["refuse", "group_only", "allow"] = Field(
        "refuse", description="if the gate failed"
    )
    num_iterations: int = Field(100, ge=1, description="rounds of fresh rollouts")
    tasks_per_update: int = Field(32, ge=1, description="tasks with kept sets per update")
    updates_per_iteration: int = Field(1, ge=1, description="optimizer steps on each iteration's rollouts")
    max_refills: int = Field(10, ge=0, description="dynamic sampling: rounds of more tasks per iteration")
    learning_rate: float = Field(1e-6, gt=0, description="constant after warm-up")
    warmup_updates: int = Field(10, ge=0, description="linear warm-up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW")
    kl_coefficient: float | None = Field(None, ge=0, description="k3 KL to pi_0; null: the credit mode's own")
    chain: Chain = Chain()
    sampling: Sampling = Sampling()
    checkpoint_every: int = runtime(10, ge=1, description="iterations between checkpoints")
    evaluate_every: int = Field(5, ge=1, description="iterations between looks at val, for the curve only")
    evaluate_tasks: int = Field(100, ge=1, description="val tasks of such a look")
    drift: Drift = Drift()
    stops: Stops = Stops()

    @model_validator(mode="after")
    def _clean_checks_take_no_weight_away(self) -> Actor:
        if self.alpha_after_clean < self.alpha:
            raise ValueError(
                f"alpha = {self.alpha:g}, alpha_after_clean = {self.alpha_after_clean:g}: two good checks "
                "would lower the weight. Set alpha_after_clean to alpha or more"
            )
        return self


class Evaluation(Section):
    """Starting policy beside actor."""

    splits: HeldOutSplits = Field(
        ("val", "test_unseen_company"), min_length=1, description="held-out splits, each once"
    )
    draws: int = Field(4, ge=1, description="first tries of each task at temperature 1")
    num_attempts: int = Field(2, ge=1, description="attempts of the with-feedback measure")
    groups_per_shard: int = Field(100, ge=1, description="tasks that are committed together")
    bootstrap: int = Field(2000, ge=100, description="resamples of clusters behind each interval")
    sampling: EvaluationSampling = EvaluationSampling()


class Config(Section):
    """Everything a run needs, and nothing it does not."""

    run: Run = Run()
    engine: Engine = Engine()
    training: Training = Training()
    hardware: Hardware = Hardware()
    tasks: Tasks = Tasks()
    sft: Sft = Sft()
    rollouts: Rollouts = Rollouts()
    labels: Labels = Labels()
    critic: Critic = Critic()
    critic_report: CriticReport = CriticReport()
    actor: Actor = Actor()
    evaluation: Evaluation = Evaluation()

    @property
    def row_tokens(self) -> int:
        """Longest row, prompt and response, that an engine with a cache of its own makes room for."""
        if self.engine.max_length is not None:
            return self.engine.max_length
        sampling = (self.rollouts.sampling, self.actor.sampling, self.evaluation.sampling)
        chains = (self.rollouts.chain, self.actor.chain)
        response = max(how.max_response_tokens for how in sampling)
        return PROMPT_TOKENS + max(chain.max_feedback_tokens for chain in chains) + response

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Config:
        for name, shares in (
            ("tasks.level_shares", self.tasks.level_shares),
            ("sft.shares", self.sft.shares),
        ):
            if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
                raise ValueError(f"{name} = {shares}; shares are >= 0 and add up to 1")
        if self.rollouts.sampling.temperature == 0:
            raise ValueError(
                "rollouts.sampling.temperature = 0: greedy rollouts of a task are all the same and teach "
                "nothing; it is > 0 here"
            )
        if self.critic.fit_share + self.critic.validate_share >= 1:
            raise ValueError("critic.fit_share + critic.validate_share must leave clusters to calibrate on")
        if self.critic.rank_weight > 0 and not self.labels.sibling_sets:
            raise ValueError(
                f"critic.rank_weight = {self.critic.rank_weight} needs steps to rank: set "
                "labels.sibling_sets above 0, or critic.rank_weight to 0"
            )
        if self.critic.fit_continuations and not self.labels.num_continuations:
            raise ValueError(
                "critic.fit_continuations with labels.num_continuations = 0: there are none to fit. Set "
                "labels.num_continuations above 0, or critic.fit_continuations to false"
            )
        if self.critic.fit_continuations and self.labels.target != "soft":
            raise ValueError(
                f"critic.fit_continuations with labels.target = {self.labels.target}: a named target is "
                "fitted on what it names alone. Use labels.target = soft, or critic.fit_continuations = false"
            )
        if self.critic.class_balance == "label" and self.labels.target in ("td", "td_lambda"):
            raise ValueError(
                f"critic.class_balance = label with labels.target = {self.labels.target}: such targets "
                "change with every epoch, and their classes with them. Use critic.class_balance = task"
            )
        if self.sft.base is None and self.sft.num_updates == 0:
            raise ValueError("sft.num_updates = 0 takes a model as it is: name one in sft.base")
        if self.engine.kind != "vllm" and self.engine.replicas * self.engine.tensor_parallel > 1:
            raise ValueError(
                f"engine.replicas = {self.engine.replicas} and engine.tensor_parallel = "
                f"{self.engine.tensor_parallel} need engine.kind = vllm, not {self.engine.kind}"
            )
        if self.training.backend != "deepspeed" and self.training.num_ranks > 1:
            raise ValueError(
                f"training.num_ranks = {self.training.num_ranks} needs training.backend = deepspeed, not "
                f"{self.training.backend}"
            )
        if self.training.lora_rank and self.training.backend != "torch":
            raise ValueError(
                f"training.lora_rank = {self.training.lora_rank} needs training.backend = torch, not "
                f"{self.training.backend}"
            )
        if self.training.lora_rank and self.sft.base is None:
            raise ValueError(
                f"training.lora_rank = {self.training.lora_rank} needs a trained model to adapt: name one in "
                "sft.base. A model from scratch has nothing to keep"
            )
        for name, wanted in (
            ("engine.replicas x engine.tensor_parallel", self.engine.replicas * self.engine.tensor_parallel),
            ("training.num_ranks", self.training.num_ranks),
        ):
            if self.hardware.num_gpus and wanted > self.hardware.num_gpus:
                raise ValueError(f"{name} = {wanted}; hardware.num_gpus has {self.hardware.num_gpus}")
        if self.actor.sampling.temperature != 1:
            raise ValueError(
                f"actor.sampling.temperature = {self.actor.sampling.temperature}; only 1 is allowed: the "
                "actor trains on rollouts of its own distribution"
            )
        if self.evaluation.sampling.temperature == 0:
            raise ValueError(
                "evaluation.sampling.temperature = 0; give a positive one, a greedy try is measured beside it"
            )
        return self
