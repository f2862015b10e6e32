"""`vdapo plan`: what it prints, what it advises, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from env.phone.world.levels import most_turns
from pipeline.config import load_config
from pipeline.planner.memory import GIB, Phase
from stages.command import main
from stages.settings import Config
from stages.wiring.plan_memory import Memory, memory_of
from stages.wiring.plan_models import critic_config, model_config
from stages.wiring.plan_work import work_of

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "configs" / "demo.yaml")
QWEN3 = sorted((ROOT / "configs").glob("*qwen3*.yaml"))
EIGHT_80, EIGHT_24 = (str(ROOT / "configs" / f"phone-qwen3-8b-8x{size}gb.yaml") for size in (80, 24))


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # configurations name files of the repository
    monkeypatch.setenv("COLUMNS", "400")


def memory(path: str, *overrides: str) -> tuple[Memory, dict[str, Phase]]:
    config = load_config(Config, Path(path), overrides)
    policy = model_config(config)
    taken = memory_of(config, policy, critic_config(config, policy), 1536)
    return taken, {phase.name: phase for phase in taken.phases}


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in (
        (["--help"], "{status,show,verify,plan,settings,dictionary,export}"),
        (["plan", "--help"], "section.key=value"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(argv)
        assert words in capsys.readouterr().out


def test_the_demo_fits_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO]) == 0
    printed = capsys.readouterr().out
    assert "1,082,752 parameters" in printed
    assert "DOES NOT FIT" not in printed


@pytest.mark.parametrize("path", QWEN3, ids=lambda path: path.stem)
def test_the_shipped_configurations_fit_their_hardware(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "DOES NOT FIT" not in printed
    for phase in ("generation", "actor update", "reference pass", "hand-off", "critic update"):
        assert phase in printed
    assert ("596,049,920" if "0.6b" in path.stem else "8,190,735,360") in printed


@pytest.mark.parametrize(
    ("size", "parameters"), [("0.6b", 596_049_920), ("1.7b", 1_720_574_976)], ids=["0.6b", "1.7b"]
)
def test_a_trunk_of_either_size_is_counted(size: str, parameters: int) -> None:
    """Per rank of ZeRO 2 over 8: weights in bf16; on the first GPU the frozen critic scores in fp32."""
    taken, phases = memory(EIGHT_80, f"critic.trunk=models/Qwen3-{size.upper()}")
    update = phases["critic update"].device
    assert update["weights"] == 2 * parameters
    assert update["gradients"] + update["optimizer"] == pytest.approx(16 * parameters / 8, rel=1e-3)
    assert phases["actor update"].device["critic (first GPU)"] > 4 * parameters
    assert all(taken.fits(phase) for phase in taken.phases)


def test_there_are_three_of_them() -> None:
    assert len(QWEN3) == 3


def test_qwen3_8b_on_80_gb_takes_what_arithmetic_says() -> None:
    """ZeRO 2 over 8 ranks: 2 bytes of weights each, 16 of gradients, master copy and moments divided by 8."""
    count = 8_190_735_360
    taken, phases = memory(EIGHT_80)
    update = phases["actor update"].device
    assert update["weights"] == 2 * count
    assert update["gradients"] + update["optimizer"] == pytest.approx(16 * count / 8, rel=1e-9)
    # Inputs of 36 layers of width 4096, 16,384 tokens in bf16: 4.5 GiB, and the inside of one layer.
    assert update["activations"] > 36 * 16384 * 4096 * 2
    without_others = phases["actor update"].device_bytes - update["engine"] - update["critic (first GPU)"]
    assert without_others / GIB == pytest.approx(40.3, abs=0.3)
    generation = phases["generation"].device
    share = int(0.85 * 77 * GIB)
    assert generation["weights"] + generation["key-value cache"] + generation["at work"] == share
    assert taken.live == generation["key-value cache"] // (147_456 * 1536)
    parked = phases["hand-off"].host["trainer, while the engine works"]
    assert parked == pytest.approx(8 * (2 * count + 16 * count / 8), rel=1e-6)


def test_qwen3_8b_on_24_gb_takes_what_arithmetic_says() -> None:
    """ZeRO 3 over 8 ranks, AdamW on the host: an eighth of the weights stays on each GPU."""
    count = 8_190_735_360
    _, phases = memory(EIGHT_24)
    update = phases["actor update"]
    assert update.device["weights"] == 2 * count // 8
    assert "optimizer" not in update.device
    assert update.host["master copy and moments"] == pytest.approx(16 * count, rel=1e-6)
    # A bucket of 2e8 gradients, 5e8 gathered weights and the output layer, in bf16.
    assert update.device["communication"] == 2 * (200_000_000 + 500_000_000 + 151_936 * 4096)
    assert phases["generation"].device["weights"] == count  # in bf16, over two GPUs


def test_a_checkpoint_takes_host_memory_beside_what_the_hand_off_left() -> None:
    """Each rank holds the largest tensor at most, 151,936 x 4,096 of fp32; of a smaller model 2 GB."""
    _, phases = memory(EIGHT_24)
    handoff, checkpoint = phases["hand-off"].host, phases["checkpoint"].host
    assert checkpoint["parts being written"] == 8 * 4 * 151_936 * 4096
    assert checkpoint["gathered weights, fp32"] == handoff["gathered weights, fp32"]
    assert "trainer, while the engine works" not in checkpoint
    assert phases["checkpoint"].device == phases["hand-off"].device
    _, of_one = memory(str(ROOT / "configs" / "phone-qwen3-0.6b-1gpu.yaml"))
    assert of_one["checkpoint"].host["parts being written"] == 2 * 10**9
    _, of_torch = memory(DEMO)
    assert "checkpoint" not in of_torch


def test_24_gb_without_taking_turns_do_not_do_and_the_setting_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", EIGHT_24, "engine.shared_gpus=false"]) == 2
    printed = capsys.readouterr().out
    for phase in ("generation", "actor update", "reference pass"):
        assert f"does not fit: {phase}: engine.shared_gpus=true" in printed


def test_a_micro_batch_that_is_too_large_is_named_with_one_that_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", EIGHT_24, "training.micro_batch_tokens=65536"]) == 2
    printed = capsys.readouterr().out
    [line] = [line for line in printed.splitlines() if "does not fit: actor update" in line]
    changed = line.split("actor update: ")[1].split()
    _, phases = memory(EIGHT_24, "training.micro_batch_tokens=65536", *changed)
    assert phases["actor update"].device_bytes <= 21.5 * GIB


def test_an_engine_without_room_for_one_rollout_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EIGHT_24, "engine.memory_share=0.3"]) == 2
    assert "does not fit: generation: raise engine.memory_share" in capsys.readouterr().out


def test_a_row_that_the_cache_cannot_hold_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM would not start: Qwen3's 40,960 positions are more than this cache holds."""
    [small] = [str(path) for path in QWEN3 if "0.6b" in path.stem]
    assert main(["plan", small, "sampling.max_response_tokens=38912"]) == 2
    said = capsys.readouterr().out
    assert "does not fit: generation: the cache holds 30,565 tokens, one row may take 40,960" in said


def test_host_memory_is_held_against_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EIGHT_24, "hardware.host_memory_gib=100"]) == 2
    printed = capsys.readouterr().out
    assert "does not fit: actor update: needs hardware.host_memory_gib of 123" in printed


def test_what_would_leave_gpus_idle_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EIGHT_24, "training={backend: torch}", "engine={kind: transformers}"]) == 2
    printed = capsys.readouterr().out
    assert "training.backend=deepspeed uses all" in printed
    assert "engine.kind=vllm uses the GPUs" in printed


def test_a_model_that_is_not_here_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO, "sft.base=models/none"]) == 2
    error = capsys.readouterr().err
    assert "sft.base = models/none has no config.json here" in error
    assert "qwen3-0.6b, qwen3-1.7b, qwen3-8b" in error
    assert main(["plan", EIGHT_80, "critic.trunk=models/none"]) == 2
    assert "critic.trunk = models/none has no config.json here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["plan"])


def test_more_ranks_or_replicas_than_gpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EIGHT_80, "training.num_ranks=9"]) == 2
    assert "training.num_ranks = 9; hardware.num_gpus has 8" in capsys.readouterr().err
    assert main(["plan", EIGHT_24, "engine.replicas=8"]) == 2
    assert "engine.replicas x engine.tensor_parallel = 16" in capsys.readouterr().err


def test_planned_rollouts_are_those_that_the_stages_plan() -> None:
    overrides = [
        "tasks.num_train=100", "tasks.num_val=30", "tasks.num_test=50",
        "labels.max_states=70", "labels.num_continuations=3",
        "rollouts.chain={num_attempts: 2, draws: 3, feedback_free_share: 0.3, feedback_free_draws: 4}",
        "evaluation.draws=2", "critic_report.tasks_per_split=10",
        "critic_report.draws=2", "critic_report.num_continuations=5", "critic_report.guided=true",
        "critic_report.fit_tasks=0",
    ]  # fmt: skip
    work = {entry.stage: entry for entry in work_of(load_config(Config, Path(DEMO), overrides))}
    assert work["rollouts"].rollouts == 70 * 2 * 3 + 30 * 4
    assert work["labels"].rollouts == 70 * 3
    # Two policies on 30 val tasks and 50 of an unseen split: two sampled tries, a greedy one, two attempts.
    assert work["evaluation"].rollouts == 2 * (30 + 50) * (2 + 1 + 2)
    # Ten tasks of one split, bare and guided: two rollouts, of one of which every state is continued.
    turns = most_turns([1, 2])  # the demo's levels
    assert work["critic_report"].rollouts == 10 * 2 * (2 + turns * 5)
    by_heart = load_config(Config, Path(DEMO), [*overrides, "critic_report.fit_tasks=9"])
    again = {entry.stage: entry for entry in work_of(by_heart)}
    assert again["critic_report"].rollouts - work["critic_report"].rollouts == 9 * turns * 5
    more = [*overrides, "critic_report.sibling_sets=7"]
    more.append("actor.credit.drift={paid_every: 10, states: 20, num_continuations: 6}")
    watched = {entry.stage: entry for entry in work_of(load_config(Config, Path(DEMO), more))}
    # Seven sets of five next steps, each continued five times.
    assert watched["critic_report"].rollouts - work["critic_report"].rollouts == 7 * 5 * (1 + 5)
    # Thirty updates, three checks: whole rollouts until there are twenty states.
    check = (20 + turns - 1) * 6
    assert watched["actor"].rollouts - work["actor"].rollouts == 3 * check
    # Three checks that find the critic stale: it may be refreshed once, as often, or never.
    chain = sum(watched[stage].rollouts for stage in ("rollouts", "labels", "critic_report"))
    for refresh, times in (("never", 0), ("once", 1), ("on_drift", 3)):
        config = load_config(Config, Path(DEMO), [*more, f"actor.credit.drift.refresh={refresh}"])
        found = {entry.stage: entry for entry in work_of(config)}
        assert ("refresh" in found) == bool(times)
        if times:
            assert found["refresh"].rollouts == times * chain
            assert found["refresh"].trained_tokens == times * watched["critic"].trained_tokens
    assert "refresh" not in work  # nothing is checked


def test_a_budget_of_label_tokens_bounds_what_labels_sample() -> None:
    def tokens(*overrides: str) -> int:
        config = load_config(Config, Path(DEMO), ["sampling.max_response_tokens=100", *overrides])
        found = {entry.stage: entry for entry in work_of(config)}
        return found["labels"].sampled_tokens

    states = ["labels.max_states=70", "labels.num_continuations=3", "run.rollouts_per_shard=15"]
    assert tokens(*states) == 70 * 3 * 100
    assert (
        tokens(*states, "labels.max_tokens=2000") == 2000 + 5 * 3 * 100
    )  # the shard that spends it is whole
    assert tokens(*states, "labels.max_tokens=90000") == 70 * 3 * 100
    # Nothing is cut off where shards overlap, and its choice goes by what is expected.
    assert (
        tokens(*states, "labels.max_tokens=2000", "engine.kind=vllm", "engine.overlap_shards=true")
        == 70 * 3 * 100
    )


def test_every_step_of_a_rollout_may_be_wrong_and_so_be_continued() -> None:
    def rollouts(*overrides: str) -> int:
        config = load_config(Config, Path(DEMO), ["labels.max_states=null", *overrides])
        found = {entry.stage: entry for entry in work_of(config)}
        return found["labels"].rollouts // config.labels.num_continuations // found["rollouts"].rollouts

    turns = most_turns([1, 2])
    assert rollouts() == turns > 4


def test_adapters_need_gradients_and_moments_of_their_own_only() -> None:
    """Rank 8 on every linear layer of Qwen3-0.6B: 28 layers of 8 (in + out)."""
    _, phases = memory(
        str(ROOT / "configs" / "phone-qwen3-0.6b-1gpu.yaml"),
        "training={backend: torch, lora_rank: 8, dtype: bfloat16, micro_batch_tokens: 8192, recompute: true}",
    )
    update = phases["actor update"].device
    attention = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024)
    trained = 28 * 8 * (attention + 3 * (1024 + 3072))
    assert update["weights"] == 4 * 596_049_920
    assert update["gradients"] == 4 * trained
    assert update["optimizer"] == 8 * trained
