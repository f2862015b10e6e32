"""The fresh phase of the actor with each opponent and control: what it trains on, and that it goes on."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import critics
import critics.fit.online
import stages.wiring.iteration
from pipeline.artifacts.metrics import read_metrics
from pipeline.errors import ArtifactError
from pipeline.ids import seed_of
from pipeline.processes.failpoints import FailpointError, failpoint
from pipeline.steps import state_tokens
from pipeline.types import Rollout, Task
from stages.wiring.oracle import Oracle
from stages.wiring.task_order import near_half_first
from tests.pipeline.test_kill_sweep import facts
from tests.rollouts import rollout
from tests.stages.conftest import CRITIC, Lab
from tests.stages.test_recompute import assert_same, recomputed

CHAIN = ("tasks", "sft")


def updates_of(lab: Lab) -> list[dict[str, Any]]:
    return [line for line in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "update" in line]


@pytest.fixture
def killed_and_whole(chain, tmp_path, monkeypatch):
    """Trains with these settings, and again with a start that ends before its n-th update; both are equal."""

    def trained(*settings: str, inputs: tuple[str, ...] = CHAIN, dies_before: int = 6) -> Lab:
        whole, killed = (chain.copy(tmp_path / name, *inputs) for name in ("whole", "killed"))
        assert whole.start("actor", *settings) == 0
        passed: list[str] = []

        def dies(name: str) -> None:
            failpoint(name)
            passed.append(name)
            if passed.count("actor.update.before") == dies_before:
                raise FailpointError(name)

        with monkeypatch.context() as patch:
            patch.setattr(stages.wiring.iteration, "failpoint", dies)
            assert killed.start("actor", *settings) == 1
        assert killed.start("actor", *settings) == 0
        assert facts(killed.run_dir / "actor") == facts(whole.run_dir / "actor")
        return whole

    return trained


@pytest.mark.slow
def test_later_passes_train_on_the_same_rollouts_and_ratios_to_what_sampled_them(killed_and_whole):
    lab = killed_and_whole("actor.credit={mode: decoupled_clip}", "actor.passes=2")
    lines = updates_of(lab)
    by_iteration = defaultdict(list)
    for line in lines:
        by_iteration[line["iteration"]].append(line)
    assert len(by_iteration) == 2
    times = Counter(lab.artifact("actor").table("updates")["rollout_id"].to_pylist())
    assert set(times.values()) == {2}
    for of_iteration in by_iteration.values():
        moved = [line["old_kl"] for line in of_iteration]
        assert moved[0] == pytest.approx(0, abs=1e-7)
        assert min(moved[1:]) > 1e-9


def test_the_verifier_s_word_alone_is_credit_for_steps(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("actor", "actor.credit={mode: verifier_steps}", "actor.num_iterations=1") == 0
    lines = updates_of(lab)
    assert max(line["sets/all_wrong"] for line in lines) > 0  # which decoupled clip leaves out
    assert all(0 < line["verdicts/ok"] + line["verdicts/wrong"] <= 1 for line in lines)
    assert lab.artifact("actor").table("values").num_rows == 0
    assert_same(recomputed(lab), each=2)


def test_the_oracle_s_values_are_the_success_of_fresh_continuations_from_the_same_state():
    """Two rollouts of one prompt share the samples of s_0; V_1 is of each alone."""
    first = rollout((1, 1), [(0, 1), (1, 2)], rollout_id="a")
    second = replace(first, rollout_id="b", response_token_ids=(20, 21))
    wins = {"a": (1.0, 1.0), "b": (0.0, 0.0)}  # from s_0 and s_1
    asked = []

    def continue_all(team: Any, rollouts: list[Rollout], iteration: int, *, each: int) -> list[Rollout]:
        asked.append((team, iteration, each))
        return [
            replace(r, kind="continuation", prompt_token_ids=state_tokens(r, i), reward=wins[r.rollout_id][i])
            for r in rollouts
            for i in (0, 1)
            for _ in range(each)
        ]

    sampling: Any = SimpleNamespace(continue_all=continue_all)
    oracle = Oracle(sampling, team := SimpleNamespace(), 3, 4)  # type: ignore[arg-type]
    found = oracle.values([first, second])
    assert [list(v) for v in found] == [[0.5, 1.0], [0.5, 0.0]]
    assert asked == [(team, 3, 4)]
    assert len(oracle.played) == 16
    wins["b"] = (0.0, None)  # the environment failed at all continuations of that state
    assert [list(v) for v in oracle.values([first, second])] == [[0.5, 1.0], [0.5, pytest.approx(2 / 3)]]


def test_the_oracle_needs_no_critic_and_its_continuations_are_stored(killed_and_whole):
    oracle = "actor.credit={mode: v_dapo, values: oracle, drift: {num_continuations: 2}}"
    lab = killed_and_whole(oracle, "actor.max_refills=0", "actor.tasks_per_update=2", dies_before=3)
    played, values = lab.rollouts("actor"), lab.artifact("actor").table("values").to_pylist()
    whole = {r.rollout_id: r for r in played if r.kind == "whole"}
    continued = [r for r in played if r.kind == "continuation"]
    assert len(continued) == 2 * sum(len(r.steps) for r in whole.values())
    lines = [
        line for line in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "val/first_try" in line
    ]
    assert sum(r.iteration == 0 for r in continued) == lines[0]["continuations/count"]
    rewards = defaultdict(list)
    for r in continued:
        rewards[r.iteration, r.prompt_token_ids].append(r.reward)
    for row in values:
        rollout = whole[row["rollout_id"]]
        of_state = rewards[rollout.iteration, state_tokens(rollout, row["step_index"])]
        assert row["value"] == pytest.approx(np.mean(of_state))
        assert row["critic"] == f"2 continuations by {rollout.policy_digest}"
    assert_same(recomputed(lab), each=2)


def test_the_shuffled_critic_is_the_frozen_one_in_the_tables(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    shuffled = "actor.credit={mode: v_dapo, values: shuffled, on_weak_critic: allow}"
    assert lab.start("actor", shuffled, "actor.num_iterations=1") == 0
    assert_same(recomputed(lab), each=2)
    own, usual = (
        {r["value"] for r in of.artifact("actor").table("values").to_pylist()} for of in (lab, chain)
    )
    assert own <= usual  # the first iteration's


def test_imitation_trains_on_bare_successes_alone(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("actor", "actor.credit={mode: imitation}", "actor.num_iterations=1") == 0
    rollouts = {r.rollout_id: r for r in lab.rollouts("actor")}
    trained_on = {row["rollout_id"] for row in lab.artifact("actor").table("updates").to_pylist()}
    assert trained_on == {r.rollout_id for r in rollouts.values() if r.reward and not r.guided}
    lines = updates_of(lab)
    for line, _, loss in recomputed(lab)[::2]:
        assert line["cross_entropy"] == pytest.approx(loss["cross_entropy"], rel=1e-3)
    assert all("clip_high_share" not in line for line in lines)


@pytest.mark.slow
def test_tasks_that_taught_nothing_are_not_sampled_again_for_a_while(killed_and_whole):
    lab = killed_and_whole(
        "actor.credit={mode: decoupled_clip, history_filter: uniform}",
        "actor.chain={num_attempts: 1, draws: 8, feedback_free_share: 0}",
        "actor.num_iterations=3",
        dies_before=5,
    )
    rollouts = lab.rollouts("actor")
    outcomes, skipped = defaultdict(list), []
    for iteration in range(3):
        settled = {task for task, own in outcomes.items() if len(set(own[-16:])) == 1}
        skipped.append(len(settled))
        assert 2 * len(settled) <= 24  # of all tasks: nothing is readmitted
        played = [r for r in rollouts if r.iteration == iteration]
        assert settled.isdisjoint(r.task_id for r in played)
        for r in played:
            outcomes[r.task_id].append(r.reward)
    assert skipped[-1] > 0
    lines = read_metrics(lab.run_dir / "actor" / "metrics.jsonl")
    assert [line["tasks/skipped"] for line in lines if "tasks/skipped" in line] == skipped


@pytest.mark.slow
def test_a_value_head_learns_beside_the_actor_and_is_in_its_checkpoints(killed_and_whole, monkeypatch):
    monkeypatch.setattr(critics.fit.online, "PRETRAINING_UPDATES", 6)
    credit = "actor.credit={mode: actor_critic, unit: token, value_learning_rate: 1.0e-3}"
    lab = killed_and_whole(credit, "actor.tasks_per_update=2", inputs=(*CHAIN, "rollouts"), dies_before=4)
    artifact = lab.artifact("actor")
    assert set(artifact.manifest["inputs"]) == {"tasks", "sft", "rollouts"}
    rollouts = {r.rollout_id: r for r in lab.rollouts("actor")}
    units = Counter(row["rollout_id"] for row in artifact.table("values").to_pylist())
    assert units == {name: r.num_trainable_tokens for name, r in rollouts.items()}
    assert len(set(artifact.table("values")["critic"].to_pylist())) == 2  # one head for each iteration
    lines = updates_of(lab)
    assert sum(line["sets/all_wrong"] + line["sets/all_right"] for line in lines) > 0
    assert all(line["value/value_loss"] > 0 for line in lines)
    assert_same(recomputed(lab), each=2)


def test_without_pretraining_values_start_at_one_half_and_nothing_else_is_read(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    credit = "actor.credit={mode: actor_critic, pretrain_values: false}"
    assert lab.start("actor", credit, "actor.num_iterations=1") == 0
    assert set(lab.artifact("actor").table("values")["value"].to_pylist()) == {0.5}
    assert_same(recomputed(lab), each=2)
    with pytest.raises(ArtifactError, match="make rollouts"):
        lab.plan("actor", "actor.credit={mode: actor_critic}")


def test_rollouts_that_pretrain_a_value_head_count_in_the_budget(chain, tmp_path, monkeypatch):
    monkeypatch.setattr(critics.fit.online, "PRETRAINING_UPDATES", 1)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "evaluation")
    for stage in ("actor", "summary"):
        assert lab.start(stage, "actor.credit={mode: actor_critic}", "actor.num_iterations=1") == 0
    summary = json.loads((lab.run_dir / "summary.json").read_text())
    assert set(summary["budget"]["by_stage"]) == {"rollouts", "actor"}
    assert summary["critic"] is None


def test_trees_branch_where_told_and_their_branches_are_rollouts_that_count(killed_and_whole):
    tree = "actor.credit={mode: tree_rpo, branching: 3, branch_step: 1}"
    lab = killed_and_whole(tree, "actor.max_refills=0", dies_before=3)
    rollouts = {r.rollout_id: r for r in lab.rollouts("actor")}
    roots = [r for r in rollouts.values() if r.kind == "whole"]
    branches = Counter(r.parent_rollout_ids[0] for r in rollouts.values() if r.kind == "sibling")
    assert branches == {r.rollout_id: 2 for r in roots if len(r.steps) > 1}
    for r in rollouts.values():
        if r.kind == "sibling":
            assert r.prompt_token_ids == state_tokens(rollouts[r.parent_rollout_ids[0]], 1)
            assert r.steps[0].step_index == 1
    trained_on = lab.artifact("actor").table("updates")["rollout_id"].to_pylist()
    assert len(trained_on) == len(set(trained_on))
    assert {rollouts[name].kind for name in trained_on} == {"whole", "sibling"}
    assert_same(recomputed(lab), each=2)


@pytest.mark.slow
def test_tasks_are_visited_in_the_order_that_the_critic_gives_its_candidates(killed_and_whole):
    """Decoupled clip with this one lever; 12 of 24 tasks are candidates for 4 places."""
    clip = "mode: v_dapo, alpha: 0, group_part: decoupled_clip, kl: 0, overlong_factor: 0.5"
    lab = killed_and_whole(
        f"actor.credit={{{clip}, on_weak_critic: allow, drift: {{react: never, paid_every: 0}}}}",
        *("actor.task_order=near_half", "actor.tasks_per_update=2", "actor.max_refills=0"),
        inputs=CRITIC,
        dies_before=3,
    )
    bare = {r.task_id: r for r in lab.rollouts("rollouts") if not r.guided}
    critic = critics.load(lab.artifact("critic").path("critic"))
    start_values = critic.start_values([r.prompt_token_ids for r in bare.values()])
    distance = dict(zip(bare, np.abs(start_values - 0.5), strict=True))
    for number in (0, 1):
        played = [r for r in lab.rollouts("actor") if r.iteration == number]
        assert all(r.prompt_token_ids == bare[r.task_id].prompt_token_ids for r in played if not r.guided)
        visited = {r.task_id for r in played}
        at_random = sorted(bare, key=lambda name: seed_of(0, "actor order", number, name))
        assert visited != set(at_random[:4])
        left = set(at_random[:12]) - visited
        assert (len(visited), len(left)) == (4, 8)
        assert max(distance[name] for name in visited) < min(distance[name] for name in left) + 1e-6
    assert_same(recomputed(lab), each=2)


def test_only_candidates_are_looked_at_and_equally_near_ones_keep_their_order():
    tasks = [Task(f"t{i}", "x", "train", 1, (), "", "", "", f"c{i}", i) for i in range(9)]
    values = {0: 0.1, 1: 0.6, 2: 0.9, 3: 0.4, 4: 0.1, 5: 0.45}
    team: Any = SimpleNamespace(ask=lambda question: [(task.index,) for task in question.args[0]])

    def start_values(prompts):
        return np.array([values[prompt[0]] for prompt in prompts])  # no others may be asked for

    order = [task.index for task in near_half_first(tasks, 2, team, start_values)]
    assert order == [5, 1, 3, 0, 2, 4, 6, 7, 8]
