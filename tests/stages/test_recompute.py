"""Parquet is enough: an update's advantages and loss come out again from an actor's tables."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from pipeline.artifacts.metrics import read_metrics
from pipeline.credit import baseline_sets, credit_set, make_credit
from pipeline.tables import rollouts_from, values_from
from pipeline.training.losses import policy_loss
from pipeline.training.packing import micro_batches
from pipeline.training.rows import policy_rows
from pipeline.types import Rollout
from stages.settings.credit import Credit, credit_options


def shaping_of(rollouts: list[Rollout], factor: float) -> np.ndarray:
    """Returns P of each rollout by arXiv:2503.14476, eq. 13, with a buffer of a fifth."""
    prompt = len(rollouts[0].prompt_token_ids)  # a tree's branches continue
    L, length = np.array([[r.max_response_tokens, len(r.token_ids) - prompt] for r in rollouts]).T
    return factor * np.clip((L - L // 5 - length) / (L // 5), -1, 0)


def recomputed(lab: Any) -> list[tuple[dict[str, Any], dict[str, float], dict[str, float]]]:
    """Returns for each update its line of metrics.jsonl, credit's metrics and the loss's on policy."""
    artifact = lab.artifact("actor")
    lines = [m for m in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "update" in m]
    settings = artifact.manifest["settings"]["actor"]
    options = credit_options(TypeAdapter(Credit).validate_python(settings["credit"]))
    rollouts = {r.rollout_id: r for r in rollouts_from(artifact.table("rollouts"), artifact.table("steps"))}
    values = values_from(artifact.table("values")) or None
    first_tries = defaultdict(list)  # of each group
    for r in rollouts.values():
        if not r.guided and r.reward is not None and r.kind == "whole":
            first_tries[r.group_id].append(r)
    rows = defaultdict(list)
    for row in artifact.table("updates").to_pylist():
        rows[row["update"]].append(row)
    state: dict[str, float] | None = None
    found = []
    for line in lines:
        own = rows[line["update"]]
        members = [rollouts[row["rollout_id"]] for row in own]
        added = [r for r in members if r.guided] if settings["guided"] == "stripped" else []
        members = members[: len(members) - len(added)]
        credit = make_credit(**options | {n: line[n] for n in ("alpha", "adv_rmse") if n in line})
        assert [r for s in baseline_sets(members) for r in s] == members
        seen = [credit.view(s) for s in baseline_sets(members)]
        sets = [
            replace(credit_set(s, values=values), shaping=shaping_of(s, options.get("overlong_factor", 0.0)))
            for s in seen
        ]
        members = [r for s in seen for r in s]
        advantages, metrics, state = credit.credit(sets, credit.initial_state() if state is None else state)
        for r in added:
            bare = first_tries[r.group_id]
            members.append(replace(r, prompt_token_ids=bare[0].prompt_token_ids))
            gain = float(r.reward or 0) - float(np.mean([b.reward for b in bare]))
            advantages.append(np.full(len(r.steps), gain))
        columns = {
            name: [np.array(row[name], np.float32) for row in own]
            for name in ("old_logprobs", "ref_logprobs")
            if own[0][name] is not None
        }
        if added:  # no engine sampled them after this prompt
            engine = [r.logprobs for r in members[: -len(added)]]
            columns["engine_logprobs"] = [*engine, *columns["old_logprobs"][-len(added) :]]
        weights = [row["token_weight"] for row in own]
        loss: dict[str, float] = defaultdict(float)
        for batch in micro_batches(policy_rows(members, advantages, weights, columns), 4096):
            total, parts = policy_loss(credit.loss)({"logprobs": batch.columns["old_logprobs"]}, batch)
            for name, number in {"loss": total, **parts}.items():
                loss[name] += float(torch.as_tensor(number))
        found.append((line, metrics, dict(loss)))
    return found


def assert_same(found: list[tuple[dict[str, Any], dict[str, float], dict[str, float]]], each: int) -> None:
    """Credit of every update; the loss of each iteration's first, before which the weights had not moved."""
    assert found
    for line, metrics, _ in found:
        assert {name: line[name] for name in metrics} == pytest.approx(metrics, rel=1e-9)
    for line, _, loss in found[::each]:
        assert {name: line[name] for name in loss} == pytest.approx(loss, rel=1e-3, abs=2e-5)


def test_an_update_of_v_dapo_is_computed_again_from_its_tables(chain: Any) -> None:
    found = recomputed(chain)
    assert_same(found, each=2)
    assert any(line["ref_kl"] > 0 for line, _, _ in found)
    updates = chain.artifact("actor").table("updates")
    assert set(updates["update"].to_pylist()) == {line["update"] for line, _, _ in found}
    assert updates["old_logprobs"].null_count == updates.num_rows  # fp32: they are the engine's


def test_old_logprobs_in_half_precision_and_overlong_shaping_are_stored(chain: Any, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    credit = "actor.credit={mode: decoupled_clip, kl: 0.01}"
    short = "sampling.max_response_tokens=96"  # its successes take 63 to 123
    assert lab.start("actor", credit, short, "engine.dtype=bfloat16", "actor.num_iterations=1") == 0
    found = recomputed(lab)
    assert_same(found, each=2)
    assert all(line["shaping/mean"] < 0 for line, _, _ in found)
    assert found[0][0]["engine_gap"] > 1e-4
    updates = lab.artifact("actor").table("updates")
    assert updates["old_logprobs"].null_count == updates["ref_logprobs"].null_count == 0
