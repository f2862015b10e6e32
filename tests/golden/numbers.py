"""The numbers that must not change by accident, of each backend; weights and rows follow from formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.credit import CreditSet, make_credit
from pipeline.training import Trainer, TrainingRow

VOCAB = 50
MakeTrainer = Callable[..., Trainer]


def model_of(kind: str) -> Any:
    """Returns a tiny Qwen3 of a transformers class, its weights sines of their places."""
    import torch
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, vocab_size=VOCAB, max_position_embeddings=64, num_labels=2,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            places = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
            parameter.copy_(0.3 * torch.sin(0.37 * places + i) + (parameter.ndim == 1))
    return model


def rows_of(columns: tuple[str, ...], num: int = 5) -> list[TrainingRow]:
    """Returns rows of 6 to 14 tokens; every second token has weight, and they sum to 1."""
    rows = []
    for i in range(num):
        places = np.arange(6 + 2 * i)
        weight = (places % 2 == 1).astype(np.float32)
        numbers = {name: np.sin(1.0 + places + k + i) for k, name in enumerate(columns)}
        numbers |= {name: x - 3.0 for name, x in numbers.items() if name.endswith("logprobs")}
        numbers |= {name: x > 0 for name, x in numbers.items() if name.endswith("targets")}
        made = {name: np.asarray(x, np.float32) for name, x in numbers.items()}
        rows.append(TrainingRow(((7 * places + i) % VOCAB).astype(np.int32), made | {"weight": weight}))
    total = sum(float(row.columns["weight"].sum()) for row in rows)
    return [
        TrainingRow(row.token_ids, row.columns | {"weight": row.columns["weight"] / total}) for row in rows
    ]


def paired(rows: list[TrainingRow]) -> list[TrainingRow]:
    """Returns neighbours side by side, as the two answers of a pair."""
    return [
        TrainingRow(
            np.concatenate([a.token_ids, b.token_ids]),
            {name: np.concatenate([column, b.columns[name]]) for name, column in a.columns.items()},
            lengths=(len(a.token_ids), len(b.token_ids)),
        )
        for a, b in zip(rows[::2], rows[1::2], strict=True)
    ]


def trainer_numbers(make: MakeTrainer) -> dict[str, float]:
    """Returns losses, gradients and values of a training backend: five updates of a policy, one of a critic.

    Args:
        make: (model, head, learning_rate) -> its trainer.
    """
    from pipeline.credit import LossOptions
    from pipeline.training.losses import critic_loss, policy_loss, sft_loss
    from pipeline.training.preference import dpo_loss

    found: dict[str, float] = {}
    policy = make(model_of("Qwen3ForCausalLM"), head="policy", learning_rate=lambda done: 1e-2)
    try:
        rows = rows_of(("advantages", "old_logprobs", "ref_logprobs", "engine_logprobs"))
        found["logprob"] = float(policy.forward(rows)[2]["logprobs"][3])
        first = policy.update(rows, policy_loss(LossOptions(kl=0.05)))
        for name in ("policy_loss", "ref_kl", "grad_norm", "old_kl"):
            found[f"first {name}"] = first[name]
        found["second loss"] = policy.update(rows, policy_loss(LossOptions(kl=0.05)))["loss"]
        found["cross-entropy"] = policy.update(rows_of(()), sft_loss)["cross_entropy"]
        pairs = paired(rows_of(("ref_logprobs", "margins"), num=6))
        first = policy.update(pairs, dpo_loss(beta=0.1, mu=0.2))
        for name in ("loss", "log_ratio_gap", "grad_norm"):
            found[f"pairs: {name}"] = first[name]
        found["pairs: second loss"] = policy.update(pairs, dpo_loss(beta=0.1, mu=0.2))["loss"]
    finally:
        policy.close()
    critic = make(model_of("Qwen3ForSequenceClassification"), head="critic", learning_rate=lambda done: 1e-2)
    try:
        rows = rows_of(("targets", "error_targets"))
        rows = [TrainingRow(r.token_ids, r.columns | {"error_weights": r.columns["weight"]}) for r in rows]
        found["value logit"] = float(critic.forward(rows)[4]["scores"][5, 0])
        made = critic.update(rows, critic_loss(base_logit=-1.0))
        found["value loss"], found["error loss"] = made["value_loss"], made["error_loss"]
    finally:
        critic.close()
    return found


def credit_numbers() -> dict[str, float]:
    """Returns advantages of each credit mode, of sets of each kind, and the scales of its second update."""
    values = [np.array(v) for v in ([0.3, 0.5, 0.8], [0.3, 0.2], [0.3, 0.6, 0.4, 0.1])]
    signs = [np.array(s) for s in ([1, 1, 1], [0, -1], [1, -1, 0, -1])]

    def of(*rewards: float) -> CreditSet:
        n = len(rewards)
        return CreditSet(np.array(rewards), signs[:n], values[:n], np.array([0.0, -0.2, -0.1][:n]))

    sets = [of(1, 0, 0), of(0, 0, 0), of(1, 1), of(0.25, 0.75, 0.6), of(1)]
    found: dict[str, float] = {}
    for name, options in {
        "grpo": {},
        "decoupled_clip": {},
        "v_dapo": {"adv_rmse": 0.1},
        "v_dapo lam 0": {"adv_rmse": 0.1, "lam": 0.0, "alpha": 1.0},
    }.items():
        mode = make_credit(name.split()[0], **options)
        usable = [s for s in sets if mode.trains_on(s)]
        _, _, state = mode.credit(usable, mode.initial_state())
        advantages, metrics, _ = mode.credit(usable, state)
        found[f"{name}: first step"] = float(advantages[0][0])
        found[f"{name}: last step of all"] = float(advantages[-1][-1])
        found[f"{name}: sum of squares"] = float(np.square(np.concatenate(advantages)).sum())
        if "sigma/step" in metrics:
            found[f"{name}: sigma of steps"] = metrics["sigma/step"]
    return found


def engine_numbers() -> dict[str, float]:
    """Returns sampled tokens and log-probabilities of the transformers engine."""
    from pipeline.engines import GenerationRequest
    from pipeline.engines.transformers import TransformersEngine

    engine = TransformersEngine(model_of("Qwen3ForCausalLM").eval(), policy_digest="golden", max_live=4)
    prompts = [[(3 * i + j) % VOCAB for j in range(4 + i)] for i in range(5)]
    engine.submit(
        [
            GenerationRequest(str(i), prompt, seed=i, max_new_tokens=6, stop_token_ids=(1,))
            for i, prompt in enumerate(prompts)
        ]
    )
    found: dict[str, float] = {}
    while generations := engine.collect():
        for generation in generations:
            found[f"{generation.request_id}: tokens"] = float(
                np.dot(generation.token_ids, VOCAB ** -np.arange(1.0, 1 + len(generation.token_ids)))
            )
            found[f"{generation.request_id}: logprob"] = float(np.sum(generation.logprobs))
    engine.close()
    return dict(sorted(found.items()))


def preference_material() -> tuple[Any, Any, list[Any]]:
    """Returns a policy, its reference, and pairs that TRL's rows can hold: one prompt, no replies."""
    import torch

    from tests.pairs import random_pairs

    policy, reference = model_of("Qwen3ForCausalLM"), model_of("Qwen3ForCausalLM")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter *= 0.9
    pairs = [p for p in random_pairs(60, VOCAB) if p.match == "prompt" and all(p.chosen.loss_mask)]
    return policy, reference, pairs


def loss_and_gradients(loss: float, model: Any) -> dict[str, float]:
    """Returns a loss and the norms of a model's gradients, by name."""
    return {"loss": loss} | {name: float(p.grad.norm()) for name, p in model.named_parameters()}


def dpo_numbers() -> dict[str, float]:
    """Returns our DPO loss with beta .1, and its gradients; `trl.json` has TRL's."""
    policy, reference, pairs = preference_material()
    return loss_and_gradients(dpo_backward(policy, reference, pairs), policy)


def dpo_backward(policy: Any, reference: Any, pairs: list[Any], micro_batch_tokens: int = 200) -> float:
    """Leaves the gradients of our DPO loss with beta .1 in a policy; returns the loss."""
    from pipeline.training.network import Network
    from pipeline.training.packing import micro_batches
    from pipeline.training.preference import dpo_loss, pair_logprobs, pair_rows
    from pipeline.training.torch import TorchTrainer

    before = pair_logprobs(TorchTrainer(reference, head="policy"), pairs)
    network, loss = Network(policy, head="policy", piece_tokens=100), 0.0
    for batch in micro_batches(pair_rows(pairs, before), micro_batch_tokens):
        part, _ = dpo_loss(beta=0.1, mu=0.0)(network(batch), batch)
        part.backward()
        loss += float(part.detach())
    return loss


def torch_trainer(model: Any, **options: Any) -> Trainer:
    """Returns the torch backend."""
    from pipeline.training.torch import TorchTrainer

    return TorchTrainer(model, micro_batch_tokens=25, **options)


def deepspeed_trainer(model: Any, **options: Any) -> Trainer:
    """Returns the DeepSpeed backend: ZeRO-2 on two ranks."""
    from pipeline.training.deepspeed import DeepSpeedOptions, DeepSpeedTrainer

    how = DeepSpeedOptions(num_ranks=2, config={"zero_optimization": {"stage": 2}}, threads=1)
    return DeepSpeedTrainer(model, options=how, micro_batch_tokens=25, **options)


BACKENDS: dict[str, Callable[[], dict[str, float]]] = {
    "credit": credit_numbers,
    "torch": lambda: trainer_numbers(torch_trainer),
    "deepspeed": lambda: trainer_numbers(deepspeed_trainer),
    "transformers": engine_numbers,
}
