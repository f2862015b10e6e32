"""Who gets how much advantage: numpy on one rollout or one baseline set, no padding, no mask, no torch.

A credit mode is a frozen dataclass; `MODES` holds each as published, `make_credit` changes what a
configuration says differently.
"""

from dataclasses import fields, replace
from typing import Any

from pipeline.credit.group import DECOUPLED_CLIP, GRPO, GroupRelative
from pipeline.credit.options import LossOptions
from pipeline.credit.protocol import Credit
from pipeline.credit.sets import CreditSet, SetKind, baseline_sets, credit_set
from pipeline.credit.v_dapo import VDapo

__all__ = [
    "DECOUPLED_CLIP",
    "GRPO",
    "MODES",
    "Credit",
    "CreditSet",
    "GroupRelative",
    "LossOptions",
    "SetKind",
    "VDapo",
    "baseline_sets",
    "credit_set",
    "make_credit",
]

MODES: dict[str, GroupRelative | VDapo] = {
    "grpo": GRPO,
    "decoupled_clip": DECOUPLED_CLIP,
    "v_dapo": VDapo(),
}


def make_credit(mode: str, **options: Any) -> Credit:
    """Returns a mode of `MODES` with other values for some of its attributes and of `LossOptions`.

    Raises:
        ValueError: no such mode, or one of the options is none of its own.

    Example:
        >>> make_credit("decoupled_clip", kl=0.01, overlong_factor=0).loss.kl
        0.01
    """
    if mode not in MODES:
        raise ValueError(f"credit mode {mode!r}; modes are {', '.join(MODES)}")
    credit = MODES[mode]
    of_loss = {field.name for field in fields(LossOptions)}
    own = {field.name for field in fields(credit)} - {"loss"}
    if unknown := options.keys() - own - of_loss:
        allowed = ", ".join(sorted(own | of_loss))
        raise ValueError(f"{mode} has no {sorted(unknown)}; its options are {allowed}")
    loss = replace(credit.loss, **{k: v for k, v in options.items() if k in of_loss})
    return replace(credit, loss=loss, **{k: v for k, v in options.items() if k in own})
