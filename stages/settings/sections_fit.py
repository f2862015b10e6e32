"""Which settings fit each other, across the sections of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env.catalog import offer_of

if TYPE_CHECKING:
    from stages.settings import Config


def check_sections_fit(config: Config) -> None:
    """Raises ValueError for the first settings that do not fit each other, with what would."""
    sft, offer, splits = config.sft, offer_of(config.tasks.environment), config.run.held_out
    shares = sft.shares or {"": 1.0}
    if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise ValueError(f"sft.shares = {shares}; shares are >= 0 and add up to 1")
    if config.prompt.style not in (None, *offer.styles):
        raise ValueError(
            f"prompt.style = {config.prompt.style} is no style of the environment {offer.name}; allowed: "
            f"{', '.join(offer.styles)}"
        )
    held_out = offer.splits[1:]
    if splits is not None and (not set(splits) <= set(held_out) or len(set(splits)) < len(splits)):
        raise ValueError(
            f"run.held_out = {list(splits)} should name held-out splits, each once; allowed: "
            f"{', '.join(held_out)}. Tasks of train say nothing of unseen ones"
        )
    if config.critic.fit_share + config.critic.validate_share >= 1:
        raise ValueError("critic.fit_share + critic.validate_share must leave clusters to calibrate on")
    if config.critic.privileged != "none" and not offer.step_verdicts:
        raise ValueError(
            f"critic.privileged = {config.critic.privileged}, but the verifier of the environment "
            f"{offer.name} judges no step by what came before it alone (step_verdicts of its offer). "
            "Allowed here: none"
        )
    if offer.feedback_tool and config.actor.credit.mode in ("v_dapo", "actor_critic"):
        raise ValueError(
            f"actor.credit.mode = {config.actor.credit.mode} fits values, chances of success, and "
            f"rewards of {offer.name} may lie below 0, by the price of a call. Allowed: the other modes, "
            "such as actor.credit.mode=decoupled_clip"
        )
    actor, credit = config.actor, config.actor.credit
    after_feedback = actor.chain.has_feedback and actor.guided == "in_context"
    judged = config.critic_report.guided or credit.mode != "v_dapo" or credit.on_weak_critic != "refuse"
    if actor.needs_critic and after_feedback and not judged:
        raise ValueError(
            "critic_report.guided = false judges no state after feedback, on which this actor trains, so it "
            "would refuse the critic (actor.credit.on_weak_critic = refuse). Allowed: what is judged. Next: "
            "critic_report.guided=true, actor.chain.num_attempts=1 or actor.guided=stripped; or "
            "actor.credit.on_weak_critic=allow"
        )
    if sft.base is None and sft.num_updates == 0:
        raise ValueError("sft.num_updates = 0 takes a model as it is: name one in sft.base")
    if config.training.lora_rank and sft.base is None:
        raise ValueError(
            f"training.lora_rank = {config.training.lora_rank} needs a trained model to adapt: name one in "
            "sft.base. A model from scratch has nothing to keep"
        )
    for name, number in config.gpus_wanted(engine=True, training=True).items():
        if config.hardware.num_gpus and number > config.hardware.num_gpus:
            raise ValueError(f"{name} = {number}; hardware.num_gpus has {config.hardware.num_gpus}")
