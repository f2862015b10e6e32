"""Who gets how much advantage: numpy on one rollout or one baseline set, no padding, no mask, no torch.

A credit mode is a frozen dataclass; `MODES` holds each as published, `make_credit` changes what a
configuration says differently.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pipeline.credit.group import DECOUPLED_CLIP, GRPO, GroupRelative
from pipeline.credit.options import LossOptions
from pipeline.credit.protocol import Credit
from pipeline.credit.sets import CreditSet, SetKind, baseline_sets, credit_set
from pipeline.credit.shaping import Overlong
from pipeline.credit.v_dapo import VDapo

__all__ = [
    "DECOUPLED_CLIP",
    "GRPO",
    "MODES",
    "Credit",
    "CreditSet",
    "GroupRelative",
    "LossOptions",
    "Overlong",
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
    """Returns a credit mode with plain values in place of some of its defaults.

    Args:
        mode: a key of `MODES`.
        options: attributes of the mode; those of `LossOptions` (clip_low, clip_high, dual_clip, kl,
            aggregation, engine_weight_cap); overlong_factor (0 is off) and overlong_buffer_tokens.

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
    of_overlong = {f"overlong_{field.name}": field.name for field in fields(Overlong)}
    own = {field.name for field in fields(credit)} - {"loss", "overlong"}
    known = own | of_loss | of_overlong.keys()
    if unknown := options.keys() - known:
        raise ValueError(f"{mode} has no {sorted(unknown)}; its options are {', '.join(sorted(known))}")
    loss = replace(credit.loss, **{k: v for k, v in options.items() if k in of_loss})
    shape = {of_overlong[k]: v for k, v in options.items() if k in of_overlong}
    overlong = credit.overlong if not shape else replace(credit.overlong or Overlong(factor=0.0), **shape)
    if overlong is not None and overlong.factor == 0:
        overlong = None
    return replace(credit, loss=loss, overlong=overlong, **{k: v for k, v in options.items() if k in own})
