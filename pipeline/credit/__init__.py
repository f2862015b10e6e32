"""Who gets how much advantage: numpy on one rollout or one baseline set, no padding, no mask, no torch.

A credit mode is a frozen dataclass; `MODES` holds each as published, `make_credit` changes what a
configuration says differently.
"""

from dataclasses import fields, replace
from typing import Any

from pipeline.credit.actor_critic import ActorCritic
from pipeline.credit.group import DECOUPLED_CLIP, GRPO, GroupRelative
from pipeline.credit.imitation import Imitation
from pipeline.credit.options import LossOptions
from pipeline.credit.protocol import Credit
from pipeline.credit.sets import CreditSet, SetKind, baseline_sets, credit_set
from pipeline.credit.tree_rpo import TreeRpo
from pipeline.credit.v_dapo import VDapo
from pipeline.credit.verifier_steps import VerifierSteps

__all__ = [
    "DECOUPLED_CLIP",
    "GRPO",
    "MODES",
    "ActorCritic",
    "Credit",
    "CreditSet",
    "GroupRelative",
    "Imitation",
    "LossOptions",
    "SetKind",
    "TreeRpo",
    "VDapo",
    "VerifierSteps",
    "baseline_sets",
    "credit_set",
    "make_credit",
]

MODES: dict[str, GroupRelative | VDapo | VerifierSteps | Imitation | ActorCritic | TreeRpo] = {
    "grpo": GRPO,
    "decoupled_clip": DECOUPLED_CLIP,
    "v_dapo": VDapo(),
    "verifier_steps": VerifierSteps(),
    "imitation": Imitation(),
    "actor_critic": ActorCritic(),
    "tree_rpo": TreeRpo(),
}


def make_credit(mode: str, **options: Any) -> Credit:
    """Returns a mode of `MODES` with other values for some of its attributes and of `LossOptions`.

    Raises ValueError for no such mode, TypeError for an option of another one.

    Example:
        >>> make_credit("decoupled_clip", kl=0.01, overlong_factor=0).loss.kl
        0.01
    """
    if mode not in MODES:
        raise ValueError(f"credit mode {mode!r}; modes are {', '.join(MODES)}")
    credit = MODES[mode]
    of_loss = {field.name: options.pop(field.name) for field in fields(LossOptions) if field.name in options}
    return replace(credit, loss=replace(credit.loss, **of_loss), **options)
