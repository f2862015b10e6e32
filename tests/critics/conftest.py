from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from critics.audit.data import AuditData, AuditRollout
from critics.labels.soft_targets import build_labels
from critics.report import gate
from pipeline.statistics import Interval
from pipeline.types import Label, Rollout, Step, Task
from tests.rollouts import rollout

POLICY = "policy-0"


def make_rollout(name: str, *, task: str = "t0", **changes: Any) -> Rollout:
    """A rollout of 4 steps of 3 tokens each, with one reply token between steps."""
    num_steps = changes.pop("num_steps", 4)
    wrong = changes.pop("wrong", {})
    tokens: list[int] = []
    steps = []
    for index in range(num_steps):
        tokens += [*([5] if index else []), 10 + index, 20 + index, 30 + index]
        status = "wrong" if index in wrong else "ok"
        span = len(tokens) - 3, len(tokens)
        steps.append(Step(index, index, *span, f"step {index}", status, wrong.get(index, ""), ""))
    base: dict[str, Any] = {
        "rollout_id": name, "task_id": task, "group_id": f"g-{task}", "prompt_token_ids": (1, 2, 3),
        "response_token_ids": tuple(tokens), "logprobs": (0.0,) * len(tokens), "policy_digest": POLICY,
        "tokenizer_digest": "tok", "template_digest": "tpl", "finish_reason": "success",
        "steps": tuple(steps),
    }  # fmt: skip
    return replace(rollout([int(token != 5) for token in tokens]), **base | changes)


PASSING = dict.fromkeys([name for name, *_ in gate.ABOVE], Interval(0.5, 0.4, 0.6)) | dict.fromkeys(
    ("ece_excess", "level_bias", "adv_rmse", "rmse"), Interval(0.0, -0.01, 0.01)
)
"""Measures that pass the gate."""
NUM_CELLS = 5  # a walk on 0..5; 0 is lost, 5 is won, so V(i) = i/5 exactly


def walks(number: int, seed: int) -> tuple[list[Rollout], list[Label]]:
    """Random walks as rollouts: one token per step names the cell; labels count simulated continuations."""
    rng = np.random.default_rng(seed)
    rollouts, labels = [], []
    for i in range(number):
        cell, cells = int(rng.integers(1, NUM_CELLS)), []
        start = cell
        while 0 < cell < NUM_CELLS:
            cell += int(rng.choice([-1, 1]))
            cells.append(cell)
        tokens = tuple(20 + c for c in cells)
        name = f"w{seed}-{i}"
        steps = tuple(Step(t, t, t, t + 1, "", "ok" if t % 3 else "wrong") for t in range(len(tokens)))
        changes = {"prompt_token_ids": (1, 20 + start), "response_token_ids": tokens, "steps": steps}
        changes |= {"loss_mask": (1,) * len(tokens), "logprobs": (0.0,) * len(tokens)}
        rollouts.append(make_rollout(name, task=f"t{i % 40}", reward=float(cell == NUM_CELLS), **changes))
        for t, at in enumerate([start, *cells[:-1]]):
            k = int(rng.binomial(8, at / NUM_CELLS))
            labels.append(Label(name, t, "bare", 8, k, None, k / 8, 8.0, "continuation", POLICY))
    return rollouts, labels


def build(rollouts: Any, samples: Any, kappa: float = 0.0, **options: Any) -> tuple[list[Label], Any]:
    """Soft targets and what was fitted for them."""
    return build_labels(rollouts, samples, kappa=kappa, label_policy_digest=POLICY, seed=0, **options)


@pytest.fixture
def early_failures() -> Any:
    """Rollouts of 4 steps at most; each ends the rollout as a failure with chance 1/4, else R = 1.

    V(s_i) = .75^(4 - i), and the shorter a rollout is, the surer it failed.
    """
    rng, rollouts = np.random.default_rng(0), []
    for i in range(4000):
        fails = rng.random(4) < 0.25
        length = int(fails.argmax()) + 1 if fails.any() else 4
        rollouts.append(make_rollout(f"r{i}", task=f"t{i}", num_steps=length, reward=float(not fails.any())))
    return rollouts, 0.75 ** (4.0 - np.arange(4))


def make_task(task_id: str, split: str = "train", cluster: str = "c0") -> Task:
    return Task(task_id, "phone", split, 1, (), "rule", "", "calls", cluster, 0)


def audit_of(
    V: np.ndarray, p: np.ndarray, rng: np.random.Generator, *, K: int, rollouts_per_task: int, decided_at: int
) -> AuditData:
    """An audit of states of chances V that the critic sees as p, both [R, T]; V at one step decides R."""
    R, T = V.shape
    ids = np.array([f"r{i}" for i in range(R)])
    tasks = np.array([f"t{i // rollouts_per_task}" for i in range(R)])
    rewards = (rng.random(R) < V[:, decided_at]).astype(float)
    clusters = np.array([f"c{i // (2 * rollouts_per_task)}" for i in range(R)])
    return AuditData(
        rollout_id=np.repeat(ids, T), task_id=np.repeat(tasks, T), cluster=np.repeat(clusters, T),
        step_index=np.tile(np.arange(T), R), position=np.tile(np.arange(T) / T, R),
        context=np.full(R * T, "bare"), level=np.repeat(1 + np.arange(R) % 3, T),
        split=np.full(R * T, "val"), p=p.ravel(), k=rng.binomial(K, V).ravel(), K=np.full(R * T, K),
        v_star=np.where(V.ravel() < 0.05, 0.0, np.nan),
        rollouts=tuple(
            AuditRollout(
                str(ids[i]), str(tasks[i]), "bare", float(rewards[i]), level=1 + i % 3, split="val",
                values=tuple(p[i]), texts=tuple(f"say {t} <b>&amp;" for t in range(T)),
                statuses=("ok",) * (T - 1) + ("wrong",), codes=("",) * T, messages=("",) * T,
            )
            for i in range(R)
        ),
    )  # fmt: skip


def make_audit(
    distort: Any, *, K=32, num_rollouts=400, seed=0, spread=1.0, within=1.0, rollouts_per_task=4
) -> tuple[AuditData, np.ndarray]:
    """A synthetic audit: logit V = rollout part + step part; the critic sees V through `distort(V, rng)`."""
    rng = np.random.default_rng(seed)
    z = spread * rng.normal(size=(num_rollouts, 1)) + within * rng.normal(size=(num_rollouts, 4))
    V = 1 / (1 + np.exp(-z))
    p = np.clip(distort(V, rng), 1e-6, 1 - 1e-6)
    return audit_of(V, p, rng, K=K, rollouts_per_task=rollouts_per_task, decided_at=0), V


@pytest.fixture(scope="session")
def tiny_trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 causal LM on disk: 2 layers, vocabulary 64, pad token 0."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, intermediate_size=64, max_position_embeddings=128, initializer_range=0.2,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=4, bos_token_id=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("trunk")
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder
