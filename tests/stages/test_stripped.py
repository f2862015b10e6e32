"""An actor whose guided successes are stripped: what it trains on, what it says of them, that it goes on."""

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.metrics import read_metrics
from pipeline.credit import DECOUPLED_CLIP
from pipeline.models.policy import load_policy
from pipeline.tables import rollouts_table, steps_table
from pipeline.training.losses import policy_loss
from pipeline.training.torch import TorchTrainer
from stages.wiring.actor_report import actor_page
from stages.wiring.sampling import strip_of
from tests.stages.conftest import CRITIC, Lab
from tests.stages.test_opponents import killed_and_whole
from tests.stages.test_recompute import assert_same, recomputed

__all__ = ["killed_and_whole"]
STRIPPED = ("actor.guided=stripped", "actor.chain={num_attempts: 3, draws: 2, feedback_free_share: 0.25}")
DECOUPLED = "actor.credit={mode: decoupled_clip}"


@pytest.fixture
def few_companies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy of a handful of companies says, it says in one of them; here that is no fact."""
    monkeypatch.setattr("env.play.stripping.MIN_CLUSTERS", 1)


def lines_of(lab: Lab) -> list[dict[str, Any]]:
    return read_metrics(lab.run_dir / "actor" / "metrics.jsonl")


@pytest.mark.usefixtures("few_companies")
@pytest.mark.slow
def test_stripped_successes_join_bare_sets_and_the_loss_comes_out_of_the_tables_again(killed_and_whole):
    """A start that dies between two updates goes on to the same bits."""
    lab = killed_and_whole(*STRIPPED, DECOUPLED, "actor.passes=2", dies_before=3)
    artifact = lab.artifact("actor")
    rollouts = {r.rollout_id: r for r in lab.rollouts("actor")}
    rows = artifact.table("updates").to_pylist()
    added = [row for row in rows if rollouts[row["rollout_id"]].guided]
    assert added
    assert {rollouts[row["rollout_id"]].finish_reason for row in added} == {"success"}
    iterations = {rollouts[row["rollout_id"]].iteration for row in added}
    for row in rows:  # a loss has all of them or none
        assert (row["old_logprobs"] is not None) == (rollouts[row["rollout_id"]].iteration in iterations)
    by_update = defaultdict(list)
    for row in added:
        by_update[row["update"]].append(row["token_weight"] * sum(rollouts[row["rollout_id"]].loss_mask))
    lines = lines_of(lab)
    told = {line["update"]: line["stripped/weight"] for line in lines if "stripped/weight" in line}
    assert told == pytest.approx({number: sum(weights) for number, weights in by_update.items()})
    assert max(told.values()) <= 0.25 + 1e-9
    assert_same(recomputed(lab), each=4)
    first, second = (line for line in lines if "rollouts/count" in line)
    assert first["stripped/count"] + second["stripped/count"] == len({row["rollout_id"] for row in added})


@pytest.mark.usefixtures("few_companies")
def test_their_tokens_get_more_probable_after_the_bare_prompt(chain, tmp_path, monkeypatch):
    """One update of the actor, taken again without the sets: what is left moves the bare policy."""
    seen: list[Any] = []
    update = TorchTrainer.update

    def kept(trainer: Any, rows: Any, loss: Any) -> Any:
        seen.append(rows)
        return update(trainer, rows, loss)

    monkeypatch.setattr(TorchTrainer, "update", kept)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    one = ("actor.num_iterations=1", "actor.updates_per_iteration=1", "actor.tasks_per_update=8")
    assert lab.start("actor", *STRIPPED, DECOUPLED, *one) == 0
    [line] = [line for line in lines_of(lab) if "update" in line]
    number = round(line["stripped/rows"] * len(seen[0]))
    assert number > 0
    rows = seen[0][-number:]
    policy = load_policy(lab.artifact("sft").path("policy"))
    prompts = {tuple(r.prompt_token_ids) for r in lab.rollouts("actor") if not r.guided}
    for row in rows:
        assert tuple(row.token_ids[: np.flatnonzero(row.columns["weight"])[0]]) in prompts
        assert "<previous_attempts>" not in policy.tokenizer.decode(row.token_ids)
        assert set(row.columns["advantages"][row.columns["weight"] != 0]) <= {0.5, 1.0}  # of two bare ones
    trainer = TorchTrainer(policy.model, head="policy", learning_rate=lambda done: 1e-4)
    before = [out["logprobs"].sum() for out in trainer.forward(rows)]
    np.testing.assert_allclose(before, [row.columns["old_logprobs"].sum() for row in rows], atol=1e-3)
    update(trainer, rows, policy_loss(DECOUPLED_CLIP.loss))
    assert sum(out["logprobs"].sum() for out in trainer.forward(rows)) > sum(before)


@pytest.mark.usefixtures("few_companies")
def test_a_critic_of_bare_states_is_enough_and_values_none_but_these(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    path = lab.artifact("critic_report").path("gate.json")
    assert chain.plan("actor", *STRIPPED).work.contexts == ("bare",)
    assert "guided" in json.loads(path.read_text())["contexts"]
    assert lab.start("actor", *STRIPPED, "actor.num_iterations=1") == 0
    assert set(lab.artifact("actor").table("values")["context"].to_pylist()) == {"bare"}
    assert_same(recomputed(lab), each=2)


def test_the_report_sets_first_tries_beside_tries_with_feedback_on_the_same_tasks(chain):
    report = chain.artifact("actor").report
    measured = [entry for entry in report["learning"] if "reliance" in entry]
    assert measured
    for entry in measured:
        gap = entry["retried_with_feedback"] - entry["retried_first_try"]
        assert entry["reliance"] == pytest.approx(gap)
    caption = "the gap is how much feedback still helps"
    assert caption in actor_page(report)
    bare = [{k: v for k, v in entry.items() if "retried" not in k} for entry in report["learning"]]
    assert caption not in actor_page(report | {"learning": bare})
    assert all("stripped" not in entry for entry in report["learning"])


def test_a_start_that_goes_on_has_heard_the_iterations_before(chain):
    """What was said of one company alone is language once it was said of another one, too."""
    tasks, tokenizer = chain.tasks(), load_policy(chain.artifact("sft").path("policy")).tokenizer
    fresh = [r for r in chain.rollouts("actor") if r.iteration == 0]

    def elsewhere(name: str) -> str:
        return next(other for other, task in tasks.items() if task.cluster != tasks[name].cluster)

    before = [replace(r, task_id=elsewhere(r.task_id)) for r in fresh]
    made = {"rollouts": rollouts_table(before), "steps": steps_table(before)}
    shards: Any = SimpleNamespace(read=lambda number, name: made[name])
    first, went_on, goes_on = (
        strip_of("stripped", list(tasks.values()), tokenizer, shards, iterations) for iterations in (0, 0, 1)
    )
    assert first(fresh)[1] > 0
    went_on(before)
    (kept, told), (again, told_again) = went_on(fresh), goes_on(fresh)
    assert [r.rollout_id for r in kept] == [r.rollout_id for r in again]
    assert told == told_again == 0
    assert strip_of("in_context", [], tokenizer, shards, 1) is None
