"""A real chat model in bf16 along the whole way: sampled, trained, handed over, probed.

The engine contract runs over it too, in `tests/pipeline/engines/test_contract.py`.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.credit import LossOptions
from pipeline.engines import Engine
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine, VllmOptions
from pipeline.models.policy import Policy, load_policy, weights_digest
from pipeline.training import Trainer, TrainingRow
from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.deepspeed_config import deepspeed_config
from pipeline.training.losses import policy_loss
from pipeline.training.policy_update import engine_trainer_gap
from pipeline.training.rank_group import DeepSpeedOptions
from pipeline.training.torch import TorchTrainer
from stages.wiring.refusals import MAX_LOGPROB_GAP
from tests.pipeline.engines.helpers import answers, ask

pytestmark = pytest.mark.soak

STOP = "<|im_end|>"
MAX_GAP = 0.02  # mean absolute difference of log-probabilities, in nats a token
SOLVED = ("Blue Harbor", "Cedar Mill", "Stone Bridge", "Red Canyon", "White Oak")
TO_SOLVE = ("Amber Ridge", "Silver Lake", "Green Valley", "North Star")
BILLING = {company: f"555-0{137 + 91 * i}" for i, company in enumerate(SOLVED + TO_SOLVE)}
TRAINING: dict[str, Any] = {
    "head": "policy",
    "learning_rate": lambda done: 1e-4,  # one update has to show
    "compute_dtype": "bfloat16",
    "micro_batch_tokens": 1024,
}
ZERO2 = Path("configs/deepspeed/zero2.json")


@pytest.fixture(scope="module")
def policy(smollm2: Path) -> Policy:
    return load_policy(smollm2)


@pytest.fixture(scope="module")
def engines(policy: Policy) -> Iterator[dict[str, Engine]]:
    """Both engines that run models, in bf16."""
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    options = VllmOptions(dtype="bfloat16", max_live=16, kv_cache_gib=0.5)
    model = copy.deepcopy(policy.model)
    made: dict[str, Engine] = {
        "transformers": TransformersEngine(model, "base", 16, dtype="bfloat16"),
        "vllm": VllmEngine(policy.folder, "base", 1024, options),
    }
    yield made
    for engine in made.values():
        engine.close()


def prompt_of(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def replies_of(company: str) -> tuple[str, str]:
    """Returns what the tools say to a search and to a call."""
    return f"{company}: sales 555-0990, billing {BILLING[company]}", "Billing: the bill is corrected."


def few_shot(company: str) -> list[dict[str, str]]:
    """Returns solved tasks, then a new one: in such a context a small model knows what to say."""
    said = [("system", "You call companies for customers.")]
    for solved in SOLVED:
        found, called = replies_of(solved)
        said += [("user", f"Dispute a bill at {solved}."), ("assistant", f"search {solved}"), ("tool", found)]
        said += [("assistant", f"call {BILLING[solved]}"), ("tool", called)]
        said += [("assistant", f"Your bill at {solved} is corrected.")]
    said += [("user", f"Dispute a bill at {company}.")]
    return [{"role": role, "content": content} for role, content in said]


def talk(engine: Engine, tokenizer: Any, tasks: Sequence[str]) -> list[TrainingRow]:
    """Plays the tasks at temperature 1, three turns with a tool's reply between them; odd ones were good."""
    how: dict[str, Any] = {"max_new_tokens": 24, "stop_token_ids": (tokenizer.convert_tokens_to_ids(STOP),)}
    ids = [prompt_of(tokenizer, few_shot(company)) for company in tasks]
    logprobs = [[np.nan] * len(prompt) for prompt in ids]  # of what nobody sampled
    for turn in range(3):
        requests = [
            ask(f"{i}:{turn}", token_ids, seed=10 * i + turn, cache_key=str(i), **how)
            for i, token_ids in enumerate(ids)
        ]
        found = answers(engine, requests)
        for i, company in enumerate(tasks):
            said, reply = found[f"{i}:{turn}"], ""
            if turn < 2:
                end = "" if said.finish_reason == "stop" else STOP
                reply = f"{end}\n<|im_start|>tool\n{replies_of(company)[turn]}{STOP}\n<|im_start|>assistant\n"
            given = tokenizer.encode(reply, add_special_tokens=False)
            ids[i] += [*said.token_ids, *given]
            logprobs[i] += [*said.logprobs, *[np.nan] * len(given)]
    total, rows = sum(np.isfinite(own).sum() for own in logprobs), []
    for i, (token_ids, own) in enumerate(zip(ids, logprobs, strict=True)):
        sampled = np.isfinite(own).astype(np.float32)
        known = np.nan_to_num(np.array(own, np.float32))
        columns = {"weight": sampled / total, "advantages": sampled * (1 if i % 2 else -1)}
        columns |= {"old_logprobs": known, "engine_logprobs": known}
        rows.append(TrainingRow(np.array(token_ids, np.int32), columns))
    return rows


def sampled_of(rows: Sequence[TrainingRow], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Returns what columns hold at the sampled tokens of all rows."""
    return np.concatenate([own[row.columns["weight"] > 0] for row, own in zip(rows, columns, strict=True)])


def logprobs_of(trainer: Trainer, rows: Sequence[TrainingRow]) -> np.ndarray:
    """Returns the trainer's log-probabilities of all sampled tokens."""
    return sampled_of(rows, [output["logprobs"] for output in trainer.forward(rows)])


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_an_engine_in_bf16_and_the_trainer_agree_over_turns(
    kind: str, policy: Policy, engines: dict[str, Engine]
) -> None:
    rows = talk(engines[kind], policy.tokenizer, TO_SOLVE * 2)
    sampled = sampled_of(rows, [row.columns["engine_logprobs"] for row in rows])
    assert len(sampled) > 100
    for compute_dtype in ("bfloat16", "float32"):
        trainer = TorchTrainer(
            copy.deepcopy(policy.model), **TRAINING | {"learning_rate": None, "compute_dtype": compute_dtype}
        )
        gaps = np.abs(logprobs_of(trainer, rows) - sampled)
        assert gaps.mean() <= MAX_GAP, compute_dtype


class Updated(NamedTuple):
    """Trainers after one update on the same rows, and what they said before and after."""

    rows: list[TrainingRow]
    trainers: dict[str, Trainer]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    metrics: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def updated(policy: Policy, engines: dict[str, Engine]) -> Iterator[Updated]:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    rows = talk(engines["vllm"], policy.tokenizer, TO_SOLVE)
    options = DeepSpeedOptions(num_ranks=2, config=deepspeed_config(ZERO2, "bfloat16"), threads=1)
    trainers: dict[str, Any] = {
        "torch": TorchTrainer(copy.deepcopy(policy.model), **TRAINING),
        "deepspeed": DeepSpeedTrainer(copy.deepcopy(policy.model), options=options, **TRAINING),
    }
    before = {name: logprobs_of(trainer, rows) for name, trainer in trainers.items()}
    loss = policy_loss(LossOptions())
    metrics = {name: trainer.update(rows, loss) for name, trainer in trainers.items()}
    after = {name: logprobs_of(trainer, rows) for name, trainer in trainers.items()}
    yield Updated(rows, trainers, before, after, metrics)
    for trainer in trainers.values():
        trainer.close()


def test_both_trainers_make_the_same_update(updated: Updated) -> None:
    before, after = (np.abs(m["torch"] - m["deepspeed"]).mean() for m in (updated.before, updated.after))
    moved_torch = np.abs(updated.after["torch"] - updated.before["torch"]).mean()
    assert updated.metrics["deepspeed"] == pytest.approx(updated.metrics["torch"], rel=0.05, abs=1e-3)
    assert before <= MAX_GAP
    assert after < 0.25 * moved_torch
    advantages = sampled_of(updated.rows, [row.columns["advantages"] for row in updated.rows])
    for name, after in updated.after.items():
        assert (advantages * (after - updated.before[name])).mean() > 0, name


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
@pytest.mark.parametrize("backend", ["torch", "deepspeed"])
def test_new_weights_reach_the_engine_and_stale_ones_are_caught(
    kind: str, backend: str, policy: Policy, engines: dict[str, Engine], updated: Updated
) -> None:
    engine, trainer = engines[kind], updated.trainers[backend]
    prompts = [prompt_of(policy.tokenizer, few_shot(company)) for company in TO_SOLVE]
    stop = policy.tokenizer.convert_tokens_to_ids(STOP)

    def gap() -> float:
        found = answers(engine, [ask(str(i), ids, stop_token_ids=(stop,)) for i, ids in enumerate(prompts)])
        return engine_trainer_gap(trainer, [(prompt, found[str(i)]) for i, prompt in enumerate(prompts)])

    engine.load_weights(policy.model.state_dict(), policy.policy_digest)
    assert gap() > MAX_LOGPROB_GAP[True]
    weights = trainer.weights()
    digest = weights_digest(weights)
    engine.load_weights(weights, digest)
    assert engine.policy_digest == digest
    assert gap() <= MAX_LOGPROB_GAP[True]
