"""What labels may cost: a budget of tokens decides how many states are continued."""

from __future__ import annotations

from typing import Any

from critics.anchors import StateRef
from stages.labels import within_budget


def test_as_many_states_are_chosen_as_the_budget_pays_for() -> None:
    states = [StateRef(f"r{i}", 0, "bare") for i in range(20)]

    def tokens_of(chosen: list[StateRef]) -> int:
        return 30 * len(chosen)

    for budget, number in ((0, 0), (29, 0), (30, 1), (200, 6), (600, 20), (10_000, 20)):
        assert len(within_budget(lambda cap: states[:cap], tokens_of, budget, 20)) == number


def test_labels_end_where_their_tokens_are_spent(chain: Any, tmp_path: Any) -> None:
    whole = chain.artifact("labels")
    spent = whole.report["sampled_tokens"]
    sampled = sum(sum(mask) for mask in whole.table("rollouts").column("loss_mask").to_pylist())
    assert spent == sampled > 0
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    assert lab.start("labels", f"labels.max_tokens={spent // 2}") == 0
    half = lab.artifact("labels")
    assert 0 < half.report["sampled_tokens"] < spent
    counts = half.manifest["counts"]
    assert counts["planned"] == counts["done"] + sum(counts["skipped"].values())


def test_a_critic_is_fitted_to_bootstrapped_targets(chain: Any, tmp_path: Any) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    assert lab.start("labels", "labels.target=td_lambda", "labels.td_lam=0.5") == 0
    sources = {row["label_source"] for row in lab.artifact("labels").table("labels").to_pylist()}
    assert "td_lambda" in sources
    assert lab.start("critic") == 0
