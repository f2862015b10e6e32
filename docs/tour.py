"""V-DAPO in one file: sample, label, fit, freeze, train, on the packages' public functions.

    python docs/tour.py      # half a minute on one CPU core

The stages run this same algorithm. They add attempts after feedback and the stored phase that learns from
these, shards, checkpoints, digests, labels from fresh continuations, the audit before the actor and the watch
beside it. Steps i = 0..T-1, states s_0..s_T; V_i = V(s_i) is the starting policy's chance of success from
s_i, and V_T := R is the verifier's reward.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import critics
from critics.fit.held_out import held_out, outcome_states
from critics.fit.loop import calibrate, fit
from critics.fit.rows import critic_rows
from critics.fit.schedule import FitSettings
from critics.frozen.contract import REWARD, Contract, save
from critics.frozen.critic import FrozenCritic
from critics.frozen.model import make_critic
from critics.labels.named_targets import retarget
from critics.labels.soft_targets import build_labels
from critics.labels.splits import split_clusters
from env.phone.offer import PHONE
from env.phone.settings import PhoneTasks
from env.play.chains import Chained, plan_groups
from env.play.demonstrations import demonstrate
from env.play.player import Player
from env.play.queue import play_unit
from env.play.requests import PlaySettings
from pipeline.credit import make_credit
from pipeline.credit.updates import BaselineSets, scored
from pipeline.engines.transformers import TransformersEngine
from pipeline.ids import seed_of
from pipeline.models.policy import Policy, load_policy, save_policy, weights_digest
from pipeline.models.tiny import TinyShape, make_tiny_model, train_tokenizer
from pipeline.training.losses import policy_loss, sft_loss
from pipeline.training.policy_update import logprobs_of, update_rows
from pipeline.training.rows import sft_rows
from pipeline.training.torch import TorchTrainer
from pipeline.types import Label, Rollout, Task

SEED = 0


@dataclass(frozen=True)
class Sizes:
    """How much of everything: enough to see each part work, too little to be a result."""

    demonstrations: int = 192
    sft_updates: int = 130
    draws: int = 6
    iterations: int = 16
    tasks_per_update: int = 12


MODEL = TinyShape(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=24,
    intermediate_size=96, max_position_embeddings=1024, initializer_range=0.12,
)  # fmt: skip
FIT = FitSettings(
    head_updates=2, head_learning_rate=1e-3, learning_rate=5e-4, max_epochs=4, batch_states=64,
    evaluations_per_epoch=2,
)  # fmt: skip
SHARES = {"oracle": 0.3, "over_collector": 0.5, "noisy_adaptive": 0.2}
"""Whose episodes the starting policy imitates: some succeed, some collect more than a line wants."""


def make_policy(tasks: list[Task], folder: Path, sizes: Sizes) -> Policy:
    """Returns pi_0: a tiny Qwen3 and its tokenizer, trained on scripted episodes of mixed quality."""
    style = PHONE.style("compact")
    how: dict[str, Any] = {
        "style": style,
        "shares": SHARES,
        "guided_share": 0.0,
        "follows_feedback": 0.0,
        "thoughts": False,
        "noise": 0.2,
    }
    assert PHONE.demonstrators is not None
    episodes = [
        demonstrate(
            PHONE.demonstrators, PHONE.env, tasks[i % len(tasks)], seed=seed_of(SEED, "sft", i), **how
        )
        for i in range(sizes.demonstrations)
    ]
    texts = ["".join(text for text, _ in episode.pieces) for episode in episodes]
    tokenizer = train_tokenizer(texts, 512, folder, style.template, style.special_tokens)
    torch.manual_seed(SEED)
    model = make_tiny_model(MODEL, tokenizer)
    trainer = TorchTrainer(model, head="policy", learning_rate=lambda done: 1e-2 * min(1, (done + 1) / 5))
    for update in range(sizes.sft_updates):
        chosen = [episodes[i] for i in np.random.default_rng(update).choice(len(episodes), 16, replace=False)]
        pieces = [
            [(tokenizer.encode(text, add_special_tokens=False), own) for text, own in e.pieces]
            for e in chosen
        ]
        ids = [[token for tokens, _ in piece for token in tokens] for piece in pieces]
        # Loss on the policy's own messages only, never on what the environment says.
        masks = [[float(own) for tokens, own in piece for _ in tokens] for piece in pieces]
        trainer.update(sft_rows(ids, masks), sft_loss)
    save_policy(model, tokenizer, folder)
    return load_policy(folder)


def make_player(policy: Policy, engine: TransformersEngine) -> Player:
    """Returns what plays episodes: an engine that samples tokens, a prompt style, environments."""
    style = PHONE.style("compact", policy.tokenizer)
    settings = PlaySettings(
        temperature=1.0, max_response_tokens=256, max_live=64, policy_digest=engine.policy_digest,
        tokenizer_digest=policy.tokenizer_digest, template_digest=style.digest,
    )  # fmt: skip
    return Player(engine, policy.tokenizer, style, settings, lambda task: PHONE.env())


def sample(player: Player, tasks: list[Task], draws: int, iteration: int, purpose: str) -> list[Rollout]:
    """Returns `draws` rollouts of each task from one prompt, so each task is one baseline set."""
    groups = plan_groups(tasks, stage_key=purpose, seed=0, iteration=iteration, num_attempts=1, draws=draws)
    # With more attempts in `num_attempts`, and room for feedback, failures would be tried again.
    chained = Chained(groups, seed=0, purpose=purpose, max_feedback_tokens=0, stop_at_success=True)
    return play_unit(chained, player).rollouts


def label(rollouts: list[Rollout], policy: Policy) -> list[Label]:
    """Returns y_i = R for every state: an outcome is one fair sample of V at each state that it passed.

    The stage adds fresh continuations of chosen states, which count k of n successes.
    """
    own = build_labels(rollouts, {}, kappa=0.0, label_policy_digest=policy.policy_digest, seed=0)[0]
    return retarget(own, rollouts, "outcome_dense", policy=policy.policy_digest)


def fit_and_freeze(
    rollouts: list[Rollout], labels: list[Label], tasks: list[Task], policy: Policy, folder: Path
) -> FrozenCritic:
    """Returns a critic that is fitted, calibrated on other companies, and frozen by its contract."""
    company = {task.task_id: task.cluster for task in tasks}
    part_of = split_clusters(
        {company[r.task_id] for r in rollouts}, fit_share=0.5, validate_share=0.25, seed=SEED
    )
    parts: dict[str, list[Rollout]] = {"fit": [], "validate": [], "calibrate": []}
    for rollout in rollouts:
        parts[part_of[company[rollout.task_id]]].append(rollout)
    labels_of = {
        part: [x for x in labels if x.rollout_id in {r.rollout_id for r in own}]
        for part, own in parts.items()
    }
    trainer: Any = TorchTrainer(make_critic(policy.folder), head="critic", learning_rate=lambda done: 0.0)
    best = folder / "evaluations"
    result = fit(
        trainer,
        critic_rows(parts["fit"], labels_of["fit"]),
        held_out(parts["validate"], labels_of["validate"]),  # decides when to stop, and on which weights
        FIT,
        seed=SEED,
        keep=lambda number: trainer.export(best / str(number)),
    )
    from transformers import AutoModelForSequenceClassification

    chosen = best / str(result.best)
    frozen = TorchTrainer(AutoModelForSequenceClassification.from_pretrained(chosen), head="critic")
    # All states of rollouts that moved no weight, with their own outcomes.
    calibrator = calibrate(
        frozen, outcome_states([*parts["validate"], *parts["calibrate"]]), base_logit=result.base_logit
    )
    policy.tokenizer.save_pretrained(chosen)
    first = rollouts[0]
    contract = Contract(
        tokenizer_digest=first.tokenizer_digest, template_digest=first.template_digest,
        label_policy_digest=policy.policy_digest, labels_digest="", splitter=PHONE.splitter,
        families=(PHONE.name,), contexts=("bare",), reward=REWARD, gamma=1.0,
        temperature=first.temperature, top_p=first.top_p, top_k=first.top_k,
        max_response_tokens=first.max_response_tokens, converged=result.converged,
        calibrators={PHONE.name: calibrator},
    )  # fmt: skip
    save(chosen, contract)
    return critics.load(chosen)


def train(policy: Policy, critic: FrozenCritic, tasks: list[Task], sizes: Sizes) -> TorchTrainer:
    """Returns the actor: A_i = group advantage over a shrunken baseline + alpha * step advantage.

    One update an iteration under decoupled clip; k3 keeps the actor near pi_0, where the critic was fitted.
    """
    credit = make_credit("v_dapo")
    actor = TorchTrainer(load_policy(policy.folder).model, head="policy", learning_rate=lambda done: 3e-4)
    reference = TorchTrainer(load_policy(policy.folder).model, head="policy")
    engine = TransformersEngine(load_policy(policy.folder).model, policy.policy_digest, max_live=64)
    state = credit.initial_state()
    for iteration in range(sizes.iterations):
        engine.load_weights(actor.weights(), weights_digest(actor.weights()))
        order = np.random.default_rng(iteration).permutation(len(tasks))[: sizes.tasks_per_update]
        rollouts = sample(
            make_player(policy, engine), [tasks[i] for i in order], sizes.draws, iteration, "actor"
        )
        batch = BaselineSets.of(rollouts, scored(rollouts, critic.values), credit)
        [update] = batch.updates(1, max_uniform_share=credit.max_uniform_share, seed=iteration)
        logprobs = {"ref_logprobs": logprobs_of(reference, update.rollouts)}
        rows, metrics, state = update_rows(update, credit=credit, state=state, logprobs=logprobs)
        metrics |= actor.update(rows, policy_loss(credit.loss))
        print(f"iteration {iteration}: success {success(rollouts):.2f}, loss {metrics['loss']:+.4f}")
    return actor


def success(rollouts: list[Rollout]) -> float:
    """Returns the mean reward of the graded rollouts."""
    return float(np.mean([r.reward for r in rollouts if r.reward is not None]))


def main(sizes: Sizes, folder: Path) -> dict[str, float]:
    """Returns success on new tasks before and after, and mean V_{T-1} of failures and successes."""
    torch.set_num_threads(1)
    asked = PhoneTasks(num_companies=12, num_train=48, num_held_out=24, level_shares={1: 1.0})
    tasks = PHONE.task_set(asked, SEED).tasks
    train_tasks, val = ([task for task in tasks if task.split == split] for split in ("train", "val"))
    policy = make_policy(train_tasks, folder / "policy", sizes)
    engine = TransformersEngine(load_policy(policy.folder).model, policy.policy_digest, max_live=64)
    rollouts = sample(make_player(policy, engine), train_tasks, sizes.draws, 0, "rollouts")
    critic = fit_and_freeze(rollouts, label(rollouts, policy), train_tasks, policy, folder)
    before = sample(make_player(policy, engine), val, 8, 0, "val")
    last = np.array([values[-1] for values in critic.values(before)])
    won = np.array([rollout.reward == 1 for rollout in before])
    actor = train(policy, critic, train_tasks, sizes)
    engine.load_weights(actor.weights(), weights_digest(actor.weights()))
    after = sample(make_player(policy, engine), val, 8, 0, "val")
    found = {"before": success(before), "after": success(after)}
    found |= {"V of failures": float(last[~won].mean()), "V of successes": float(last[won].mean())}
    print({name: round(number, 2) for name, number in found.items()})
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Sizes(), Path(name))
