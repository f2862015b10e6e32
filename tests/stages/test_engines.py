"""The chain on vLLM and DeepSpeed: the same stages, other settings."""

from typing import Any

import pytest

from env.phone.episode.environment import PhoneEnv
from pipeline.artifacts.metrics import read_metrics
from pipeline.models.policy import load_policy
from pipeline.runs import MAIN_CHAIN
from tests.serving import assert_serves, served

pytestmark = pytest.mark.slow

SETTINGS = (
    "engine.kind=vllm",
    "training.backend=deepspeed",
    "training.num_ranks=2",
    *("stored.objective.kind=likelihood", "stored.batch_rows=16", "stored.max_epochs=1"),
)


@pytest.mark.timeout(1200)
def test_every_stage_runs_on_vllm_and_deepspeed(empty: Any) -> None:
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    for stage in (*MAIN_CHAIN, "summary"):
        assert empty.start(stage, *SETTINGS) == 0, stage
    gaps = [
        entry["engine/logprob_gap"]
        for entry in read_metrics(empty.run_dir / "actor" / "metrics.jsonl")
        if "engine/logprob_gap" in entry
    ]
    assert gaps
    assert max(gaps) < 1e-4
    digests = {rollout.policy_digest for rollout in empty.rollouts("actor")}
    assert len(digests) == 2  # one for each iteration: the weights that sampled it
    for stage in MAIN_CHAIN:
        assert empty.start(stage, *SETTINGS) == 0
    actor = load_policy(empty.run_dir / "actor" / "actor")
    task = next(iter(empty.tasks().values()))
    messages = PhoneEnv().reset(task, 0).messages
    with served(actor.folder) as client:
        assert_serves(client, actor.model, actor.tokenizer, list(messages))
