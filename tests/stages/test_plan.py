"""`vdapo plan`: what it counts, what it says does not fit, what it refuses."""

import re
from pathlib import Path

import pytest

from critics.audit.forecast import EXPECTED, half_width, tasks_needed
from critics.report.gate import MIN_ADVANTAGE_CORRELATION
from env.phone.world.levels import most_turns
from pipeline.config import load_config
from pipeline.planner.memory import GIB
from pipeline.planner.processes import CONTEXT_BYTES, CUDA_HOST_BYTES, HOST_BYTES, LIBRARY_BYTES, NCCL_BYTES
from stages.command import main
from stages.settings import Config
from stages.wiring.arms import runs_of
from stages.wiring.plan_comparison import work_of_comparison
from stages.wiring.plan_critic import critic_words, overhead_of
from stages.wiring.plan_feedback import texts_of
from stages.wiring.plan_memory import memory_of
from stages.wiring.plan_models import critic_config, model_config, training_of
from stages.wiring.plan_work import audited_tasks, work_of

ROOT = Path(__file__).parents[2]
DEMO, ONE_GPU, EIGHT_80, EIGHT_24, GSM8K, CODE, EIGHT_FULL = (
    str(ROOT / "configs" / f"{name}.yaml")
    for name in (
        "demo",
        "phone-qwen3-0.6b-1gpu",
        "phone-qwen3-8b-8x80gb",
        "phone-qwen3-8b-8x24gb",
        "gsm8k-qwen3-8b-8x80g",
        "code-qwen3-8b-8x80g",
        "phone-qwen3-8b-full-8x80gb",
    )
)
PARAMETERS = {"0.6b": 596_049_920, "1.7b": 1_720_574_976, "8b": 8_190_735_360}
TURNS = most_turns([1, 2])  # at the demo's levels


@pytest.fixture
def plan(monkeypatch, capsys):
    """Runs the command; returns what it printed."""
    monkeypatch.setenv("COLUMNS", "400")

    def run(code, *argv):
        assert main(["plan", *argv]) == code
        return "".join(capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # configurations name files of the repository


def memory(path, *overrides):
    config = load_config(Config, Path(path), overrides)
    policy = model_config(config)
    taken = memory_of(policy, critic_config(config, policy), 1536, config)
    return taken, dict(taken.phases)


def work(*overrides, **parameters):
    config = load_config(Config, Path(DEMO), overrides)
    return {entry.stage: entry for entry in work_of(config, **parameters)}


def test_a_model_writes_feedback_on_each_attempt_that_another_may_follow(plan):
    more = ["actor.max_refills=1", "critic_report.guided=false", "evaluation.draws=3"]
    more += ["actor.credit.on_weak_critic=allow"]  # nobody audits what it trains on
    more += ["rollouts.chain={num_attempts: 3, draws: 2, feedback_free_share: 0.25}", "rollouts.num_tasks=40"]
    more += ["actor.chain={num_attempts: 2, draws: 4, feedback_free_share: 0.5}", "actor.num_iterations=5"]
    more += ["actor.tasks_per_update=8", "actor.updates_per_iteration=2", "tasks.num_held_out=10"]
    wanted = 30 * 2 * 2 + 8 * 4 * 5 * 2 + 2 * 10 * 2 * 3
    assert f"at most: {wanted}; their tokens" in plan(0, DEMO, *more, "feedback.kind=self")
    assert "texts of feedback" not in plan(0, DEMO, *more)
    refreshed = load_config(Config, Path(DEMO), [*more, "actor.credit.drift.react=refresh_first"])
    assert texts_of(refreshed) == wanted + 30 * 2 * 2
    no_refills = load_config(Config, Path(DEMO), [*more, "actor.credit={mode: grpo}"])
    assert texts_of(no_refills) == wanted - 8 * 4 * 5


SHIPPED = [ONE_GPU, EIGHT_80, EIGHT_24, GSM8K, CODE, EIGHT_FULL]
ALIKE = {GSM8K, CODE, EIGHT_FULL}
"""The same machine and model as EIGHT_80."""


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] if path in ALIKE else []) for path in SHIPPED]
)
def test_a_shipped_configuration_fits_its_hardware(plan, path):
    printed = plan(0, path)
    assert "DOES NOT FIT" not in printed
    for phase in ("generation", "actor update", "reference pass", "hand-off", "critic update"):
        assert phase in printed
    assert f"{PARAMETERS['0.6b' if path == ONE_GPU else '8b']:,}" in printed


def test_every_shipped_configuration_is_tried_and_the_demo_fits(plan):
    assert sorted(str(path) for path in (ROOT / "configs").glob("*qwen3*.yaml")) == sorted(SHIPPED)
    assert "1,082,752 parameters" in (printed := plan(0, DEMO, "engine.replicas=2"))
    assert "DOES NOT FIT" not in printed


def test_qwen3_8b_on_80_gb_takes_what_arithmetic_says():
    """ZeRO 2 over 8 ranks: 2 bytes of weights each, 16 of gradients, master copy and moments divided by 8."""
    count = PARAMETERS["8b"]
    taken, phases = memory(EIGHT_80)
    update = phases["actor update"].device
    assert update["weights"] == 2 * count
    assert update["gradients"] + update["optimizer"] == pytest.approx(16 * count / 8, rel=1e-9)
    # Inputs of 36 layers of width 4096, 16,384 tokens in bf16: 4.5 GiB, and the inside of one layer.
    assert update["activations"] > 36 * 16384 * 4096 * 2
    without_others = phases["actor update"].device_bytes - sum(
        update[other] for other in ("engine", "critic (first GPU)", "contexts and NCCL")
    )
    # Besides, a bucket of 2e8 gradients in bf16, and the pass.
    assert without_others == 2 * count + 2 * count + 2 * 200_000_000 + update["activations"]
    generation = phases["generation"].device
    share = int(0.85 * 77 * GIB)
    assert generation["weights"] == 2 * count
    assert generation["weights"] + generation["key-value cache"] + generation["at work"] == share
    # vLLM takes what CUDA graphs need off its cache.
    assert memory(EIGHT_80, "engine.eager=true")[0].live - taken.live == pytest.approx(
        GIB / 147_456 / 1536, abs=1
    )
    assert taken.live == generation["key-value cache"] // (147_456 * 1536)
    parked = phases["hand-off"].host["trainer, while the engine works"]
    assert parked == pytest.approx(8 * (2 * count + 16 * count / 8), rel=1e-6)
    # The buffers that it left to stay locked while it is back: all but the gradients, which have none.
    for name in ("actor update", "optimizer's step", "checkpoint"):
        held = phases[name].host["trainer's locked buffers"]
        assert held == pytest.approx(8 * (2 * count + 12 * count / 8), rel=1e-6)
        assert held > 213 * GIB
    assert not [
        name for name in ("trainer start", "hand-off") if "trainer's locked buffers" in phases[name].host
    ]
    apart = memory(EIGHT_80, "engine.shared_gpus=false")[1]["actor update"]
    assert set(phases["actor update"].host) - set(apart.host) == {"trainer's locked buffers"}
    joint = memory(EIGHT_80, "actor.credit={mode: actor_critic}")[1]
    assert joint["actor update"].host["value head"] == pytest.approx(parked, rel=1e-5)
    # A larger critic is divided as the policy is; on the first GPU the frozen one scores in fp32.
    count = PARAMETERS["1.7b"]
    taken, phases = memory(EIGHT_80, "critic.trunk=models/Qwen3-1.7B")
    update = phases["critic update"].device
    assert update["weights"] == 2 * count
    assert update["gradients"] + update["optimizer"] == pytest.approx(16 * count / 8, rel=1e-3)
    assert phases["actor update"].device["critic (first GPU)"] >= 4 * count
    assert all(map(taken.fits, phases))


def test_qwen3_8b_on_24_gb_takes_what_arithmetic_says():
    """ZeRO 3 over 8 ranks, AdamW on the host: an eighth of the weights stays on each GPU."""
    count = PARAMETERS["8b"]
    _, phases = memory(EIGHT_24)
    update = phases["actor update"]
    assert update.device["weights"] == 2 * count // 8
    assert "optimizer" not in update.device
    assert update.host["master copy, moments, gradients"] == pytest.approx(20 * count, rel=1e-6)
    # A bucket of 2e8 gradients, 5e8 gathered weights and the output layer, in bf16.
    assert update.device["communication"] == 2 * (200_000_000 + 500_000_000 + 151_936 * 4096)
    assert phases["generation"].device["weights"] == count  # in bf16, over two GPUs
    # A start divides one weight after another; the hand-off gives back the memory that weights leave through.
    start = phases["trainer start"].device
    assert start["weights"] + start["a whole weight"] == 2 * (count // 8 + 151_936 * 4096)
    assert phases["hand-off"].host["weights handed over, fp32"] == 4 * count
    assert all("weights handed over, fp32" not in phases[n].host for n in phases if n != "hand-off")
    checkpoint = phases["checkpoint"].host
    assert checkpoint["parts being written"] == 8 * 2 * 10**9
    assert not {"trainer, while the engine works", "trainer's locked buffers"} & set(checkpoint)
    assert phases["checkpoint"].device == phases["hand-off"].device
    assert memory(ONE_GPU)[1]["checkpoint"].host["parts being written"] == 2 * 10**9
    assert "checkpoint" not in memory(DEMO)[1]


def test_what_processes_take_for_themselves_is_planned():
    """Four replicas of two workers each, eight ranks of trainer and reference each, and the stage."""
    phases = memory(EIGHT_24)[1]
    for name, phase in phases.items():
        if name != "critic update":
            # On the first: a worker and a rank of the trainer, which exchange tensors, a reference, a critic.
            assert phase.device["contexts and NCCL"] == 4 * CONTEXT_BYTES + 2 * NCCL_BYTES
            assert phase.host["processes: 29"] == LIBRARY_BYTES + 25 * CUDA_HOST_BYTES + 4 * HOST_BYTES
    assert phases["critic update"].host["processes: 9"] == LIBRARY_BYTES + 8 * CUDA_HOST_BYTES + HOST_BYTES
    assert (
        memory(DEMO, "engine.replicas=2")[1]["generation"].device["processes: 3"]
        == LIBRARY_BYTES + 3 * HOST_BYTES
    )


def test_adapters_with_deepspeed_need_no_second_model_and_little_of_the_host():
    taken, phases = memory(EIGHT_24, "training.lora_rank=16")
    count = PARAMETERS["8b"]
    layer = (4096 + 4096) * 2 + 2 * (4096 + 1024) + 3 * (4096 + 12288)
    trained = 36 * 16 * layer
    update = phases["actor update"]
    assert update.device["weights"] == 2 * (count + trained) // 8
    assert update.host["master copy, moments, gradients"] == pytest.approx(20 * trained, rel=1e-6)
    assert "reference pass" not in phases
    assert phases["checkpoint"].host["parts being written"] == 12 * trained
    assert all(map(taken.fits, phases))
    full = memory(EIGHT_24)[1]["generation"]
    assert full.host_bytes - phases["generation"].host_bytes > 130 * GIB


def test_a_comparison_costs_what_its_runs_do_with_shared_stages_once(plan):
    path = ROOT / "configs" / "comparison-dense.yaml"
    config = load_config(Config, path, ["comparison.seeds=[0, 1, 2]"])
    found = work_of_comparison(config, lambda _: (10, 10))
    alone = {entry.stage: entry for entry in work_of(config, 10, 10)}
    for stage in ("rollouts", "critic", "critic_report", "stored"):
        assert found[stage] == pytest.approx([3 * figure for figure in alone[stage].figures])
    actors = sum(
        work.rollouts
        for run in runs_of(config, Path())
        for work in work_of(run.config)
        if work.stage == "actor"
    )
    assert found["actor"][0] == actors
    looks = 3 * 400 * (2 * 5 + 6 + 3 + 2 * 7 + 8 + 2 * 11 + 4)
    assert found["looks"] == (looks, looks * 512, 0, 0)
    assert alone["looks"].rollouts == 400 * 5
    assert "evaluation" not in found
    assert "comparison of 10 arms with 5 seeds each" in plan(0, str(path))


def test_every_process_that_plays_has_a_copy_of_the_policy_and_a_cache():
    count = 1_082_752
    (_, one), (taken, three) = (memory(DEMO, f"engine.replicas={number}") for number in (1, 3))
    assert one["generation"].device["weights"] == 4 * count
    assert three["generation"].device["weights"] == 3 * 4 * count
    assert three["generation"].device["weights that players read"] == 4 * count
    cache = "key-value cache"
    assert three["generation"].device[cache] == 3 * one["generation"].device[cache]
    assert three["actor update"].device_bytes - one["actor update"].device_bytes == pytest.approx(
        three["generation"].device_bytes - one["generation"].device_bytes
    )
    assert taken.live == 128
    in_one_queue = "engine={kind: scripted, overlap_shards: true, replicas: 3, max_live: 128}"
    assert memory(DEMO, in_one_queue)[1]["generation"] == one["generation"]


def test_adapters_need_gradients_and_moments_of_their_own_only():
    """Rank 8 on every linear layer of Qwen3-0.6B: 28 layers of 8 (in + out)."""
    _, phases = memory(
        ONE_GPU,
        "training={backend: torch, lora_rank: 8, dtype: bfloat16, micro_batch_tokens: 8192, recompute: true}",
    )
    update = phases["actor update"].device
    attention = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024)
    trained = 28 * 8 * (attention + 3 * (1024 + 3072))
    assert update["weights"] == 4 * (PARAMETERS["0.6b"] + trained)
    assert update["gradients"] == 4 * trained
    assert update["optimizer"] == 8 * trained


REFUSED = [
    (EIGHT_24, "engine.memory_share=0.3", "generation: the cache holds no rollout; raise engine."),
    (
        EIGHT_24,
        "hardware.host_memory_gib=100",
        "actor update: needs hardware.host_memory_gib of 221, or training.lora_rank=16",
    ),
    (DEMO, "engine.replicas=500", "GiB too much; lower engine.replicas or engine.max_live"),
    (EIGHT_24, "training={backend: torch}", "training.backend = torch trains on one GPU; "),
    (ONE_GPU, "engine={kind: transformers}", "engine.kind = transformers samples on the CPU; "),
    # vLLM would not start: Qwen3's 40,960 positions are more than this cache holds.
    (ONE_GPU, "sampling.max_response_tokens=38912", "holds 18,254 tokens, one row may take 40,960; raise"),
    (DEMO, "sft.base=models/none", "sft.base = models/none has no config.json here"),
    (EIGHT_80, "critic.trunk=models/none", "(there are: qwen3-0.6b, qwen3-1.7b, qwen3-8b)"),
    (EIGHT_80, "training.num_ranks=9", "training.num_ranks = 9; hardware.num_gpus has 8"),
    (EIGHT_24, "engine.replicas=8", "engine.replicas x engine.tensor_parallel = 16"),
]
DEARER = [  # passes of their own are counted
    (
        EIGHT_24,
        "engine.shared_gpus=false",
        "15.48 GiB too much; lower engine.memory_share or set engine.shared",
    ),
    (EIGHT_24, "training.recompute=false", "lower training.micro_batch_tokens, set training.recompute"),
    (EIGHT_80, "hardware.gpu_memory_gib=40", "take more ranks or a training.deepspeed that offloads"),
]


@pytest.mark.parametrize(
    ("path", "override", "said"),
    [*REFUSED, *(pytest.param(*case, marks=pytest.mark.slow) for case in DEARER)],
)
def test_what_does_not_fit_or_cannot_be_planned_is_named_with_what_would_help(plan, path, override, said):
    assert said in plan(2, path, override)


def test_a_row_longer_than_a_micro_batch_is_one_of_its_own():
    """So a smaller micro-batch takes no less, and the plan says what would."""

    def forward(tokens):
        config = load_config(Config, Path(EIGHT_80), [f"training.micro_batch_tokens={tokens}"])
        made = training_of(config, model_config(config), config.row_tokens).forward
        return made.tokens, made.row_tokens

    row = load_config(Config, Path(EIGHT_80), []).row_tokens
    assert forward(row // 4) == forward(row // 2) == (row, row)
    assert forward(2 * row) == (2 * row, row)


def test_planned_rollouts_are_those_that_the_stages_plan():
    overrides = [
        "tasks.num_train=100", "tasks.num_held_out=40",
        "labels.max_states=70", "labels.num_continuations=3",
        "rollouts.chain={num_attempts: 2, draws: 3, feedback_free_share: 0.3, feedback_free_draws: 4}",
        "evaluation.draws=3", "critic_report.tasks_per_split=10",
        "critic_report.draws=2", "critic_report.num_continuations=5", "critic_report.guided=true",
        "critic_report.fit_tasks=0", "actor.num_iterations=15",
    ]  # fmt: skip
    plain = work(*overrides)
    assert plain["rollouts"].rollouts == 70 * 2 * 3 + 30 * 4
    assert plain["labels"].rollouts == 70 * 3
    # Two policies on 40 val tasks and 40 of an unseen split: three chains of two attempts, a greedy try.
    assert plain["evaluation"].rollouts == 2 * (40 + 40) * (3 * 2 + 1)
    # Ten tasks of one split, bare and guided: two rollouts, of one of which every state is continued.
    assert plain["critic_report"].rollouts == 10 * 2 * (2 + TURNS * 5)
    by_heart = work(*overrides, "critic_report.fit_tasks=9")
    assert by_heart["critic_report"].rollouts - plain["critic_report"].rollouts == 9 * TURNS * 5
    more = [*overrides, "critic_report.sibling_sets=7"]
    more.append("actor.credit.drift={react: refresh_once, paid_every: 10, states: 20, num_continuations: 6}")
    watched = work(*more)
    # Seven sets of five next steps, each continued five times.
    assert watched["critic_report"].rollouts - plain["critic_report"].rollouts == 7 * 5 * (1 + 5)
    # Thirty updates, three checks: whole rollouts until there are twenty states.
    check = (20 + TURNS - 1) * 6
    assert watched["actor"].rollouts - plain["actor"].rollouts == 3 * check
    # Three checks that find the critic stale: it may be refreshed once, as often, or never.
    chain = sum(watched[stage].rollouts for stage in ("rollouts", "labels", "critic_report"))
    for react, times in (("correct", 0), ("refresh_once", 1), ("refresh", 3), ("refresh_first", 1)):
        found = work(*more, f"actor.credit.drift.react={react}")
        assert ("refresh" in found) == bool(times)
        if times:
            assert found["refresh"].rollouts == times * chain
            assert found["refresh"].trained_tokens == times * watched["critic"].trained_tokens
    few = work(*more, "actor.credit.drift.react=refresh_first", "actor.credit.drift.refresh_tasks=10")
    assert few["refresh"].rollouts < chain
    assert "refresh" not in plain  # nothing is checked
    # Before iterations 0, 4, 8 and 12, and at the end; of all val tasks that there are.
    assert plain["looks"].figures == (40 * 5, 40 * 5 * 512, 0, 0)
    assert work(*overrides, "actor.evaluate_every=1", "actor.evaluate_tasks=7")["looks"].rollouts == 7 * 16
    twice = work(*overrides, "actor.passes=2")["actor"]
    assert (twice.rollouts, twice.trained_tokens) == (
        plain["actor"].rollouts,
        2 * plain["actor"].trained_tokens,
    )
    oracle = work(*overrides, "actor.credit={mode: v_dapo, values: oracle, drift: {num_continuations: 6}}")
    assert oracle["actor"].rollouts == plain["actor"].rollouts * (1 + TURNS * 6)
    joint = work(*overrides, "actor.credit={mode: actor_critic}")["actor"]
    assert joint.trained_tokens == 2 * plain["actor"].trained_tokens
    # Grpo, as whoever samples what it trains on and no more, never looks for sets that say something.
    once = work(*overrides, "actor.max_refills=0")["actor"].rollouts
    assert 2 * once == plain["actor"].rollouts  # of the demo's one refill
    for mode in ("grpo", "imitation", "actor_critic"):
        assert work(*overrides, f"actor.credit={{mode: {mode}}}")["actor"].rollouts == once
    tree = work(*overrides, "actor.credit={mode: tree_rpo, branching: 4}")["actor"]
    assert (tree.rollouts, tree.trained_tokens) == (
        4 * plain["actor"].rollouts,
        4 * plain["actor"].trained_tokens,
    )
    # Every step may be wrong, and so be continued.
    every = work("labels.max_states=null", "labels.num_continuations=2")
    assert every["labels"].rollouts == every["rollouts"].rollouts * TURNS * 2


def test_the_critics_overhead_and_the_width_of_its_audit_are_said_before_anything_is_spent(plan):
    watched = ["actor.num_iterations=15", "actor.credit.drift={paid_every: 10, react: refresh_once}"]
    config = load_config(Config, Path(DEMO), watched)
    planned = work_of(config)
    own, actor = overhead_of(config, planned)
    by_stage = {entry.stage: entry.rollouts for entry in planned}
    assert actor == work(watched[0])["actor"].rollouts  # the demo checks nothing
    assert own == sum(by_stage[name] for name in ("labels", "critic_report", "refresh", "actor")) - actor
    printed = plan(0, DEMO)
    own, actor = overhead_of(load_config(Config, Path(DEMO)), list(work().values()))
    share = f"{own:,}, {own / actor:.0%} of the actor's with all refills, {2 * own / actor:.0%} with none"
    assert share in printed
    assert "with none" not in plan(0, DEMO, "actor.max_refills=0")
    assert f"300 audited tasks are expected to tell rho_A to +- {half_width(300, 2, 3):.2f}" in printed
    needed = tasks_needed(0.2, 2, 3)
    assert (
        f"it takes {needed} tasks to show that a critic of {EXPECTED:g} lies above the gate's 0.2" in printed
    )
    assert half_width(needed, 2, 3) <= EXPECTED - 0.2 < half_width(needed - 1, 2, 3)
    assert "audited tasks" not in plan(0, DEMO, "actor.credit={mode: decoupled_clip}")


def test_an_audit_takes_the_splits_of_unseen_clusters_and_no_more_tasks_than_there_are(plan):
    def audited(path, *overrides):
        return audited_tasks(load_config(Config, Path(path), overrides))

    assert audited(DEMO) == 300  # val has new tasks of training companies
    assert audited(DEMO, "tasks.num_held_out=80") == 80
    assert audited(ROOT / "configs" / "math-tiny.yaml") == 2 * 160  # where every problem is its own cluster
    assert audited(DEMO, "run.held_out=[val]") == 0
    assert "run.held_out = val has no task that an audit can take" in plan(0, DEMO, "run.held_out=[val]")


@pytest.mark.parametrize("path", [ONE_GPU, EIGHT_80, EIGHT_24, GSM8K, CODE, EIGHT_FULL])
def test_no_audit_of_a_shipped_configuration_for_gpus_is_dearer_than_its_actor(path):
    """And it is wide enough for the gate to pass a critic as expected."""
    config = load_config(Config, Path(path), [])
    planned = work_of(config)
    _, actor = overhead_of(config, planned)
    audit = next(entry.rollouts for entry in planned if entry.stage == "critic_report")
    assert audit <= actor
    assert "dearer than the actor" not in critic_words(config, planned)
    unfilled = actor // (1 + config.actor.max_refills)
    assert ("dearer than an actor that needs no refill" in critic_words(config, planned)) == (
        audit > unfilled
    )
    much = load_config(Config, Path(path), ["critic_report.num_continuations=64"])
    assert "dearer than the actor: lower critic_report" in critic_words(much, work_of(much))
    needed = tasks_needed(MIN_ADVANTAGE_CORRELATION, config.critic_report.num_continuations, 3)
    assert audited_tasks(config) >= needed


def test_what_grows_with_steps_that_nothing_bounds_says_how_many_it_is_of(plan):
    """An audit continues every line of an answer, and models write more lines than the plan reckons with."""

    def rows(path, *overrides):
        printed = plan(0, path, *overrides)
        lines = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
        return [cells[0] for cells in lines if len(cells) == 7][1:], printed

    at = ", at 12 lines a rollout"
    others = ["sft", "rollouts", "looks", "evaluation", "all", "critic", "labels"]
    code, _ = rows(CODE)
    assert set(code) == {*others, *(stage + at for stage in ("critic_report", "actor", "refresh"))}
    unchecked = "actor.credit.drift={paid_every: 0, react: never}"
    arms = "comparison={arms: {v_dapo: {}, other: {actor.learning_rate: 1.0e-5}}}"
    code, printed = rows(CODE, unchecked, arms)
    assert set(code) >= {"actor", f"critic_report{at}"}
    assert f"seeds each, at most{at}" in " ".join(printed.split())
    assert not [row for row in rows(ONE_GPU)[0] if "a rollout" in row]  # a step is a message, of so many


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("hardware={num_gpus: 8, gpu_memory_gib: 77, host_memory_gib: 900}",), 7),
        (("engine.replicas=2", "training.num_ranks=2", "hardware.num_gpus=2"), 0),
    ],
)
def test_gpus_without_work_are_named(plan, overrides, said):
    idle = [line for line in plan(0, ONE_GPU, *overrides).splitlines() if line.startswith("idle: ")]
    names = ("engine.replicas x engine.tensor_parallel", "training.num_ranks")
    assert idle == [f"idle: {said} of 8 GPUs, as {name} = 1" for name in names if said]


def test_the_plan_shows_each_stages_share(plan):
    planned = work("sft.num_updates=0", "sft.base=a model").values()
    rollouts = sum(entry.rollouts for entry in planned)
    [line] = [line for line in plan(0, DEMO).splitlines() if line.startswith("critic_report ")]
    audit = next(entry.rollouts for entry in planned if entry.stage == "critic_report")
    cells = line.split()
    assert cells[1] == f"{audit:,}"
    assert cells[3:6] == [f"{100 * audit / rollouts:.0f}", "0.0", "-"]


def test_rollouts_take_disk_by_their_tokens_and_models_by_their_parameters():
    found = work("tasks.num_train=100", "sampling.max_response_tokens=1000", policy=10**9, critic=10**8)
    assert found["rollouts"].kept_gb == pytest.approx(found["rollouts"].rollouts * 1000 * 4.2 / 1e9)
    # Exported in fp32; while one is trained two checkpoints too, and one on its way, each with two moments.
    gb = {stage: (done.kept_gb, done.passing_bytes / 1e9) for stage, done in found.items()}
    assert gb["sft"] == pytest.approx((4, 3 * 12))
    assert gb["critic"] == pytest.approx((0.4, 3 * 1.2))
    # A better look is exported, and a checkpoint of it saved, before the former one goes.
    assert gb["stored"] == pytest.approx((4, 4 + 3 * 12))
    taken = work("sft.num_updates=0", "sft.base=a model", policy=10**9)["sft"]
    assert (taken.kept_gb, taken.passing_bytes) == (pytest.approx(4), 0)


def test_the_plan_says_what_checkpoints_take_while_a_stage_trains(plan):
    more = 3 * 12 * PARAMETERS["8b"] / 1e9 + 4 * PARAMETERS["8b"] / 1e9  # a look's export of the stored phase
    said = " ".join(plan(0, EIGHT_FULL).split())
    assert f"while a stage trains, its checkpoints take up to {more:,.2f} GB of disk more" in said
