"""Settings of different sections that must fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env.catalog import offer_of

if TYPE_CHECKING:
    from stages.settings import Config


def check_sections(config: Config) -> None:
    """Raises ValueError for the first settings that do not fit each other, with what would."""
    shares = config.sft.shares or {"": 1.0}
    if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise ValueError(f"sft.shares = {shares}; shares are >= 0 and add up to 1")
    offer, splits = offer_of(config.tasks.environment), config.run.held_out
    if config.prompt.style not in (None, *offer.styles):
        raise ValueError(
            f"prompt.style = {config.prompt.style} is no style of the environment {offer.name}; allowed: "
            f"{', '.join(offer.styles)}"
        )
    if splits is not None and (not set(splits) <= set(offer.splits[1:]) or len(set(splits)) < len(splits)):
        raise ValueError(
            f"run.held_out = {list(splits)} should name held-out splits, each once; allowed: "
            f"{', '.join(offer.splits[1:])}. Tasks of train say nothing of unseen ones"
        )
    if config.critic.fit_share + config.critic.validate_share >= 1:
        raise ValueError("critic.fit_share + critic.validate_share must leave clusters to calibrate on")
    if config.sft.base is None and config.sft.num_updates == 0:
        raise ValueError("sft.num_updates = 0 takes a model as it is: name one in sft.base")
    training, engine = config.training, config.engine
    if training.backend == "torch" and training.lora_rank and config.sft.base is None:
        raise ValueError(
            f"training.lora_rank = {training.lora_rank} needs a trained model to adapt: name one in "
            "sft.base. A model from scratch has nothing to keep"
        )
    wanted = {}
    if engine.kind == "vllm":
        wanted["engine.replicas x engine.tensor_parallel"] = engine.replicas * engine.tensor_parallel
    if training.backend == "deepspeed":
        wanted["training.num_ranks"] = training.num_ranks
    for name, number in wanted.items():
        if config.hardware.num_gpus and number > config.hardware.num_gpus:
            raise ValueError(f"{name} = {number}; hardware.num_gpus has {config.hardware.num_gpus}")
