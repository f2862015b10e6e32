"""What a credit mode asks of the loss, as plain numbers: no torch here."""

from dataclasses import dataclass
from typing import Literal

Aggregation = Literal["token", "rollout"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Options of the clipped policy loss; the defaults are decoupled clip's (arXiv 2503.14476, eq. 8).

    Attributes:
        clip_low: the ratio is clipped from below at 1 - clip_low.
        clip_high: and from above at 1 + clip_high.
        dual_clip: with A < 0 the loss of a token is at most -dual_clip * A (arXiv 1912.09729, eq. 5).
        kl: coefficient of the k3 estimate of KL(actor || reference policy); 0 needs no reference.
        aggregation: "token": mean over the update's trainable tokens; "rollout": mean over each rollout's
            tokens, then over rollouts. Built into the `weight` column, see `Update.token_weights`.
        clipped: False is the likelihood of the update's tokens in place of it: of all this, aggregation alone
            counts then.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 10.0
    kl: float = 0.0
    aggregation: Aggregation = "token"
    clipped: bool = True

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip = {self.dual_clip}; must be above 1 + clip_high = {1 + self.clip_high}"
            )
