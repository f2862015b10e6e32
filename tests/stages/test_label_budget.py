"""What labels may cost: a budget of tokens decides how many states are continued."""

import re

import pytest

from pipeline.types import StateRef
from stages.wiring.label_budget import within_budget


def test_as_many_states_are_chosen_as_the_budget_pays_for():
    states = [StateRef(f"r{i}", 0, "bare") for i in range(20)]

    def tokens_of(chosen):
        return 30 * len(chosen)

    for budget, number in ((0, 0), (29, 0), (30, 1), (200, 6), (600, 20), (10_000, 20)):
        assert len(within_budget(lambda cap: states[:cap], tokens_of, budget, 20)) == number


def shard_costs(artifact, size):
    """Returns the tokens sampled by each run of `size` continuations, which is what a shard of them cost."""
    masks = artifact.table("rollouts").column("loss_mask").to_pylist()
    return [sum(map(sum, masks[i : i + size])) for i in range(0, len(masks), size)]


def test_labels_end_where_their_tokens_are_spent(chain, tmp_path):
    whole = chain.artifact("labels")
    spent = whole.report["sampled_tokens"]
    assert spent == sum(shard_costs(whole, 16)) > 0
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    assert lab.start("labels", f"labels.max_tokens={spent // 2}") == 0
    half = lab.artifact("labels")
    # 8 states a shard, 2 continuations of each.
    assert 0 < half.report["sampled_tokens"] <= spent // 2 + max(shard_costs(half, 16))
    counts = half.manifest["counts"]
    assert counts["planned"] == counts["done"] + sum(counts["skipped"].values())


@pytest.mark.parametrize("overlap", [False, True])
def test_states_that_cost_more_than_expected_overspend_by_a_shard_unless_shards_overlap(
    chain, tmp_path, monkeypatch, overlap
):
    engine = ["engine.kind=scripted", f"engine.overlap_shards={str(overlap).lower()}"]
    unbounded = chain.copy(tmp_path / "unbounded", "tasks", "sft")
    for stage in ("rollouts", "labels"):
        assert unbounded.start(stage, *engine) == 0
    whole = unbounded.artifact("labels").report["sampled_tokens"]
    monkeypatch.setattr("stages.wiring.label_budget.tokens_after", lambda rollout, step_index: 1)
    lab = unbounded.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    options = [f"labels.max_tokens={whole // 2}", "run.rollouts_per_shard=4"]
    assert lab.start("labels", *options, *engine) == 0
    made = lab.artifact("labels")
    spent, counts = made.report["sampled_tokens"], made.manifest["counts"]
    assert counts["planned"] == 24 * 2  # the forecast chose every state
    if overlap:
        assert counts["skipped"] == {}
        assert spent > whole // 2 + max(shard_costs(made, 4))
    else:
        assert counts["skipped"]["token_budget"] == counts["planned"] - counts["done"] > 0
        assert whole // 2 <= spent <= whole // 2 + max(shard_costs(made, 4))


def test_a_budget_that_pays_for_no_state_is_refused_with_what_it_would_take(chain, tmp_path, capsys):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")

    def refused(budget):
        assert lab.start("labels", f"labels.max_tokens={budget}", "--dry-run") == 2
        error = capsys.readouterr().err
        assert f"labels.max_tokens = {budget}: " in error
        assert "raise labels.max_tokens or lower labels.num_continuations" in error
        found = re.search(r"one state are expected to take (\d+) tokens", error)
        assert found is not None
        return int(found[1])

    def planned(budget):
        assert lab.start("labels", f"labels.max_tokens={budget}", "--dry-run") == 0
        states = re.search(r"states: (\d+)", capsys.readouterr().out)
        assert states is not None
        return int(states[1])

    for_a_state = refused(1)
    refused(for_a_state - 1)
    assert planned(for_a_state) >= 1
    assert not lab.run_dir.joinpath("labels").exists()
